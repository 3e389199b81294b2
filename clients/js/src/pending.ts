/**
 * The requests of a client without an outcome: a pure state machine without timers, promises or a link.
 *
 * Its owner reports each event with the clock's reading in milliseconds, and then calls `take`: that returns the requests to
 * publish now, and those that ended without a reply. A request leaves the table exactly once, and whoever takes it out owns
 * its one outcome.
 *
 * A request is sent again if nobody subscribed (PUBACK 0x10), a worker was busy or lost, the connection was lost, it or its reply
 * was damaged, or no reply came in time. The last two may be a tenth of all requests (and 16 at once), so that a slow system is
 * not flooded; the others are bounded by the window and by patience.
 */

import { Expired, type MqinferError, NotAuthorized, NotConnected, NoWorker, Poison, Rejected } from "./errors.js";
import { RetryBudget } from "./requests/budget.js";
import { Channels } from "./requests/channels.js";
import { type Asked, type Entry, newEntry } from "./requests/entry.js";
import type { Outcome, Reply } from "./types.js";

/** Reason codes of a PUBACK. */
const NO_SUBSCRIBERS = 0x10;
const NOT_AUTHORIZED = 0x87;
/** A pause before a request that the retry budget held back is tried again. */
const NO_BUDGET_MS = 100;
/** A request that was turned away is sent again after this at the latest. */
const LONGEST_PAUSE_MS = 1_000;

/** A request that was in flight at a second loss waits so long: in this time the reports of crashes come. */
const SET_ASIDE_MS = 2_000;
/** Workers that may crash on a request; it is sent to no further one. */
const MOST_CRASHES = 2;

/** How requests are sent. Times in milliseconds. */
export interface PendingOptions {
  /** Requests in flight at a time. */
  readonly window: number;
  /** Requests without an outcome at a time. */
  readonly maxPending: number;
  /** How long a request that finds no worker, or only busy ones, is sent again. */
  readonly patienceMs: number;
  /** Time after a reconnection, or the loss of a worker, during which patience does not end: workers need time, too. */
  readonly settlingMs: number;
  /** The pause before such a request is sent again first; doubled each time, at most one second. */
  readonly backoffMs: number;
}

export const DEFAULT_PENDING: PendingOptions = {
  window: 16,
  maxPending: 1_024,
  patienceMs: 2_000,
  settlingMs: 6_000,
  backoffMs: 20,
};

/** A request that got no reply, and why. */
export interface Ended {
  readonly entry: Entry;
  readonly error: MqinferError;
}

/** What the owner does next. */
export interface Step {
  /** To publish now, each as its attempt number `attempts`. */
  readonly send: readonly Entry[];
  readonly ended: readonly Ended[];
}

/** What became of all requests; `submitted` is `pending` and all outcomes together. */
export interface Counters {
  readonly submitted: number;
  readonly pending: number;
  readonly inFlight: number;
  readonly outcomes: Readonly<Record<Outcome, number>>;
  /** Publications beyond each request's first. */
  readonly retries: number;
  /** Retries that the budget delayed. */
  readonly withheld: number;
  /** Replies to requests that already had an outcome, duplicates among them. */
  readonly late: number;
  /** Replies on another topic, of another model or version, or to a later attempt than was sent. */
  readonly mismatched: number;
}

export class PendingTable {
  /** When `take` has something to do, though no event came; infinite for never. */
  wakeAt = Number.POSITIVE_INFINITY;
  readonly #options: PendingOptions;
  readonly #insteadOf: (model: string, version?: string) => string;
  readonly #entries = new Map<string, Entry>();
  readonly #channels = new Channels();
  readonly #budget = new RetryBudget();
  readonly #outcomes: Record<Outcome, number> = {
    ok: 0,
    error: 0,
    expired: 0,
    superseded: 0,
    rejected: 0,
    cancelled: 0,
  };
  #ended: Ended[] = [];
  #inFlight = 0;
  #submitted = 0;
  #retries = 0;
  #withheld = 0;
  #late = 0;
  #mismatched = 0;
  #wasLost = false;
  #settledBy = Number.NEGATIVE_INFINITY;

  /**
   * @param insteadOf What else there is, for the message where no worker serves a model.
   */
  constructor(
    options: Partial<PendingOptions> = {},
    insteadOf: (model: string, version?: string) => string = () => "",
  ) {
    this.#options = { ...DEFAULT_PENDING, ...options };
    this.#insteadOf = insteadOf;
  }

  counters(): Counters {
    return {
      submitted: this.#submitted,
      pending: this.#entries.size,
      inFlight: this.#inFlight,
      outcomes: { ...this.#outcomes },
      retries: this.#retries,
      withheld: this.#withheld,
      late: this.#late,
      mismatched: this.#mismatched,
    };
  }

  /**
   * Accept a request; it is queued.
   *
   * @throws Rejected: As many are pending as may be. It counts as submitted all the same.
   */
  add(asked: Asked, now: number, timeoutMs: number): Entry {
    this.#submitted += 1;
    if (this.#entries.size >= this.#options.maxPending) {
      this.#outcomes.rejected += 1;
      throw new Rejected(`${this.#options.maxPending} requests are pending; wait for a result before you send more`);
    }
    const entry = newEntry(asked, now, timeoutMs);
    this.#entries.set(entry.id, entry);
    this.#channels.add(entry);
    this.#wakeBy(entry.deadline);
    return entry;
  }

  /**
   * Return what follows from the events so far, and from the time.
   *
   * @param now The clock's reading.
   * @param connected Whether anything can be published.
   */
  take(now: number, connected: boolean): Step {
    if (now >= this.wakeAt) this.#onTime(now);
    const send: Entry[] = [];
    while (connected && this.#inFlight < this.#options.window) {
      const entry = this.#channels.next(now);
      if (entry === undefined) break;
      this.#launch(entry, now);
      send.push(entry);
    }
    if (connected && this.#inFlight < this.#options.window) this.#wakeBy(this.#channels.opensAt());
    const ended = this.#ended;
    this.#ended = [];
    return { send, ended };
  }

  /** Handle the reason code of the PUBACK to an attempt. Success is no promise of a reply. */
  acked(entry: Entry, attempt: number, code: number, now: number): void {
    if (code === 0 || !isCurrent(entry, attempt)) return;
    if (code === NO_SUBSCRIBERS) this.#unserved(entry, now);
    else if (code === NOT_AUTHORIZED) {
      const hint = "where access rules apply, the client's name must be that of its login";
      this.#end(entry, new NotAuthorized(`the broker does not allow this client to ask model ${entry.model}; ${hint}`));
    } else this.#refused(entry, `the broker turned it away with reason code 0x${code.toString(16)}`, now, 0);
  }

  /** Handle an attempt that can't be published: without a connection it is tried again, else the request ends. */
  unsent(entry: Entry, attempt: number, error: MqinferError, now: number): void {
    if (!isCurrent(entry, attempt)) return;
    if (error instanceof NotConnected) this.#backOff(entry, now + this.#options.backoffMs);
    else this.#end(entry, error);
  }

  /**
   * Handle a reply.
   *
   * @param reply What was decoded.
   * @param topic Where it came.
   * @param now The clock's reading.
   * @returns The request, which ends with this reply; undefined where the reply is late, belongs to no request, or turned
   *   the request away, which is sent again.
   */
  replied(reply: Reply, topic: string, now: number): Entry | undefined {
    const entry = this.#entries.get(reply.id);
    if (entry === undefined) {
      this.#late += 1;
      return undefined;
    }
    if (!belongs(entry, reply, topic)) {
      this.#mismatched += 1;
      return undefined;
    }
    this.#channels.open(entry.channel);
    if (reply.outcome === "rejected") {
      this.#rejected(entry, reply, now);
      return undefined;
    }
    if (entry.place === "in_flight") this.#channels.measure(entry.model, now - entry.sent);
    this.#remove(entry);
    return entry;
  }

  /** Count the outcome of a request that a reply has ended. */
  settled(outcome: Outcome): void {
    this.#outcomes[outcome] += 1;
  }

  /** Handle a damaged request or reply: sent again where the budget allows. The id may be damaged, and belong to another. */
  corrupted(id: string): void {
    const entry = this.#entries.get(id);
    if (entry?.place === "in_flight") this.#retry(entry);
  }

  /** End a request for its caller; return undefined where it has its outcome already. */
  cancel(id: string): Entry | undefined {
    const entry = this.#entries.get(id);
    if (entry === undefined) return undefined;
    this.#remove(entry);
    this.#outcomes.cancelled += 1;
    return entry;
  }

  /** Queue everything in flight again: the connection was lost. */
  disconnected(): void {
    this.#wasLost = true;
    this.#channels.openAll();
    for (const entry of this.#newestInFlight()) this.#requeue(entry);
    for (const entry of this.#entries.values()) entry.refusedSince = undefined;
  }

  /**
   * Handle the loss of a worker. Nobody knows which requests it had, so all that are in flight to its models are sent again; a
   * worker that has one already ignores the second.
   */
  workerLost(models: readonly string[], now: number): void {
    const served = new Set(models);
    this.#settledBy = Math.max(this.#settledBy, now + this.#options.settlingMs);
    for (const entry of this.#newestInFlight()) {
      if (!served.has(entry.model)) continue;
      entry.losses += 1;
      if (entry.losses === 1) this.#requeue(entry);
      else this.#backOff(entry, now + SET_ASIDE_MS);
    }
  }

  /** Handle a report of the requests that a worker worked on when it crashed: the second crash ends one. */
  crashedOn(ids: readonly string[]): void {
    for (const id of ids) {
      const entry = this.#entries.get(id);
      if (entry === undefined) continue;
      entry.crashes += 1;
      if (entry.crashes < MOST_CRASHES) continue;
      this.#end(
        entry,
        new Poison(`${MOST_CRASHES} workers crashed while they ran this request; it is sent to no other`),
      );
    }
  }

  /** Handle a connection: after a loss patience does not end before workers had time to reconnect, too. */
  connected(now: number): void {
    if (this.#wasLost) this.#settledBy = now + this.#options.settlingMs;
  }

  /** End every request, and return them: the client closes, or will never be connected again. */
  drain(error: MqinferError): readonly Ended[] {
    for (const entry of this.#entries.values()) this.#end(entry, error);
    const ended = this.#ended;
    this.#ended = [];
    this.wakeAt = Number.POSITIVE_INFINITY;
    return ended;
  }

  /** Handle what is due, and find out what is due next. */
  #onTime(now: number): void {
    this.wakeAt = Number.POSITIVE_INFINITY;
    this.#channels.forget(now);
    for (const entry of this.#entries.values()) {
      if (entry.deadline <= now) {
        this.#end(entry, expiry(entry));
        continue;
      }
      if (entry.place === "backing_off" && entry.resumeAt <= now) this.#requeue(entry);
      if (entry.place === "in_flight" && entry.retryAt <= now && !this.#retry(entry))
        entry.retryAt = now + NO_BUDGET_MS;
      this.#wakeBy(entry.deadline);
      if (entry.place === "in_flight") this.#wakeBy(entry.retryAt);
      if (entry.place === "backing_off") this.#wakeBy(entry.resumeAt);
    }
  }

  #launch(entry: Entry, now: number): void {
    entry.place = "in_flight";
    entry.attempts += 1;
    entry.sent = now;
    entry.retryAt = now + this.#channels.silence(entry.model);
    this.#inFlight += 1;
    this.#wakeBy(entry.retryAt);
    if (entry.attempts === 1) this.#budget.earn();
    else this.#retries += 1;
  }

  /** Hold back all who ask for the model while there is patience, else end with `NoWorker`. */
  #unserved(entry: Entry, now: number): void {
    const since = this.#channels.close(entry.channel, now, this.#options.backoffMs);
    const patientUntil = Math.max(Math.max(since, entry.submitted) + this.#options.patienceMs, this.#settledBy);
    this.#channels.openAt(entry.channel, patientUntil);
    if (now < patientUntil) {
      entry.refusedSince ??= now;
      this.#requeue(entry);
    } else {
      const { model, version } = entry;
      const which = version === undefined ? model : `${model} in version ${version}`;
      const check = `start one, or check its name and version${this.#insteadOf(model, version)}`;
      this.#end(entry, new NoWorker(`no worker serves model ${which}; ${check}`));
    }
  }

  #rejected(entry: Entry, reply: Reply, now: number): void {
    if (reply.error?.code === "corrupted") this.corrupted(entry.id);
    else if (entry.place === "in_flight") {
      const stated = reply.parameters.retry_after;
      const pause = typeof stated === "number" && stated > 0 ? stated / 1_000 : 0;
      this.#refused(entry, reply.error?.message ?? "busy", now, pause);
    }
  }

  /** Send a request again later while there is patience, else end it as `rejected`. */
  #refused(entry: Entry, why: string, now: number, pause: number): void {
    entry.refusedSince ??= now;
    const patientUntil = Math.max(entry.refusedSince + this.#options.patienceMs, this.#settledBy);
    if (now >= patientUntil) {
      this.#end(entry, new Rejected(why));
      return;
    }
    const backoff = this.#options.backoffMs * 2 ** Math.min(entry.attempts - 1, 30);
    this.#backOff(entry, Math.min(now + Math.min(Math.max(backoff, pause), LONGEST_PAUSE_MS), patientUntil));
  }

  /** Send a request in flight again at once if the budget allows it. */
  #retry(entry: Entry): boolean {
    if (!this.#budget.spend()) {
      this.#withheld += 1;
      return false;
    }
    this.#requeue(entry);
    return true;
  }

  /** List what is in flight, newest first: queued again in this order, the oldest ends up first. */
  #newestInFlight(): readonly Entry[] {
    return [...this.#entries.values()].filter((entry) => entry.place === "in_flight").reverse();
  }

  #requeue(entry: Entry): void {
    if (entry.place === "in_flight") this.#inFlight -= 1;
    else if (entry.place !== "backing_off") return;
    entry.place = "queued";
    this.#channels.add(entry, true);
  }

  #backOff(entry: Entry, until: number): void {
    if (entry.place === "in_flight") this.#inFlight -= 1;
    entry.place = "backing_off";
    entry.resumeAt = until;
    this.#wakeBy(until);
  }

  #end(entry: Entry, error: MqinferError): void {
    this.#remove(entry);
    this.#outcomes[outcomeOf(error)] += 1;
    this.#ended.push({ entry, error });
  }

  #remove(entry: Entry): void {
    this.#entries.delete(entry.id);
    if (entry.place === "in_flight") this.#inFlight -= 1;
    else if (entry.place === "queued") this.#channels.remove(entry);
    entry.place = "ended";
  }

  #wakeBy(time: number): void {
    this.wakeAt = Math.min(this.wakeAt, time);
  }
}

/** Return the outcome that an error stands for. */
export function outcomeOf(error: MqinferError): Outcome {
  const { code } = error;
  return code === "expired" || code === "rejected" || code === "cancelled" || code === "superseded" ? code : "error";
}

/** Return whether an attempt is the last one, and still without an answer. */
function isCurrent(entry: Entry, attempt: number): boolean {
  return entry.place === "in_flight" && entry.attempts === attempt;
}

/** Return whether a reply is of the model and version that were asked, and came where it was to come. */
function belongs(entry: Entry, reply: Reply, topic: string): boolean {
  return (
    topic === entry.responseTopic &&
    reply.modelName === entry.model &&
    reply.attempt <= entry.attempts &&
    (entry.version === undefined || entry.version === reply.modelVersion || reply.outcome !== "ok")
  );
}

function expiry(entry: Entry): Expired {
  const seconds = (entry.deadline - entry.submitted) / 1_000;
  if (entry.attempts === 0) {
    return new Expired(`expired after ${seconds} s before it could be sent (window full, or not connected)`);
  }
  const turnedAway = entry.refusedSince === undefined ? "" : "; it was turned away (no worker, or busy ones)";
  return new Expired(`no reply within ${seconds} s and ${entry.attempts} attempts${turnedAway}`);
}
