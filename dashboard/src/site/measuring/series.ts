/** Points of a chart, one a second. */

import type { Series } from "../types.js";

export const MOST_POINTS = 300;

/** The last 300 seconds of some quantities: of each its sum a second, or its mean. */
export class SecondsRing {
  readonly #names: readonly string[];
  readonly #isMean: boolean;
  readonly #sums: readonly Float64Array[];
  readonly #counts = new Float64Array(MOST_POINTS);
  #first = Number.NaN;
  #second = 0;

  /** `kind`: whether a second without values is 0 (`sum`), or not measured and NaN (`mean`). */
  constructor(names: readonly string[], kind: "sum" | "mean") {
    this.#names = names;
    this.#isMean = kind === "mean";
    this.#sums = names.map(() => new Float64Array(MOST_POINTS));
  }

  /** Add one value of each quantity, in the order of the names. */
  add(epochMs: number, values: readonly number[]): void {
    this.#advance(epochMs);
    const place = this.#second % MOST_POINTS;
    for (const [row, sums] of this.#sums.entries()) sums[place] = (sums[place] ?? 0) + (values[row] ?? 0);
    this.#counts[place] = (this.#counts[place] ?? 0) + 1;
  }

  /** Return the points of the seconds that have ended. */
  read(epochMs: number): Series {
    if (Number.isNaN(this.#first)) return EMPTY;
    this.#advance(epochMs);
    const first = Math.max(this.#first, this.#second - MOST_POINTS + 1);
    const seconds = Array.from({ length: this.#second - first }, (_, place) => first + place);
    const values: Record<string, readonly number[]> = {};
    for (const [row, name] of this.#names.entries()) values[name] = seconds.map((second) => this.#point(row, second));
    return { seconds, values };
  }

  #point(row: number, second: number): number {
    const place = second % MOST_POINTS;
    const sum = this.#sums[row]?.[place] ?? 0;
    return this.#isMean ? sum / (this.#counts[place] || Number.NaN) : sum;
  }

  /** Clear the seconds up to this one; a clock that was set back stands still. */
  #advance(epochMs: number): void {
    const second = Math.floor(epochMs / 1000);
    if (Number.isNaN(this.#first)) {
      this.#first = second;
      this.#second = second;
    }
    const passed = Math.min(MOST_POINTS, Math.max(0, second - this.#second));
    for (let step = 1; step <= passed; step++) this.#clear((second - passed + step) % MOST_POINTS);
    this.#second = Math.max(second, this.#second);
  }

  #clear(place: number): void {
    for (const sums of this.#sums) sums[place] = 0;
    this.#counts[place] = 0;
  }
}

/** A chart without points. */
export const EMPTY: Series = { seconds: [], values: {} };
