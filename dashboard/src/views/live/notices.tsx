import type { ReadonlySignal } from "@preact/signals";
import type { ShownFrame, Tile } from "../../site/types.js";
import { useBeat } from "../clock.js";
import { brief, duration } from "../format.js";
import type { PastError } from "./error_memory.js";

/** Errors stay on the tile for this long, and are in the log afterwards. */
const ERROR_MS = 5000;
const MOST_LABELS = 5;

/** What lies over the picture: stale, who answered, errors, and a classifier's labels. */
export function Notices(props: {
  tile: Tile;
  isShown: ReadonlySignal<boolean>;
  lastError: { readonly current: PastError | null };
}) {
  const { tile, isShown, lastError } = props;
  useBeat(isShown);
  const frame = tile.frame.peek();
  const error = lastError.current;
  const isRecent = error && performance.now() - error.receivedMs < ERROR_MS;
  return (
    <div class="notices">
      <ul class="badges">
        {tile.isStale.value && <li class="badge warn">{frame ? `stale · ${age(frame)}` : "no results"}</li>}
        {tile.cause.value && <li class="badge warn cause">{brief(tile.cause.value)}</li>}
        {frame && <StageBadges frame={frame} />}
      </ul>
      {!frame && !tile.isStale.value && <p class="waiting">waiting for the first result</p>}
      {isRecent && (
        <p class="failure">
          <b>{brief(error.code, 60)}</b> {brief(error.message, 160)} · {age(error)} ago
        </p>
      )}
      {frame && frame.labels.length > 0 && (
        <ol class="labels">
          {frame.labels.slice(0, MOST_LABELS).map((label, place) => (
            <li key={place}>{brief(label, 60)}</li>
          ))}
        </ol>
      )}
    </div>
  );
}

function StageBadges({ frame }: { frame: ShownFrame }) {
  return (
    <>
      {frame.stage !== "worker" && (
        <li
          class="badge"
          title={frame.stage === "edge" ? "The small model of the edge answered" : "An earlier result was used again"}
        >
          {frame.stage}
        </li>
      )}
      {frame.fallback && (
        <li class="badge warn" title="The edge answered alone, for this reason">
          alone: {brief(frame.fallback, 40)}
        </li>
      )}
    </>
  );
}

function age(frame: { readonly receivedMs: number }): string {
  return duration(performance.now() - frame.receivedMs);
}
