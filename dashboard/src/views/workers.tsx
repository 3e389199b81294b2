import { useComputed } from "@preact/signals";
import type { WorkerRow } from "../site/types.js";
import { useBeat } from "./clock.js";
import { brief, duration, milliseconds, NOTHING, rate, timeOfDay } from "./format.js";
import type { Page } from "./page.js";
import { Counts } from "./parts/counts.js";
import { Empty } from "./parts/empty.js";
import { Name } from "./parts/name.js";
import { type Column, MOST_ROWS, Rows } from "./parts/rows.js";
import { Status } from "./parts/status.js";
import { matches } from "./words.js";

const COLUMNS: readonly Column[] = [
  { name: "worker" },
  { name: "state" },
  { name: "models" },
  { name: "load", title: "Requests accepted and not answered, of the most that it accepts" },
  { name: "service time", title: "Expected time of one request", isNumber: true },
  { name: "rate", title: "Results a second that this page has seen", isNumber: true },
  { name: "device" },
  { name: "counters", title: "Since the worker started" },
  { name: "since", title: "Start of the process", isNumber: true },
];

/** What needs somebody's eye comes first. */
const ORDER: Readonly<Record<WorkerRow["status"], number>> = { lost: 0, crashed: 1, draining: 2, ready: 3, stopped: 4 };
const MOST_MODELS = 6;
const LONGEST_MODEL = 80;
/** A worker that is fuller than this share of its capacity will soon refuse requests. */
const NEARLY_FULL = 0.9;

/** The workers and how busy they are. */
export function Workers({ page }: { page: Page }) {
  useBeat();
  const rows = useComputed(() => chosen(page)).value;
  if (!page.site.workers.value.length) {
    return (
      <Empty title="No workers" command="mqinfer worker --broker mqtt://127.0.0.1 --repository models">
        A worker appears here as soon as it has reached the broker:
      </Empty>
    );
  }
  if (!rows.length) return <Empty title="No worker matches">Change the filter or the selection above.</Empty>;
  return (
    <Rows caption="Workers" columns={COLUMNS} total={rows.length}>
      {rows.slice(0, MOST_ROWS).map((row) => (
        <Row key={row.name} row={row} />
      ))}
    </Rows>
  );
}

function Row({ row }: { row: WorkerRow }) {
  const models = row.models.slice(0, MOST_MODELS).map((name) => brief(name, LONGEST_MODEL));
  const further = row.models.length - models.length;
  return (
    <tr data-testid="worker-row" data-name={row.name} data-status={row.status} class={`is-${row.status}`}>
      <th scope="row">
        <b>
          <Name text={row.name} />
        </b>
      </th>
      <td data-label="state">
        <Status status={row.status} />
      </td>
      <td data-label="models">
        {models.length ? <Name text={models.join(", ")} most={MOST_MODELS * (LONGEST_MODEL + 3)} /> : NOTHING}
        {further > 0 && ` and ${further} more`}
      </td>
      <td data-label="load">
        <Load depth={row.depth} capacity={row.capacity} />
      </td>
      <td data-label="service time" class="number">
        {milliseconds(row.serviceTimeUs > 0 ? row.serviceTimeUs / 1000 : null)}
      </td>
      <td data-label="rate" class="number">
        {rate(row.rate)}
        <small>/s</small>
      </td>
      <td data-label="device">{brief(row.device) || NOTHING}</td>
      <td data-label="counters">
        <Counts values={row.counters} />
      </td>
      <td data-label="since" class="number">
        {timeOfDay(row.startedMs)}
        {row.startedMs !== null && <small>{duration(Date.now() - row.startedMs)}</small>}
      </td>
    </tr>
  );
}

/** A bar of how full a worker is. */
function Load({ depth, capacity }: { depth: number; capacity: number }) {
  const share = capacity > 0 ? Math.min(1, Math.max(0, depth / capacity)) : 0;
  return (
    <div class={share > NEARLY_FULL ? "load full" : "load"}>
      <span class="track" aria-hidden="true">
        <span class="fill" style={{ width: `${(100 * share).toFixed(1)}%` }} />
      </span>
      <span class="of">
        {depth} / {capacity}
      </span>
    </div>
  );
}

function chosen(page: Page): readonly WorkerRow[] {
  const { model } = page.site.selection.value;
  return page.site.workers.value
    .filter(
      (row) =>
        (!model || row.models.some((each) => each === model || each.startsWith(`${model} `))) &&
        matches(page.filter.value, row.name, row.device, row.status, ...row.models),
    )
    .sort((first, second) => ORDER[first.status] - ORDER[second.status] || compare(first.name, second.name));
}

function compare(first: string, second: string): number {
  return first.localeCompare(second, "en", { numeric: true });
}
