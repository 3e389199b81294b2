/**
 * The models' own channels, which a request takes where no worker is known: which of them nobody serves, and how long replies
 * usually take. Pure: times are readings of the owner's clock, in milliseconds.
 */

import { type Lane, LONGEST_PAUSE_MS, SILENCE, WEIGHT } from "./lane.js";

/** Models and channels of which something is kept; the oldest go first. */
const MOST = 1_024;

interface Unserved {
  readonly since: number;
  closedUntil: number;
  pause: number;
}

export class SharedChannels {
  readonly #unserved = new Map<string, Unserved>();
  readonly #usual = new Map<string, number>();

  /** Return whether nothing is sent there now, since nobody subscribed. */
  isClosed(channel: string, now: number): boolean {
    return now < (this.#unserved.get(channel)?.closedUntil ?? Number.NEGATIVE_INFINITY);
  }

  /** Record a request that is being sent; return when it counts as unanswered. */
  sent(channel: string, model: string, now: number): number {
    const unserved = this.#unserved.get(channel);
    if (unserved) unserved.closedUntil = now + unserved.pause; // one at a time while nobody is known to subscribe
    const usual = this.#usual.get(model);
    if (usual === undefined) return now + SILENCE.attemptUnknownMs;
    return now + Math.max(SILENCE.attemptSharedMs, SILENCE.attemptFactor * usual);
  }

  /** Record how long a reply took that came over a model's channel: somebody subscribes. */
  replied(model: string, ms: number): void {
    for (const channel of this.#unserved.keys()) if (channel.startsWith(`${model}/`)) this.#unserved.delete(channel);
    const usual = this.#usual.get(model) ?? ms;
    put(this.#usual, model, usual + WEIGHT * (ms - usual));
  }

  /** Close a channel that nobody subscribes to; return since when that is so. Each further pause is twice as long. */
  close(channel: string, now: number, pause: number): number {
    const unserved = this.#unserved.get(channel) ?? { since: now, closedUntil: now, pause };
    unserved.closedUntil = now + unserved.pause;
    unserved.pause = Math.min(2 * unserved.pause, LONGEST_PAUSE_MS);
    put(this.#unserved, channel, unserved);
    return unserved.since;
  }

  /** Allow the next attempt at a time, if it would not be sooner. */
  reopen(channel: string, at: number): void {
    const unserved = this.#unserved.get(channel);
    if (unserved) unserved.closedUntil = Math.min(unserved.closedUntil, at);
  }

  /** Open the channels that a worker serves, if it takes requests. */
  openFor(lane: Lane): void {
    if (!lane.open) return;
    for (const channel of this.#unserved.keys()) if (lane.serves(channel)) this.#unserved.delete(channel);
  }

  /** Return when the channels open again that were closed at a time. */
  openings(since: number): number[] {
    return [...this.#unserved.values()].map(({ closedUntil }) => closedUntil).filter((at) => at > since);
  }

  /** Open all of them: on a new connection nothing is known of their subscribers. */
  clear(): void {
    this.#unserved.clear();
  }
}

function put<Value>(known: Map<string, Value>, key: string, value: Value): void {
  known.delete(key);
  known.set(key, value);
  if (known.size > MOST) known.delete(known.keys().next().value as string);
}
