/** Percentiles of the last values. */

const MOST = 1024;

/** The last 1,024 values of the last minute. */
export class Percentiles {
  readonly #values = new Float64Array(MOST);
  readonly #times = new Float64Array(MOST);
  readonly #windowMs: number;
  #count = 0;

  constructor(windowMs = 60_000) {
    this.#windowMs = windowMs;
  }

  add(nowMs: number, value: number): void {
    if (!Number.isFinite(value)) return;
    this.#values[this.#count % MOST] = value;
    this.#times[this.#count % MOST] = nowMs;
    this.#count += 1;
  }

  /** Return the smallest values that so many shares (0 to 1) of all are no larger than; null without values. */
  read(nowMs: number, shares: readonly number[]): (number | null)[] {
    const kept = Math.min(this.#count, MOST);
    const oldest = nowMs - this.#windowMs;
    const recent = this.#values.slice(0, kept).filter((_, place) => (this.#times[place] ?? 0) >= oldest);
    recent.sort();
    return shares.map((share) => recent[Math.max(0, Math.ceil(share * recent.length) - 1)] ?? null);
  }
}
