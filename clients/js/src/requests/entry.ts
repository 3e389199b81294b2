/** One request until its outcome. */

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
  /** Model and version: requests of one channel wait for the same workers. */
  readonly channel: string;
  readonly submitted: number;
  readonly deadline: number;
  place: Place;
  /** When it was published last. */
  sent: number;
  /** How often it was published. */
  attempts: number;
  /** When its last publication counts as unanswered. */
  retryAt: number;
  /** When it is queued again, while it backs off. */
  resumeAt: number;
  /** When it was turned away first on this connection. */
  refusedSince: number | undefined;
  /** How often a worker of its model was lost while it was in flight. */
  losses: number;
  /** How many workers crashed while they worked on it. */
  crashes: number;
}

export interface Asked {
  readonly id: string;
  readonly model: string;
  readonly version?: string | undefined;
  readonly responseTopic: string;
}

/** Return a new request, which is queued. */
export function newEntry({ id, model, version, responseTopic }: Asked, now: number, timeoutMs: number): Entry {
  return {
    id,
    model,
    version,
    responseTopic,
    channel: `${model}/${version ?? ""}`,
    submitted: now,
    deadline: now + timeoutMs,
    place: "queued",
    sent: now,
    attempts: 0,
    retryAt: Number.POSITIVE_INFINITY,
    resumeAt: Number.POSITIVE_INFINITY,
    refusedSince: undefined,
    losses: 0,
    crashes: 0,
  };
}
