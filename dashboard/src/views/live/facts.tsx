import type { ReadonlySignal } from "@preact/signals";
import type { Tile } from "../../site/types.js";
import { useBeat } from "../clock.js";
import { brief, count, duration, NOTHING, shortHash } from "../format.js";

/** The numbers of a tile, each with its name above it. */
export function Facts({ tile, isShown }: { tile: Tile; isShown: ReadonlySignal<boolean> }) {
  useBeat(isShown);
  const frame = tile.frame.peek();
  const gaps = tile.gaps.value;
  return (
    <dl class="facts">
      <Fact
        name="age"
        value={frame ? duration(performance.now() - frame.receivedMs) : NOTHING}
        title="Since this was received"
      />
      <Fact name="frame" value={frame?.sequence == null ? NOTHING : String(frame.sequence)} title={captured(frame)} />
      <Fact name="gaps" value={count(gaps)} title="Sequence numbers left out" isBad={gaps > 0} />
      <Fact name="version" value={versionOf(frame)} title={frame?.modelHash ? `Hash ${frame.modelHash}` : ""} />
      <Fact name="worker" value={frame?.worker ? brief(frame.worker, 80) : NOTHING} title={frame?.worker ?? ""} />
    </dl>
  );
}

function Fact(props: { name: string; value: string; title: string; isBad?: boolean }) {
  return (
    <div class={props.isBad ? `fact ${props.name} bad` : `fact ${props.name}`}>
      <dt>{props.name}</dt>
      <dd title={props.title || undefined}>{props.value}</dd>
    </div>
  );
}

function captured(frame: { captureTimeNs: bigint | null } | null): string {
  const { captureTimeNs = null } = frame ?? {};
  return captureTimeNs === null ? "Sequence number" : `Sequence number; captured at ${Number(captureTimeNs) / 1e9} s`;
}

function versionOf(frame: { modelVersion: string; modelHash: string } | null): string {
  if (!frame?.modelVersion && !frame?.modelHash) return NOTHING;
  return [frame.modelVersion, shortHash(frame.modelHash)].filter(Boolean).join(" · ");
}
