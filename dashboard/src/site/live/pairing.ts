/** Which preview belongs to which result: they have the same sequence number and capture stamp, and no others do. */

/** What preview and result of a frame share. */
export interface FrameKey {
  /** Null of a message that belongs to no stream; it has no other half. */
  readonly sequence: number | null;
  /** Null where the stream has no stamps. */
  readonly captureTimeNs: bigint | null;
}

/** A message that waits for its other half. */
export interface Half extends FrameKey {
  /** Bytes that it keeps in memory. */
  readonly bytes: number;
  readonly receivedMs: number;
}

export interface Pair<P extends Half, R extends Half> {
  readonly preview: P;
  readonly result: R;
}

/** Of each, at most so many are held: enough for ten seconds of previews, and for a second of results before theirs. */
const MOST_EACH = 64;
const LONGEST_MS = 10_000;

/** Holds the newest previews and results of one stream until their other halves come; old ones are forgotten. */
export class Pairing<P extends Half, R extends Half> {
  #previews: P[] = [];
  #results: R[] = [];

  /** Bytes that are held. */
  get bytes(): number {
    return sum(this.#previews) + sum(this.#results);
  }

  /** Take a preview; returns the pair that it completes. */
  addPreview(preview: P, mostBytes: number): Pair<P, R> | null {
    this.#expire(preview.receivedMs);
    const result = take(this.#results, preview);
    if (result) return { preview, result };
    hold(this.#previews, preview, MOST_EACH, mostBytes / 2);
    return null;
  }

  /** Take a result; returns the pair that it completes. */
  addResult(result: R, mostBytes: number): Pair<P, R> | null {
    this.#expire(result.receivedMs);
    const preview = take(this.#previews, result);
    if (preview) return { preview, result };
    hold(this.#results, result, MOST_EACH, mostBytes / 2);
    return null;
  }

  /** Forget everything: the stream begins again. */
  clear(): void {
    this.#previews = [];
    this.#results = [];
  }

  #expire(nowMs: number): void {
    this.#previews = this.#previews.filter((each) => nowMs - each.receivedMs <= LONGEST_MS);
    this.#results = this.#results.filter((each) => nowMs - each.receivedMs <= LONGEST_MS);
  }
}

function isSame(one: FrameKey, other: FrameKey): boolean {
  return one.sequence !== null && one.sequence === other.sequence && one.captureTimeNs === other.captureTimeNs;
}

/** Remove and return the half with a key. */
function take<H extends Half>(halves: H[], key: FrameKey): H | null {
  const place = halves.findIndex((each) => isSame(each, key));
  return place < 0 ? null : (halves.splice(place, 1)[0] ?? null);
}

/** Keep a half as the newest one, and forget the oldest of too many; a repetition takes the place of the first. */
function hold<H extends Half>(halves: H[], half: H, most: number, mostBytes: number): void {
  take(halves, half);
  halves.push(half);
  while (halves.length > most || (halves.length > 0 && sum(halves) > mostBytes)) halves.shift();
}

function sum(halves: readonly Half[]): number {
  return halves.reduce((total, each) => total + each.bytes, 0);
}
