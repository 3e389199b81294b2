/** One request until its outcome. */

import type { Lane } from "./lane.js";

/** Queued; in flight: published and unanswered; or it backs off until it is queued again. */
export type Place = "queued" | "in_flight" | "backing_off" | "ended";

/** All times are readings of the table's clock, in milliseconds. */
export interface Entry {
  readonly id: string;
  readonly model: string;
  /** The version that was asked for. */
  readonly version: string | undefined;
  /** Where its reply has to come. */
  readonly responseTopic: string;
  /** Model and version, or the canary: requests of one channel wait for the same workers. */
  readonly channel: string;
  readonly submitted: number;
  readonly deadline: number;
  place: Place;
  /** When it was published last. */
  sent: number;
  /** How often it was published. */
  attempts: number;
  /** The worker that it was sent to; undefined on its model's channel. */
  lane: Lane | undefined;
  /** When its last publication counts as unanswered or, while it backs off, when it is queued again. */
  dueAt: number;
  /** The last attempt that the broker acknowledged. */
  acknowledged: number;
  /** The workers of the attempts before; empty for the model's channel. */
  readonly earlier: Set<string>;
  /** When it was turned away first on this connection. */
  refusedSince: number | undefined;
  /** Starts of workers that were lost while they had it, and have not come back. */
  lostOn: Set<string>;
  /** Those of them whose processes have crashed. */
  readonly crashedOn: Set<string>;
  /** Workers that let an attempt time out, and when: they may still work on it. */
  readonly silent: Map<Lane, number>;
}

export interface Asked {
  readonly id: string;
  readonly model: string;
  readonly version?: string | undefined;
  readonly responseTopic: string;
}

/** Return a new request, which is queued. */
export function newEntry(
  { id, model, version, responseTopic }: Asked,
  channel: string,
  now: number,
  timeoutMs: number,
): Entry {
  return {
    id,
    model,
    version,
    responseTopic,
    channel,
    submitted: now,
    deadline: now + timeoutMs,
    place: "queued",
    sent: now,
    attempts: 0,
    lane: undefined,
    dueAt: Number.POSITIVE_INFINITY,
    acknowledged: 0,
    earlier: new Set(),
    refusedSince: undefined,
    lostOn: new Set(),
    crashedOn: new Set(),
    silent: new Map(),
  };
}
