/** Rates over a sliding window, in memory that does not grow. */

const SLOTS = 10;

/** Events a second over the last five seconds. */
export class SlidingRate {
  readonly #counts = new Float64Array(SLOTS);
  readonly #slotMs: number;
  #firstMs = Number.NaN;
  /** Number of the slot that was counted in last, from the clock's start. */
  #slot = 0;

  constructor(windowMs = 5000) {
    this.#slotMs = windowMs / SLOTS;
  }

  /** Count so many events at this time. */
  add(nowMs: number, count = 1): void {
    if (Number.isNaN(this.#firstMs)) this.#firstMs = nowMs;
    this.#advance(nowMs);
    this.#counts[this.#slot % SLOTS] = (this.#counts[this.#slot % SLOTS] ?? 0) + count;
  }

  /** Return events a second; of something that began a moment ago, over one second at least. */
  read(nowMs: number): number {
    if (Number.isNaN(this.#firstMs)) return 0;
    this.#advance(nowMs);
    const sum = this.#counts.reduce((total, each) => total + each, 0);
    const whole = (SLOTS - 1) * this.#slotMs + (nowMs % this.#slotMs);
    return (sum / Math.max(1000, Math.min(whole, nowMs - this.#firstMs))) * 1000;
  }

  #advance(nowMs: number): void {
    const slot = Math.floor(nowMs / this.#slotMs);
    const passed = Math.min(SLOTS, Math.max(0, slot - this.#slot));
    for (let step = 1; step <= passed; step++) this.#counts[(slot - passed + step) % SLOTS] = 0;
    this.#slot = Math.max(slot, this.#slot);
  }
}

/** The usual time between two events: a mean in which newer ones count more. */
export class Rhythm {
  #lastMs = Number.NaN;
  #intervalMs = 0;

  /** When the last event was; NaN before the first. */
  get lastMs(): number {
    return this.#lastMs;
  }

  get intervalMs(): number {
    return this.#intervalMs;
  }

  /** Note an event; a pause longer than `longestMs` counts as one of that length. */
  add(nowMs: number, longestMs = 10_000): void {
    if (!Number.isNaN(this.#lastMs)) {
      const interval = Math.min(longestMs, Math.max(0, nowMs - this.#lastMs));
      this.#intervalMs = this.#intervalMs === 0 ? interval : this.#intervalMs * 0.8 + interval * 0.2;
    }
    this.#lastMs = nowMs;
  }
}
