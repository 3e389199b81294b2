import type { ReadonlySignal } from "@preact/signals";
import type { Timings } from "mqinfer-client";
import type { Tile } from "../../site/types.js";
import { useBeat } from "../clock.js";
import { milliseconds, NOTHING } from "../format.js";
import { PARTS } from "../parts/time_parts.js";

/** Parts below this share of the whole are in the list alone: nobody would see them in the bar. */
const SMALLEST_SHARE = 0.004;

/** Where the time of the shown frame went: one bar, and the same parts as numbers. */
export function TimeSplit({ tile, isShown }: { tile: Tile; isShown: ReadonlySignal<boolean> }) {
  useBeat(isShown);
  const timings = tile.frame.peek()?.timings;
  const total = timings ? PARTS.reduce((sum, { key }) => sum + timings[key], 0) : 0;
  return (
    <div class="split">
      <div class="bar" role="img" aria-label={describe(timings, total)}>
        {timings &&
          PARTS.filter(({ key }) => timings[key] > SMALLEST_SHARE * total).map(({ key, name, className }) => (
            <span
              key={key}
              class={`part ${className}`}
              title={`${name} ${milliseconds(timings[key] / 1e6)}`}
              style={{ flexGrow: String(timings[key] / total) }}
            />
          ))}
      </div>
      <output class="total" title="Time in the worker: a reply does not state the client's and the network's">
        {total ? milliseconds(total / 1e6) : NOTHING}
      </output>
      <ul class="parts">
        {timings &&
          PARTS.filter(({ key }) => timings[key] > 0).map(({ key, name, className }) => (
            <li key={key}>
              <i class={className} aria-hidden="true" />
              {name} <b>{milliseconds(timings[key] / 1e6)}</b>
            </li>
          ))}
      </ul>
    </div>
  );
}

function describe(timings: Timings | undefined, total: number): string {
  if (!timings || !total) return "No times stated";
  return PARTS.filter(({ key }) => timings[key] > 0)
    .map(({ key, name }) => `${name} ${milliseconds(timings[key] / 1e6)}`)
    .join(", ");
}
