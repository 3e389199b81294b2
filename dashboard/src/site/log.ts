/** The last messages that are worth reading, bounded by kind, so that none pushes out the others. */

import { cut } from "./bounds.js";
import type { Clock } from "./platform.js";
import type { LogEntry } from "./types.js";

type Kind = LogEntry["kind"];

/** How many entries of a kind are kept, and how many are taken a second. */
const KINDS: Readonly<Record<Kind, { readonly kept: number; readonly aSecond: number }>> = {
  result: { kept: 50, aSecond: 4 },
  error: { kept: 60, aSecond: 20 },
  state: { kept: 60, aSecond: 20 },
  refused: { kept: 30, aSecond: 4 },
};
const MOST_DEPTH = 6;
const MOST_ITEMS = 32;
const MOST_VALUES = 400;

export class Log {
  readonly #clock: Clock;
  readonly #entries = new Map<Kind, LogEntry[]>();
  readonly #taken = new Map<Kind, { second: number; count: number }>();
  #shown: readonly LogEntry[] = [];
  #isChanged = false;
  #nextId = 1;

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /** Return whether an entry of this kind would be taken now. */
  takes(kind: Kind): boolean {
    const taken = this.#taken.get(kind);
    const isSame = taken?.second === Math.floor(this.#clock.nowMs() / 1000);
    return !isSame || taken.count < KINDS[kind].aSecond;
  }

  /** Add an entry; too many a second are left out. `detail` is made only for those that are taken. */
  add(kind: Kind, summary: string, detail: () => unknown): void {
    if (!this.takes(kind)) return;
    const second = Math.floor(this.#clock.nowMs() / 1000);
    const taken = this.#taken.get(kind);
    this.#taken.set(kind, { second, count: taken?.second === second ? taken.count + 1 : 1 });
    const entries = this.#entries.get(kind) ?? [];
    entries.push({
      id: this.#nextId++,
      timeMs: this.#clock.epochMs(),
      kind,
      summary: cut(summary),
      detail: plain(detail()),
    });
    if (entries.length > KINDS[kind].kept) entries.shift();
    this.#entries.set(kind, entries);
    this.#isChanged = true;
  }

  /** Return the entries, newest first; the same array while none is added. */
  read(): readonly LogEntry[] {
    if (!this.#isChanged) return this.#shown;
    this.#isChanged = false;
    this.#shown = [...this.#entries.values()].flat().sort((a, b) => b.id - a.id);
    return this.#shown;
  }
}

/** Return a value as JSON may have it: bytes as their number, texts cut, at most 400 values six levels deep. */
export function plain(value: unknown): unknown {
  let left = MOST_VALUES;
  const copy = (each: unknown, depth: number): unknown => {
    left -= 1;
    if (left < 0 || depth > MOST_DEPTH) return "…";
    if (each === null || typeof each === "boolean") return each;
    if (typeof each === "number") return Number.isFinite(each) ? each : String(each);
    if (typeof each === "string") return cut(each);
    if (typeof each === "bigint") return String(each);
    if (ArrayBuffer.isView(each)) return `${each.byteLength} bytes`;
    if (Array.isArray(each)) return each.slice(0, MOST_ITEMS).map((item) => copy(item, depth + 1));
    if (typeof each !== "object") return undefined;
    const entries = Object.entries(each).filter(([, item]) => item !== undefined);
    return Object.fromEntries(entries.slice(0, MOST_ITEMS).map(([key, item]) => [cut(key), copy(item, depth + 1)]));
  };
  return copy(value, 0);
}
