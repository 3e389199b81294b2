/** How many requests may be sent again for want of a reply: a share of those sent, so that no overload feeds itself. */

const SHARE = 0.1;
const BURST = 16;

export class RetryBudget {
  #tokens = BURST;

  /** Add a request's share of a retry. */
  earn(): void {
    this.#tokens = Math.min(BURST, this.#tokens + SHARE);
  }

  /** Spend a retry; return false where none is left. */
  spend(): boolean {
    if (this.#tokens < 1) return false;
    this.#tokens -= 1;
    return true;
  }
}
