/** When a lost connection is tried again: `least * 2 ** tries` up to `most` milliseconds, less up to half of it by chance. */

const LEAST_MS = 250;
const MOST_MS = 5000;
/** A connection that lasted this long counts as a good one: the next loss is tried again soon. */
const GOOD_MS = 5000;

export class Backoff {
  #tries = 0;

  /**
   * Return how long to wait before the next attempt, in milliseconds.
   *
   * @param lastedMs How long the connection stood that was lost; 0 where there was none.
   * @param random Between 0 and 1.
   */
  next(lastedMs: number, random: number): number {
    if (lastedMs >= GOOD_MS) this.#tries = 0;
    const longest = Math.min(LEAST_MS * 2 ** this.#tries, MOST_MS);
    if (longest < MOST_MS) this.#tries += 1;
    return longest * (1 - random / 2);
  }
}
