/**
 * The models' shared channels: what waits for each, which of them nobody serves, and how long replies usually take.
 *
 * Pure: times are readings of the owner's clock, in milliseconds. What waits for one channel never holds up another.
 */

import type { Entry } from "./entry.js";

/** Least silence after which a request is sent again, and the same as a multiple of the usual time of a reply. */
const SILENCE_MS = 3_000;
const SILENCE_FACTOR = 3;
/** The silence where nothing is known of the model. */
const SILENCE_UNKNOWN_MS = 10_000;
/** A channel without subscribers is tried again after this at the latest. */
const LONGEST_PAUSE_MS = 1_000;
/** Weight of the newest reading in the usual time of a reply. */
const WEIGHT = 0.2;
/** Models of which the usual time is kept; the oldest go first. */
const MOST_MODELS = 1_024;

interface Unserved {
  readonly since: number;
  closedUntil: number;
  pause: number;
}

export class Channels {
  /** How many requests wait. */
  queued = 0;
  readonly #queues = new Map<string, Map<string, Entry>>();
  readonly #unserved = new Map<string, Unserved>();
  readonly #usual = new Map<string, number>();

  /** Queue a request behind the others of its channel, or before them. */
  add(entry: Entry, first = false): void {
    const queue = this.#queues.get(entry.channel);
    this.queued += 1;
    if (queue === undefined || first) this.#queues.set(entry.channel, new Map([[entry.id, entry], ...(queue ?? [])]));
    else queue.set(entry.id, entry);
  }

  /** Remove a request that waits. */
  remove(entry: Entry): void {
    const queue = this.#queues.get(entry.channel);
    if (!queue?.delete(entry.id)) return;
    this.queued -= 1;
    if (queue.size === 0) this.#queues.delete(entry.channel);
  }

  /** Remove and return the next request to send; channels take turns. Undefined where every one is empty or closed. */
  next(now: number): Entry | undefined {
    for (const [channel, queue] of this.#queues) {
      const unserved = this.#unserved.get(channel);
      if (unserved !== undefined && now < unserved.closedUntil) continue;
      const [entry] = queue.values();
      if (entry === undefined) continue;
      this.remove(entry);
      if (queue.size > 0) {
        this.#queues.delete(channel);
        this.#queues.set(channel, queue);
      }
      if (unserved !== undefined) unserved.closedUntil = now + unserved.pause; // one at a time, until one is answered
      return entry;
    }
    return undefined;
  }

  /** Return when a channel with requests opens again; infinite where none is closed. */
  opensAt(): number {
    let at = Number.POSITIVE_INFINITY;
    for (const [channel, { closedUntil }] of this.#unserved) {
      if (this.#queues.has(channel)) at = Math.min(at, closedUntil);
    }
    return at;
  }

  /** Close a channel that nobody subscribes to; return since when that is so. Each further pause is twice as long. */
  close(channel: string, now: number, pause: number): number {
    const unserved = this.#unserved.get(channel) ?? { since: now, closedUntil: now, pause };
    unserved.closedUntil = now + unserved.pause;
    unserved.pause = Math.min(2 * unserved.pause, LONGEST_PAUSE_MS);
    this.#unserved.set(channel, unserved);
    return unserved.since;
  }

  /** Open a channel at a time, if it would not open sooner. */
  openAt(channel: string, at: number): void {
    const unserved = this.#unserved.get(channel);
    if (unserved !== undefined) unserved.closedUntil = Math.min(unserved.closedUntil, at);
  }

  /** Open a channel: somebody has answered. */
  open(channel: string): void {
    this.#unserved.delete(channel);
  }

  /** Open all channels: nothing is known of them on a new connection. */
  openAll(): void {
    this.#unserved.clear();
  }

  /** Forget the closed channels that nothing waits for, since when the next request comes much may have changed. */
  forget(now: number): void {
    for (const [channel, { closedUntil }] of this.#unserved) {
      if (!this.#queues.has(channel) && now > closedUntil + LONGEST_PAUSE_MS) this.#unserved.delete(channel);
    }
  }

  /** Record how long a model took to reply. */
  measure(model: string, ms: number): void {
    const usual = this.#usual.get(model) ?? ms;
    this.#usual.delete(model);
    this.#usual.set(model, usual + WEIGHT * (ms - usual));
    if (this.#usual.size > MOST_MODELS) this.#usual.delete(this.#usual.keys().next().value as string);
  }

  /** Return after how long a request counts as unanswered. */
  silence(model: string): number {
    const usual = this.#usual.get(model);
    return usual === undefined ? SILENCE_UNKNOWN_MS : Math.max(SILENCE_MS, SILENCE_FACTOR * usual);
  }
}
