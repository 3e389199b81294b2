/**
 * Whether the broker is still there: when to ping it, and when to give a connection up as dead.
 *
 * Pure: times are readings of the owner's clock in milliseconds. Bytes that arrive count, not packets, and so do bytes that
 * leave the buffers: a large message on a thin link is no silence. mqtt.js counts acknowledgements alone.
 */

/** After so long without a packet sent, or without a byte received, the broker is pinged. */
const PING_MS = 10_000;
/** The broker owes an answer, and so long nothing was received and nothing left the buffers: the connection is dead. */
const DEAD_MS = 5_000;
/** Ticks come every second. After a longer pause this process itself was halted, and the broker gets its time anew. */
const HALTED_MS = 3_000;

export type Verdict = "alive" | "ping" | "dead";

export class Liveness {
  #sent: number;
  #life: number;
  #ticked: number;
  #unsent = 0;
  /** Since when the broker owes an answer, or undefined. */
  #owed: number | undefined;
  readonly #pingMs: number;

  /**
   * Start with a connection.
   *
   * @param now The clock's reading.
   * @param keepAliveMs The broker's; it gets a packet at least twice within it.
   */
  constructor(now: number, keepAliveMs = Number.POSITIVE_INFINITY) {
    this.#sent = this.#life = this.#ticked = now;
    this.#pingMs = Math.min(PING_MS, keepAliveMs / 2);
  }

  /** Handle a packet that was sent. */
  sent(now: number, wantsAnswer: boolean): void {
    this.#sent = now;
    if (wantsAnswer) this.#owed ??= now;
  }

  /** Handle bytes that were received. */
  received(now: number): void {
    this.#life = now;
  }

  /** Handle an answer; `open` is how many others are owed. */
  answered(now: number, open: number): void {
    this.#owed = open > 0 ? now : undefined;
  }

  /**
   * Return what to do now, once a second.
   *
   * @param now The clock's reading.
   * @param unsent Bytes that wait in this process's buffers.
   */
  tick(now: number, unsent: number): Verdict {
    const halted = now - this.#ticked > HALTED_MS;
    this.#ticked = now;
    if (halted || unsent < this.#unsent) this.#life = now;
    this.#unsent = unsent;
    const owed = this.#owed !== undefined;
    if (this.#owed !== undefined && now - Math.max(this.#owed, this.#life) > DEAD_MS) return "dead";
    return now - (owed ? this.#sent : Math.min(this.#sent, this.#life)) >= this.#pingMs ? "ping" : "alive";
  }
}
