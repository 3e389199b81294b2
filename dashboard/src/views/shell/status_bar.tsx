import { useComputed } from "@preact/signals";
import { useBeat } from "../clock.js";
import { brief, count, rate } from "../format.js";
import type { Page } from "../page.js";

const MOST_REASONS = 20;
/** Of each tile the newest frame is drawn: that it took the place of another one is no fault. */
const USUAL = new Set(["newer frame"]);

/** The line at the page's foot: what runs, and what was left out for which reasons. */
export function StatusBar({ page }: { page: Page }) {
  useBeat();
  const { site } = page;
  const { length } = site.tiles.value;
  const total = site.tiles.value.reduce((sum, tile) => sum + tile.rate.value, 0);
  const ready = site.workers.value.filter((worker) => worker.status === "ready").length;
  const failing = site.streams.value.filter((row) => row.trouble).length;
  return (
    <footer class="status-bar">
      <span>
        <b>{rate(total)}</b> results/s
      </span>
      <span class="streams">
        <b>{count(length)}</b> {length === 1 ? "stream" : "streams"}
        {failing > 0 && <b class="failing"> · {failing} failing</b>}
      </span>
      <span>
        <b>{ready}</b> of {site.workers.value.length} {site.workers.value.length === 1 ? "worker" : "workers"} ready
      </span>
      <Dropped page={page} />
    </footer>
  );
}

/** What was left out since the page was opened: never silent. */
function Dropped({ page }: { page: Page }) {
  const reasons = useComputed(() =>
    Object.entries(page.site.dropped.value)
      .filter(([, value]) => value > 0)
      .sort((first, second) => second[1] - first[1]),
  ).value;
  const total = reasons.reduce((sum, [, value]) => sum + value, 0);
  const isUsual = reasons.every(([reason]) => USUAL.has(reason));
  if (!total) {
    return (
      <span class="dropped" data-testid="dropped" data-count="0">
        nothing left out
      </span>
    );
  }
  return (
    <details class={isUsual ? "dropped usual" : "dropped"} data-testid="dropped" data-count={String(total)}>
      <summary>
        left out <b>{count(total)}</b>
        <span class="first"> · {brief(reasons[0]?.[0] ?? "", 40)}</span>
      </summary>
      <dl>
        {reasons.slice(0, MOST_REASONS).map(([reason, value]) => (
          <div key={reason}>
            <dt>{brief(reason, 80)}</dt>
            <dd>{count(value)}</dd>
          </div>
        ))}
      </dl>
    </details>
  );
}
