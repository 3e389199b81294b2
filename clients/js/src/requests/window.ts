/**
 * The window of one stream: how many of its frames are in flight, and which one enters next.
 *
 * The rules, and the reasons for each number, are those of Python's window (mqinfer/client/window.py). Pure: times are readings
 * of the owner's clock, in milliseconds.
 */

import type { Outcome, Timings } from "../types.js";
import { WEIGHT } from "./lane.js";
import { serverTime } from "./timings.js";

/** What happens to a frame that comes while the window is full: it takes the place of the one queued before, or waits. */
export type Policy = "latest" | "all";

const INCREASE = 0.2;
const BETA = 0.8;
const LEAST_FACTOR = 0.5;
const LEAST_TARGET_MS = 2;
/** With `latest` a frame may wait in queues for this share of the model's time. */
const FRESH_SHARE = 0.5;
const DRIFT = 0.02;

/** How many frames may be in flight: fewer while they wait in queues, one more from time to time while they don't. */
export class DelayWindow {
  limit = 1;
  readonly #most: number;
  readonly #share: number;
  #window = 1;
  #isSlowStart = true;
  #shortest = Number.POSITIVE_INFINITY;
  #decreasedAt = Number.NEGATIVE_INFINITY;
  #answeredAt = Number.NEGATIVE_INFINITY;
  #interval = 0;

  /** @param share Share of the model's time that a request may wait: 1 for throughput, less for freshness. */
  constructor(most: number, share: number) {
    this.#most = most;
    this.#share = share;
  }

  /** Adapt the window to a reply. */
  onReply(timings: Timings, now: number): void {
    const queued = timings.clientQueue / 1e6;
    const transit = timings.transmission / 1e6;
    const waited = timings.serverQueue / 1e6;
    const server = serverTime(timings) / 1e6;
    this.#shortest = Math.min(this.#shortest, transit);
    const delay = queued + waited + transit - this.#shortest;
    this.#shortest += DRIFT * (transit - this.#shortest);
    const total = queued + transit + server;
    const work = server - waited;
    // A stream with few requests has long pauses between replies; a request's own time bounds the interval.
    const interval = Math.min(now - this.#answeredAt, total);
    this.#interval += (interval - this.#interval) * (this.#interval ? WEIGHT : 1);
    this.#answeredAt = now;
    const target = Math.max(LEAST_TARGET_MS, this.#share * Math.max(work, this.#interval));
    if (delay <= target) {
      // Little's law: one worker takes at most total / work requests at a time without one that waits.
      const doubles = this.#isSlowStart && (this.#window * work < total - delay || this.#share >= 1);
      this.#window = Math.min(this.#window + (doubles ? 1 : INCREASE / this.#window), this.#most);
    } else if (now - this.#decreasedAt >= total) {
      this.#isSlowStart = false;
      this.#decreasedAt = now;
      // Of three the third one waits; the other two keep a thin link busy, so one decrease leaves them.
      const least = this.#window >= 3 ? 2 : 1;
      this.#window = Math.max(least, this.#window * Math.max(1 - (BETA * (delay - target)) / delay, LEAST_FACTOR));
    }
    this.limit = Math.max(1, Math.min(this.#most, Math.floor(this.#window)));
  }

  /** Start again from one: a request expired or was rejected. */
  onTimeout(): void {
    this.#window = 1;
    this.#isSlowStart = true;
    this.limit = 1;
  }
}

/** The frames of one stream that have no outcome yet: a queue, and how many are in flight. */
export class StreamWindow<Frame> {
  readonly #keepsNewest: boolean;
  readonly #window: DelayWindow;
  #inFlight = 0;
  #queue: Frame[] = [];

  constructor(policy: Policy, most: number, priority: number) {
    this.#keepsNewest = policy === "latest";
    this.#window = new DelayWindow(most, this.#keepsNewest && priority === 0 ? FRESH_SHARE : 1);
  }

  /** Whether a frame is queued that should take the place of an older one in flight. */
  get wantsRoom(): boolean {
    return this.#keepsNewest && this.#queue.length > 0;
  }

  /** Queue a frame; return the one that lost its place to it. */
  put(frame: Frame): Frame | undefined {
    const superseded = this.#keepsNewest ? this.#queue.shift() : undefined;
    this.#queue.push(frame);
    return superseded;
  }

  /** Remove and return the queued frames that the window has room for; they are in flight from now on. */
  take(): Frame[] {
    const entered = this.#queue.splice(0, Math.max(0, this.#window.limit - this.#inFlight));
    this.#inFlight += entered.length;
    return entered;
  }

  /** Count a frame out: it has its outcome, or a result was read that kept its place until then. */
  leave(): void {
    this.#inFlight -= 1;
  }

  /** Adapt the window to an outcome; a result keeps its place in the window until it is read. */
  finish(outcome: Outcome, timings: Timings | undefined, now: number): void {
    if (outcome === "ok" && timings) this.#window.onReply(timings, now);
    else {
      this.leave();
      if (outcome === "expired" || outcome === "rejected") this.#window.onTimeout();
    }
  }
}
