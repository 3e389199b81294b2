/** How many messages a second are read; of the others only the topic is counted. */

const SLOT_MS = 250;
const MOST_SENDERS = 500;
const MOST_A_SLOT = 75;
const FEWEST_A_SLOT = 5;
/** A timer that comes this late shows that the page has more to do than it can. */
const LATE_MS = 150;

/**
 * Shares the messages that are read fairly between senders: one that sends too many is sampled, the others are not.
 *
 * A late timer halves the budget, up to a fifteenth; in time it grows again.
 */
export class Budget {
  #slotStart = Number.NEGATIVE_INFINITY;
  readonly #burst: number;
  readonly #most: number;
  #total: number;
  #quota: number;
  #counts = new Map<string, number>();
  #admitted = 0;
  /** Messages of each sender that were left out since the last one that was read. */
  #left = new Map<string, number>();

  /** `burst`: how many times the budget may be read at once, of senders that have just come; `most`: messages a slot. */
  constructor(burst = 2, most = MOST_A_SLOT) {
    this.#burst = burst;
    this.#most = most;
    this.#total = most;
    this.#quota = most;
  }

  /**
   * Count a message of a sender.
   *
   * @returns How many messages it stands for, itself and those left out before it; 0 if it is to be left out.
   */
  admit(sender: string, nowMs: number): number {
    if (nowMs - this.#slotStart >= SLOT_MS || nowMs < this.#slotStart) this.#begin(nowMs);
    const known = this.#counts.has(sender) || this.#counts.size < MOST_SENDERS ? sender : "";
    const count = (this.#counts.get(known) ?? 0) + 1;
    this.#counts.set(known, count);
    if (count > this.#quota || this.#admitted >= this.#burst * this.#total) {
      this.#left.set(known, (this.#left.get(known) ?? 0) + 1);
      return 0;
    }
    const left = this.#left.get(known) ?? 0;
    this.#left.delete(known);
    this.#admitted += 1;
    return left + 1;
  }

  /** Note how late a timer came. */
  late(byMs: number): void {
    this.#total = byMs > LATE_MS ? this.#total / 2 : this.#total * 1.1 + 1;
    this.#total = Math.min(this.#most, Math.max(FEWEST_A_SLOT, Math.floor(this.#total)));
  }

  #begin(nowMs: number): void {
    this.#quota = fairShare([...this.#counts.values()], this.#total);
    this.#slotStart = nowMs;
    this.#counts = new Map();
    this.#admitted = 0;
    if (this.#left.size > MOST_SENDERS) this.#left = new Map();
  }
}

/** Return the largest number of which every demand may have as much, so that all together get no more than `total`. */
export function fairShare(demands: readonly number[], total: number): number {
  let left = total;
  const rising = [...demands].sort((a, b) => a - b);
  for (const [place, demand] of rising.entries()) {
    const share = left / (rising.length - place);
    if (demand > share) return Math.max(1, Math.floor(share));
    left -= demand;
  }
  return total;
}
