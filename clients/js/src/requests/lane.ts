/**
 * One worker as a client sees it: what it reported, what it owes, and when it would finish one request more.
 *
 * The rules, and the reasons for each number, are those of Python's dispatcher (mqinfer/client/dispatch). Pure: times are
 * readings of the owner's clock, in milliseconds.
 */

import type { ServedModel, WorkerState } from "../states/states.js";
import type { Reply, Timings } from "../types.js";
import { serverTime } from "./timings.js";

/** Stands for a version where a request names none and goes to the canary. */
export const CANARY = "canary";
/** A request that was turned away is sent again after this at the latest, and a channel without subscribers tried again. */
export const LONGEST_PAUSE_MS = 1_000;

/** When a worker's silence means something: in milliseconds, and as multiples of the expected time of a reply. */
export const SILENCE = {
  /** Then a worker gets nothing more. */
  doubtMs: 50,
  doubtFactor: 3,
  /** Then a request is sent to another one. */
  attemptMs: 1_000,
  attemptFactor: 3,
  /** The same where no worker is known to have it. */
  attemptSharedMs: 3_000,
  /** The same where nobody has said how long a request takes. */
  attemptUnknownMs: 10_000,
  /** A worker that let a request time out gets none for so long; doubled each time. */
  quarantineMs: 1_000,
  longestQuarantineMs: 30_000,
} as const;

/** Requests in flight at a worker until its first reply, which states how many it allows this client. */
const FIRST_LIMIT = 1;
const MARGIN = 1.25;
/** A reading counts as `MOST * transit` at most: a worker that was halted was not far away. */
const MOST = 3;
const MOST_UNANSWERED = 64;
/** Weight of the newest reading in what is smoothed. */
export const WEIGHT = 0.2;
const DOUBLINGS = 30;

export class Lane {
  readonly worker: string;
  boot = 0;
  models: readonly ServedModel[] = [];
  /** Whether it takes requests. */
  open = false;
  /** Requests of this client that may be in flight at it; 0 until it has stated that. */
  limit = 0;
  /** Smoothed time of one request; 0 while unknown. */
  service = 0;
  /** Time of the batch of its last reply. */
  run = 0;
  /** Depth that other clients caused, when it last replied. */
  others = 0;
  repliedAt = Number.NEGATIVE_INFINITY;
  /** How many requests this client had sent, to any worker, when this one last got one. */
  turn = 0;
  /** By request id: when it was sent, and how long its reply was expected to take. */
  readonly inFlight = new Map<string, { readonly at: number; readonly expected: number }>();
  /** The newest requests that left without its reply, which may still come. */
  readonly #unanswered = new Set<string>();
  /** Smoothed time that a request and its reply are on the network; 0 while unknown. */
  #transit = 0;
  #closedUntil = 0;
  /** How often it was quarantined since its last reply. */
  #strikes = 0;
  #quarantinedUntil = 0;

  constructor(worker: string) {
    this.worker = worker;
  }

  /** This start of the worker, for a set. */
  get start(): string {
    return startOf(this.worker, this.boot);
  }

  /** When it may get requests again, after it was busy or silent. */
  get opensAt(): number {
    return Math.max(this.#closedUntil, this.#quarantinedUntil);
  }

  /** Return whether requests of a channel are for it. */
  serves(channel: string): boolean {
    return this.models.some(
      ({ name, version, isDefault, share }) =>
        (isDefault && channel === channelOf(name)) ||
        (share > 0 && channel === channelOf(name, CANARY)) ||
        (version !== "" && channel === channelOf(name, version)),
    );
  }

  /** Return how long a request sent now would take in the worker. */
  expected(): number {
    return (this.inFlight.size + this.others + 1) * this.service;
  }

  /** Return when the reply to a request sent now should have come. */
  finish(now: number): number {
    return now + MARGIN * this.expected() + this.#transit;
  }

  /** Return whether it takes requests, and answers in the time that it should. */
  isUsable(now: number): boolean {
    if (!this.open || now < this.opensAt) return false;
    const [oldest] = this.inFlight.values();
    if (oldest === undefined) return true;
    const allowed = Math.max(SILENCE.doubtMs, SILENCE.doubtFactor * oldest.expected);
    return now - Math.max(oldest.at, this.repliedAt) <= (this.service ? allowed : SILENCE.attemptUnknownMs);
  }

  /** Return whether fewer requests of this client are in flight at it than it allows. */
  hasRoom(): boolean {
    if (this.#strikes > 0) return this.inFlight.size === 0; // one at a time until it replies
    return this.inFlight.size < (this.limit || FIRST_LIMIT);
  }

  /** Return whether it has answered something just now: then its other replies are slow, and not lost. */
  hasJustReplied(now: number): boolean {
    return now - this.repliedAt < SILENCE.attemptMs / 2;
  }

  /** Record a request that is being sent to it; return when that counts as unanswered. */
  sent(id: string, now: number): number {
    const expected = this.expected() + this.#transit;
    this.inFlight.set(id, { at: now, expected });
    return (
      now + (this.service ? Math.max(SILENCE.attemptMs, SILENCE.attemptFactor * expected) : SILENCE.attemptUnknownMs)
    );
  }

  /** Remove a request from those in flight without its reply. */
  land(id: string): void {
    if (!this.inFlight.delete(id)) return;
    this.#unanswered.add(id);
    if (this.#unanswered.size > MOST_UNANSWERED)
      this.#unanswered.delete(this.#unanswered.keys().next().value as string);
  }

  /** Remove a request whose reply came, however late; return whether it had it. */
  answered(id: string): boolean {
    return this.inFlight.delete(id) || this.#unanswered.delete(id);
  }

  /** Record the times of a reply. */
  measure(elapsed: number, timings: Timings): void {
    this.run = timings.inference / 1e6;
    const reading = Math.max(0, elapsed - serverTime(timings) / 1e6);
    if (this.#transit) {
      const bounded = Math.min(reading, Math.max(MOST * this.#transit, SILENCE.attemptMs / 2));
      this.#transit += WEIGHT * (bounded - this.#transit);
    } else this.#transit = reading;
  }

  /** Store what a reply reports: that the worker runs, and how busy it is. */
  updateLoad(load: Reply["load"], now: number): void {
    const { depth = 0, serviceTimeUs = 0, window = 0 } = load ?? {};
    this.repliedAt = now;
    this.#strikes = 0;
    this.#quarantinedUntil = 0;
    this.others = Math.max(0, depth - 1 - this.inFlight.size); // the depth counts the request that it answers
    this.service = serviceTimeUs / 1e3 || this.service;
    this.limit = window || this.limit;
  }

  /** Send it nothing for a time, since it turned a request away. */
  pause(now: number, stated: number): void {
    this.#closedUntil = Math.max(
      this.#closedUntil,
      now + Math.max(this.service, Math.min(stated, LONGEST_PAUSE_MS), 1),
    );
  }

  /** Send it nothing for a time, twice as long as the one before, since it was silent. */
  quarantine(now: number): void {
    this.#quarantinedUntil = now + doubled(SILENCE.quarantineMs, this.#strikes, SILENCE.longestQuarantineMs);
    this.#strikes += 1;
  }

  update(state: WorkerState): void {
    this.boot = state.boot;
    this.models = state.models;
    this.open = state.status === "ready";
    this.service = state.serviceTimeUs / 1e3 || this.service;
  }
}

/** Return model and version asked for as one name: requests of one channel wait for the same workers. */
export function channelOf(model: string, version = ""): string {
  return `${model}/${version}`;
}

export function startOf(worker: string, boot: number): string {
  return `${worker}/${boot}`;
}

/** Return `min(first * 2 ** times, most)`. */
export function doubled(first: number, times: number, most: number): number {
  return Math.min(first * 2 ** Math.min(times, DOUBLINGS), most);
}
