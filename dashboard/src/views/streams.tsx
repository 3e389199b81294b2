import { useComputed } from "@preact/signals";
import type { StreamRow } from "../site/types.js";
import { count, rate } from "./format.js";
import type { Page } from "./page.js";
import { Counts } from "./parts/counts.js";
import { Empty } from "./parts/empty.js";
import { Name } from "./parts/name.js";
import { type Column, MOST_ROWS, Rows } from "./parts/rows.js";
import { Status } from "./parts/status.js";
import { matches, streamName } from "./words.js";

const COLUMNS: readonly Column[] = [
  { name: "stream" },
  { name: "model" },
  { name: "state" },
  { name: "rate", title: "Frames read a second", isNumber: true },
  { name: "window", title: "Most requests in flight", isNumber: true },
  { name: "queued", title: "Accepted and not yet sent", isNumber: true },
  { name: "in flight", title: "Sent and not answered", isNumber: true },
  { name: "outcomes", title: "Since the edge started" },
  { name: "dropped", title: "Frames without a result, by reason" },
  { name: "spooled", title: "Frames kept on the edge's disk", isNumber: true },
  { name: "previews", title: "Pictures published for dashboards", isNumber: true },
];

/** What the edges state of their streams. */
export function Streams({ page }: { page: Page }) {
  const rows = useComputed(() => chosen(page)).value;
  if (!page.site.streams.value.length) {
    return (
      <Empty
        title="No edge reports a stream"
        command="mqinfer replay drive.bag --topic /camera/image_raw --model MODEL --name car-1"
      >
        Edges state their streams while they run:
      </Empty>
    );
  }
  if (!rows.length) return <Empty title="No stream matches">Change the filter or the selection above.</Empty>;
  return (
    <Rows caption="Streams" columns={COLUMNS} total={rows.length}>
      {rows.slice(0, MOST_ROWS).map((row) => (
        <Row key={row.key} row={row} />
      ))}
    </Rows>
  );
}

function Row({ row }: { row: StreamRow }) {
  return (
    <tr
      data-testid="stream-row"
      data-key={row.key}
      data-status={row.trouble ? "failing" : row.status}
      class={`is-${row.status}`}
    >
      <th scope="row">
        <b>{row.source ? <Name text={row.source} /> : "stream"}</b>
        <small>
          <Name text={row.client} />
        </small>
      </th>
      <td data-label="model">
        <Name text={row.model} />
      </td>
      <td data-label="state">
        {row.trouble ? <Status status="failing" /> : <Status status={row.status} />}
        {row.trouble && (
          <small class="trouble">
            <Name text={row.trouble} />
          </small>
        )}
      </td>
      <td data-label="rate" class="number">
        {rate(row.rate)}
        {row.rate !== null && <small>/s</small>}
      </td>
      <NumberCell label="window" value={row.window} />
      <NumberCell label="queued" value={row.queued} />
      <NumberCell label="in flight" value={row.inFlight} />
      <td data-label="outcomes">
        <Counts values={withoutDropped(row)} />
      </td>
      <td data-label="dropped">
        <Counts values={row.dropped} isDropped />
      </td>
      <NumberCell label="spooled" value={row.spooled} />
      <NumberCell label="previews" value={row.previews} />
    </tr>
  );
}

function NumberCell({ label, value }: { label: string; value: number | null }) {
  return (
    <td data-label={label} class="number">
      {count(value)}
    </td>
  );
}

/** A reason that is an outcome too, such as `superseded`, is shown once. */
function withoutDropped(row: StreamRow): Readonly<Record<string, number>> {
  return Object.fromEntries(Object.entries(row.outcomes).filter(([kind]) => !Object.hasOwn(row.dropped, kind)));
}

function chosen(page: Page): readonly StreamRow[] {
  const { stream, model } = page.site.selection.value;
  return page.site.streams.value.filter(
    (row) =>
      (!stream || streamName(row) === stream) &&
      (!model || row.model === model) &&
      matches(page.filter.value, row.source, row.client, row.model, row.status, row.trouble),
  );
}
