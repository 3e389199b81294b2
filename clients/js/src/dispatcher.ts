/**
 * What happens to requests between their submission and their outcome: a pure state machine without timers, promises or a link.
 *
 * Its owner reports each event with the clock's reading in milliseconds, and then calls `take`: that returns the requests to
 * publish now, and those that ended without a reply. The rules are those of Python's dispatcher (mqinfer/client/dispatch).
 *
 * A request is sent again if its worker was lost or stopped, nobody subscribed (PUBACK 0x10), a worker was busy, the connection was
 * lost, it or its reply was damaged, or no reply came in time. The last two may be a tenth of all requests (and 16 at once), so
 * that a slow system is not flooded; the others are bounded by the window and by patience.
 */

import { checksum } from "./checksum.js";
import { Expired, type MqinferError, NotAuthorized, NotConnected, NoWorker, Poison, Rejected } from "./errors.js";
import { OUTCOMES } from "./header.js";
import { Blame } from "./requests/blame.js";
import { RetryBudget } from "./requests/budget.js";
import { type Asked, type Entry, newEntry } from "./requests/entry.js";
import { type Destination, Fleet } from "./requests/fleet.js";
import { CANARY, channelOf, doubled, type Lane, LONGEST_PAUSE_MS, SILENCE, startOf } from "./requests/lane.js";
import { isMistyped, servedInstead } from "./requests/served.js";
import { PendingTable } from "./requests/table.js";
import type { WorkerState } from "./states/states.js";
import type { Outcome, Reply } from "./types.js";

/** Reason codes of a PUBACK. */
const NO_SUBSCRIBERS = 0x10;
const NOT_AUTHORIZED = 0x87;
/** A pause before a request that the retry budget held back is tried again. */
const NO_BUDGET_MS = 100;
const NO_LANES: ReadonlySet<Lane> = new Set();

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

export class Dispatcher {
  /** When `take` has something to do, though no event came; infinite for never. */
  wakeAt = Number.POSITIVE_INFINITY;
  readonly #options: PendingOptions;
  readonly #table = new PendingTable();
  readonly #fleet = new Fleet();
  readonly #blame = new Blame(this.#table, this.#fleet);
  readonly #budget = new RetryBudget();
  readonly #outcomes = noOutcomes();
  #ended: Ended[] = [];
  #checkAt = Number.POSITIVE_INFINITY;
  #submitted = 0;
  #withheld = 0;
  #late = 0;
  #mismatched = 0;
  #wasLost = false;
  #settledBy = Number.NEGATIVE_INFINITY;

  constructor(options: Partial<PendingOptions> = {}) {
    this.#options = { ...DEFAULT_PENDING, ...options };
  }

  counters(): Counters {
    return {
      submitted: this.#submitted,
      pending: this.#table.entries.size,
      inFlight: this.#table.inFlight.size,
      outcomes: { ...this.#outcomes },
      retries: this.#table.retries,
      withheld: this.#withheld,
      late: this.#late,
      mismatched: this.#mismatched,
    };
  }

  /** Return what workers serve in place of a model that is not served, for a message. */
  insteadOf(model: string, version?: string): string {
    return servedInstead(this.#fleet.served(), model, version);
  }

  /** Return whether no worker serves a model, and one serves a model whose name is nearly the same. */
  isMistyped(model: string): boolean {
    return isMistyped(this.#fleet.served(), model);
  }

  /**
   * Accept a request; it is queued.
   *
   * @throws Rejected: As many are pending as may be. It counts as submitted all the same.
   */
  add(asked: Asked, now: number, timeoutMs: number): Entry {
    this.#submitted += 1;
    if (this.#table.entries.size >= this.#options.maxPending) {
      this.#outcomes.rejected += 1;
      throw new Rejected(`${this.#options.maxPending} requests are pending; wait for a result before you send more`);
    }
    const { id, model, version } = asked;
    const share = version === undefined ? this.#fleet.share(model) : 0;
    const isForCanary = share > 0 && isChosen(id, share);
    const entry = newEntry(asked, channelOf(model, isForCanary ? CANARY : version), now, timeoutMs);
    this.#table.add(entry);
    this.wakeAt = Math.min(this.wakeAt, entry.deadline);
    return entry;
  }

  /**
   * Return what follows from the events so far, and from the time.
   *
   * @param now The clock's reading.
   * @param connected Whether anything can be published.
   */
  take(now: number, connected: boolean): Step {
    const table = this.#table;
    if (table.wakesAt <= now) this.#wake(now);
    if (this.#checkAt <= now) this.#retryOverdue(now);
    const send: Entry[] = [];
    const hasRoom = () =>
      connected && table.queues.size > 0 && table.inFlight.size - table.withheld.size < this.#options.window;
    while (hasRoom()) {
      const entry = this.#launchNext(now);
      if (entry === undefined) break;
      send.push(entry);
    }
    this.wakeAt = Math.min(
      this.#checkAt,
      table.wakesAt,
      hasRoom() ? this.#fleet.nextOpening(now) : Number.POSITIVE_INFINITY,
    );
    const ended = this.#ended;
    this.#ended = [];
    return { send, ended };
  }

  /** Handle the reason code of the PUBACK to an attempt. Success is no promise of a reply. */
  acked(entry: Entry, attempt: number, code: number, now: number): void {
    if (code === 0) entry.acknowledged = attempt;
    else if (entry.place !== "in_flight" || entry.attempts !== attempt) return;
    else if (entry.lane && (code === NO_SUBSCRIBERS || code === NOT_AUTHORIZED)) {
      entry.lane.open = false; // until its next state: it does not subscribe any more
      this.#table.requeue(entry);
    } else if (code === NO_SUBSCRIBERS) this.#unserved(entry, now);
    else if (code === NOT_AUTHORIZED) {
      const hint = "where access rules apply, the client's name must be that of its login";
      this.#end(entry, new NotAuthorized(`the broker does not allow this client to ask model ${entry.model}; ${hint}`));
    } else this.#refused(entry, `the broker turned it away with reason code 0x${code.toString(16)}`, now, 0);
  }

  /** Handle an attempt that can't be published: without a connection it is tried again, else the request ends. */
  unsent(entry: Entry, attempt: number, error: MqinferError, now: number): void {
    if (entry.attempts !== attempt) return;
    if (!(error instanceof NotConnected)) this.#end(entry, error);
    else if (entry.place === "in_flight") this.#table.backOff(entry, now + this.#options.backoffMs);
  }

  /**
   * Handle a reply, and what it reports of its worker.
   *
   * @param reply What was decoded.
   * @param topic Where it came.
   * @param now The clock's reading.
   * @returns The request, which ends with this reply; undefined where the reply is late, belongs to no request, or turned
   *   the request away, which is sent again.
   */
  replied(reply: Reply, topic: string, now: number): Entry | undefined {
    const entry = this.#table.entries.get(reply.id);
    if (entry === undefined) {
      this.#late += 1;
    } else if (!belongs(entry, reply, topic)) {
      this.#mismatched += 1;
      return undefined;
    } else if (reply.outcome === "rejected") {
      this.#rejected(entry, reply, now);
      return undefined;
    } else if (entry.place === "in_flight") {
      if (entry.lane === undefined) this.#fleet.channels.replied(entry.model, now - entry.sent);
      else if (entry.lane.worker === reply.worker) entry.lane.measure(now - entry.sent, reply.timings);
    }
    this.#updateLoad(reply, entry, now);
    return entry && this.#table.remove(entry.id);
  }

  /** Count the outcome of a request that a reply has ended. */
  settled(outcome: Outcome): void {
    this.#outcomes[outcome] += 1;
  }

  /** Handle a damaged request or reply: sent again where the budget allows. The id may be damaged, and belong to another. */
  corrupted(id: string): void {
    const entry = this.#table.inFlight.get(id);
    if (entry !== undefined) this.#retry(entry);
  }

  /** End a request for its caller; return undefined where it has its outcome already. */
  cancel(id: string, outcome: "cancelled" | "superseded" = "cancelled"): Entry | undefined {
    const entry = this.#table.remove(id);
    if (entry !== undefined) this.#outcomes[outcome] += 1;
    return entry;
  }

  /** Return which of a stream's requests, oldest first, a newer one may take the place of; undefined where there is none. */
  replaceable(ids: Iterable<string>, now: number, connected: boolean): string | undefined {
    return this.#table.replaceable(ids, now, connected);
  }

  /**
   * Handle a worker's state; what a lost or stopped worker had is sent elsewhere, unless it may be poison.
   *
   * @param state What it, its server, or the broker on its behalf published; undefined where that was removed.
   */
  update(worker: string, state: WorkerState | undefined, now: number): void {
    const start = startOf(worker, state?.boot ?? 0);
    if (state?.status === "ready") this.#blame.isBack(start);
    const lane = state === undefined ? this.#fleet.remove(worker) : this.#fleet.update(state);
    const recalled = lane ? this.#table.recall(lane) : [];
    if (lane && state && state.status !== "stopped") this.#blame.lost(lane, recalled, now);
    if (state?.status !== "crashed") return;
    for (const entry of this.#blame.crashed(start, state.running, now)) this.#end(entry, poison(entry));
  }

  /** Drop the workers, and queue everything in flight again: the connection was lost. */
  disconnected(): void {
    this.#wasLost = true;
    this.#fleet.clear();
    this.#table.recall();
    for (const entry of this.#table.entries.values()) {
      entry.refusedSince = undefined;
      entry.lostOn = new Set(entry.crashedOn); // wills of that connection are void, the servers' reports are not
    }
  }

  /** Handle a connection: after a loss patience does not end before workers had time to reconnect, too. */
  connected(now: number): void {
    if (this.#wasLost) this.#settledBy = now + this.#options.settlingMs;
  }

  /** End every request, and return them: the client closes, or will never be connected again. */
  drain(error: MqinferError): readonly Ended[] {
    for (const entry of [...this.#table.entries.values()]) this.#end(entry, error);
    const ended = this.#ended;
    this.#ended = [];
    this.#checkAt = this.wakeAt = Number.POSITIVE_INFINITY;
    return ended;
  }

  /** End what has expired; what backed off is queued again, unless workers that may still crash on it have it. */
  #wake(now: number): void {
    for (const entry of this.#table.wake(now)) {
      if (entry.place === "ended") this.#recordEnd(entry, expiry(entry));
      else if (this.#blame.holds(entry)) this.#table.backOff(entry, now + SILENCE.attemptMs);
    }
  }

  /** Move the next request into the window: the first that can go, of the first channel that has one. */
  #launchNext(now: number): Entry | undefined {
    for (const queue of this.#table.queues.values()) {
      const [first] = queue.values();
      if (first === undefined) continue;
      const to = this.#destination(first, queue.size, now);
      const entry = firstFor(to, queue, first, now);
      if (entry === undefined) continue;
      const lane = typeof to === "string" ? undefined : to;
      this.#table.launch(entry, lane, now);
      entry.dueAt = lane
        ? this.#fleet.sent(entry.id, lane, now)
        : this.#fleet.channels.sent(entry.channel, entry.model, now);
      this.#checkAt = Math.min(this.#checkAt, entry.dueAt);
      if (entry.attempts === 1) this.#budget.earn();
      return entry;
    }
    return undefined;
  }

  /**
   * Return where the first request of a channel's queue goes: to the worker that is expected to finish first or, of a canary
   * whose workers are silent or have more queued than they take, to the default version.
   *
   * A request that a worker was lost with does not go where another such request is: one would be blamed for the other.
   */
  #destination({ channel, model, deadline, lostOn }: Entry, queued: number, now: number): Destination {
    const avoid = lostOn.size > 0 ? new Set(this.#blame.suspectLanes()) : NO_LANES;
    const to = this.#fleet.choose(channel, now, queued, avoid, deadline);
    const isCanary = channel === channelOf(model, CANARY);
    if (isCanary && typeof to === "string" && this.#fleet.fallsBack(channel, now, queued))
      return this.#fleet.choose(channelOf(model), now, 1, avoid, deadline);
    return to;
  }

  /** Hold back all who ask for the model while there is patience, else end with `NoWorker`. */
  #unserved(entry: Entry, now: number): void {
    const since = this.#fleet.channels.close(entry.channel, now, this.#options.backoffMs);
    const patientUntil = Math.max(Math.max(since, entry.submitted) + this.#options.patienceMs, this.#settledBy);
    this.#fleet.channels.reopen(entry.channel, patientUntil);
    if (now < patientUntil) {
      entry.refusedSince = since;
      this.#table.requeue(entry);
    } else {
      const { model, version } = entry;
      const which = version === undefined ? model : `${model} in version ${version}`;
      const check = `start one, or check its name and version${this.insteadOf(model, version)}`;
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

  /** Store what a reply reports of the worker it names, unless another one had the request. */
  #updateLoad(reply: Reply, entry: Entry | undefined, now: number): void {
    const lane = entry?.lane?.worker === reply.worker ? entry.lane : this.#fleet.lane(reply.worker);
    const hadIt = lane?.answered(reply.id);
    if (hadIt || (entry && entry.lane === undefined)) lane?.updateLoad(reply.load, now);
  }

  /** Send a request again later while there is patience, else end it as `rejected`. */
  #refused(entry: Entry, why: string, now: number, pause: number): void {
    entry.refusedSince ??= now;
    const patientUntil = Math.max(entry.refusedSince + this.#options.patienceMs, this.#settledBy);
    if (now >= patientUntil) this.#end(entry, new Rejected(why));
    else if (entry.lane) {
      entry.lane.pause(now, pause);
      this.#table.requeue(entry);
    } else {
      const backoff = doubled(this.#options.backoffMs, entry.attempts - 1, LONGEST_PAUSE_MS);
      this.#table.backOff(entry, Math.min(now + backoff, patientUntil));
    }
  }

  /** Send again what got no reply in time, and nothing more to the workers that were silent. */
  #retryOverdue(now: number): void {
    const overdue = this.#table.overdue(now).filter((entry) => !this.#isOnlySlow(entry, now));
    // One that the budget holds back speaks against its worker once: it is looked at again and again.
    const silent = overdue.filter((entry) => !this.#table.withheld.has(entry.id)).map((entry) => entry.lane);
    for (const lane of new Set(silent)) lane?.quarantine(now);
    for (const entry of overdue) {
      const { lane } = entry;
      if (lane && (entry.silent.get(lane) ?? Number.NEGATIVE_INFINITY) < entry.sent) entry.silent.set(lane, now);
      if (this.#blame.holds(entry)) entry.dueAt = now + SILENCE.attemptMs;
      else if (!this.#retry(entry)) entry.dueAt = now + NO_BUDGET_MS;
    }
    this.#checkAt = this.#table.nextOverdue();
  }

  /** Send a request again at once if the budget allows it; else free its place, though the reply may come. */
  #retry(entry: Entry): boolean {
    if (this.#budget.spend()) return this.#table.requeue(entry);
    if (!this.#table.withheld.has(entry.id)) this.#withheld += 1;
    if (entry.lane) {
      this.#table.withheld.add(entry.id);
      entry.lane.land(entry.id);
    }
    return false;
  }

  /** Extend a request's time, and return true, where its worker answers others: on a slow link all come late. */
  #isOnlySlow(entry: Entry, now: number): boolean {
    if (!entry.lane?.hasJustReplied(now) || now - entry.sent >= SILENCE.attemptUnknownMs) return false;
    entry.dueAt = now + SILENCE.attemptMs;
    return true;
  }

  #end(entry: Entry, error: MqinferError): void {
    if (this.#table.remove(entry.id)) this.#recordEnd(entry, error);
  }

  #recordEnd(entry: Entry, error: MqinferError): void {
    this.#outcomes[outcomeOf(error)] += 1;
    this.#ended.push({ entry, error });
  }
}

/** Return 0 for each outcome, to count from. */
export function noOutcomes(): Record<Outcome, number> {
  return Object.fromEntries(OUTCOMES.map((each) => [each, 0])) as Record<Outcome, number>;
}

/** Return the outcome that an error stands for. */
export function outcomeOf(error: MqinferError): Outcome {
  const { code } = error;
  return code === "expired" || code === "rejected" || code === "cancelled" || code === "superseded" ? code : "error";
}

/** Return whether a request that names no version goes to the canary; all clients decide alike. */
function isChosen(id: string, share: number): boolean {
  return BigInt(`0x${checksum(new TextEncoder().encode(id))}`) % 100n < share;
}

/**
 * Return which request of a queue goes where its first one would; undefined where none does.
 *
 * A model's channel gets no request that a worker was lost with: it would meet the next worker before that is known. A busy
 * worker gets the first that it would answer by its deadline; an idle one gets the first all the same, since it may be faster
 * than it was.
 */
function firstFor(to: Destination, queue: ReadonlyMap<string, Entry>, first: Entry, now: number): Entry | undefined {
  if (to === "wait" || (first.lostOn.size > 0 && to !== "shared")) return to === "wait" ? undefined : first;
  const finish = to === "shared" || to.inFlight.size === 0 ? Number.NEGATIVE_INFINITY : to.finish(now);
  for (const each of queue.values()) if (each.lostOn.size === 0 && each.deadline >= finish) return each;
  return undefined;
}

/** Return whether a reply is of the model, version and worker that were asked, and came where it was to come. */
function belongs(entry: Entry, reply: Reply, topic: string): boolean {
  const isVersion = entry.version === undefined || entry.version === reply.modelVersion || reply.outcome !== "ok";
  const isOfModel = topic === entry.responseTopic && reply.modelName === entry.model && isVersion;
  return isOfModel && reply.attempt <= entry.attempts && isOfWorker(entry, reply.worker);
}

function isOfWorker({ lane, earlier }: Entry, worker: string): boolean {
  if (lane === undefined || earlier.has("") || worker === "") return true;
  return worker === lane.worker || earlier.has(worker);
}

function poison(entry: Entry): Poison {
  const workers = [...entry.crashedOn].map((start) => start.slice(0, start.indexOf("/"))).sort();
  return new Poison(`the workers ${workers.join(", ")} crashed while they had it; it is sent to no other`);
}

function expiry(entry: Entry): Expired {
  const seconds = (entry.deadline - entry.submitted) / 1_000;
  if (entry.attempts === 0) {
    return new Expired(`expired after ${seconds} s before it could be sent (window full, or not connected)`);
  }
  const turnedAway = entry.refusedSince === undefined ? "" : "; it was turned away (no worker, or busy ones)";
  return new Expired(`no reply within ${seconds} s and ${entry.attempts} attempts${turnedAway}`);
}
