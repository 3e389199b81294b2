/** Lets tiles decode in turns, so that the page has time for everything else. */

import type { Clock } from "../platform.js";

const MOST_AT_ONCE = 2;
const REST = 2;
const LONGEST_REST_MS = 200;

/** Runs jobs, each at most once in the queue; after each the page gets twice the time that it took: it has to draw, too. */
export class Turns {
  readonly #clock: Clock;
  readonly #queue = new Set<() => Promise<void>>();
  #running = 0;
  #restUntilMs = 0;
  #cancelRest: (() => void) | null = null;

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /** Run a job when it is its turn; jobs must not throw. */
  ask(job: () => Promise<void>): void {
    this.#queue.add(job);
    this.#next();
  }

  close(): void {
    this.#queue.clear();
    this.#cancelRest?.();
    this.#cancelRest = null;
  }

  #next(): void {
    if (this.#cancelRest) return;
    for (const job of this.#queue) {
      if (this.#running >= MOST_AT_ONCE) return;
      const restMs = this.#restUntilMs - this.#clock.nowMs();
      if (restMs > 0) {
        this.#rest(restMs);
        return;
      }
      this.#queue.delete(job);
      this.#run(job);
    }
  }

  #run(job: () => Promise<void>): void {
    this.#running += 1;
    const startMs = this.#clock.nowMs();
    const done = job();
    const endMs = this.#clock.nowMs();
    this.#restUntilMs = endMs + Math.min(LONGEST_REST_MS, REST * (endMs - startMs));
    void done.finally(() => {
      this.#running -= 1;
      this.#next();
    });
  }

  #rest(restMs: number): void {
    this.#cancelRest = this.#clock.after(restMs, () => {
      this.#cancelRest = null;
      this.#next();
    });
  }
}
