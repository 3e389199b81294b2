import { useEffect, useRef } from "preact/hooks";
import type { Tile } from "../../site/types.js";

/** An error that would be gone with the next frame, before anyone could read it. */
export interface PastError {
  readonly code: string;
  readonly message: string;
  readonly receivedMs: number;
}

/** Keep the last error of a tile. */
export function useErrorMemory(tile: Tile): { readonly current: PastError | null } {
  const last = useRef<PastError | null>(null);
  useEffect(
    () =>
      tile.frame.subscribe((frame) => {
        if (!frame || frame.outcome === "ok") return;
        const { code = frame.outcome, message = "" } = frame.error ?? {};
        last.current = { code, message, receivedMs: frame.receivedMs };
      }),
    [tile],
  );
  return last;
}
