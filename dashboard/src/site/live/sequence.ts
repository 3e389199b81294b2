/** The sequence numbers of one stream's results: what is left out, and where they begin again. */

/** A result may come after so many later ones, and is no gap. */
const REORDERED = 16;
/** One that is so far behind belongs to a new run of the stream. */
const BEHIND = 64;
/** So do so many in a row that are behind, or one after a pause. */
const MOST_BEHIND = 8;
const PAUSE_MS = 2000;
/** A step that is larger is no gap, but another numbering. */
const LARGEST_STEP = 1_000_000;

/** Counts gaps, and numbers the runs of a stream: a later run begins with small sequence numbers again. */
export class SequenceTracker {
  #highest = -1;
  #missing = new Set<number>();
  #behind = 0;
  #lastMs = Number.NEGATIVE_INFINITY;
  #run = 0;
  #gaps = 0;

  /** Sequence numbers that were left out so far. */
  get gaps(): number {
    return this.#gaps;
  }

  /** Number of the current run. */
  get run(): number {
    return this.#run;
  }

  /** Note a result's sequence number. */
  add(sequence: number, nowMs: number): void {
    const isAfterPause = nowMs - this.#lastMs > PAUSE_MS;
    this.#lastMs = nowMs;
    if (this.#highest < 0) this.#highest = sequence;
    else if (sequence > this.#highest) this.#advance(sequence);
    else if (!this.#missing.delete(sequence)) this.#stepBack(sequence, isAfterPause);
  }

  /** Begin a new run: the client has started again. */
  restart(): void {
    this.#run += 1;
    this.forget();
  }

  /** Count nothing between the last result and the next one: what came there was not read. */
  forget(): void {
    this.#highest = -1;
    this.#missing.clear();
    this.#behind = 0;
  }

  #advance(sequence: number): void {
    this.#behind = 0;
    if (sequence - this.#highest > LARGEST_STEP) {
      this.restart();
      this.#highest = sequence;
      return;
    }
    const recent = sequence - REORDERED;
    this.#gaps += Math.max(0, recent - this.#highest - 1);
    for (let number = Math.max(this.#highest + 1, recent); number < sequence; number++) this.#missing.add(number);
    this.#highest = sequence;
    for (const number of this.#missing) {
      if (number >= recent) continue;
      this.#missing.delete(number);
      this.#gaps += 1;
    }
  }

  /** One that is behind and not missing: a repetition, or the beginning of a new run. */
  #stepBack(sequence: number, isAfterPause: boolean): void {
    this.#behind += 1;
    const isRepeated = sequence === this.#highest;
    if (sequence < this.#highest - BEHIND || this.#behind > MOST_BEHIND || (isAfterPause && !isRepeated)) {
      this.restart();
      this.#highest = sequence;
    }
  }
}
