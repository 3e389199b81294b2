/**
 * The requests of a client without an outcome: pure bookkeeping with the owner's clock, in milliseconds.
 *
 * A request is queued, in flight, or backs off until it is queued again. It leaves the table exactly once, and whoever takes it
 * out owns its one outcome.
 */

import type { Entry } from "./entry.js";
import type { Lane } from "./lane.js";

export class PendingTable {
  /** All requests, in the order of submission. */
  readonly entries = new Map<string, Entry>();
  /** Those that are published and unanswered, in the order of publication. */
  readonly inFlight = new Map<string, Entry>();
  /** Those in flight that are overdue and that the retry budget holds back: they take no place in the window or at the worker. */
  readonly withheld = new Set<string>();
  /** Those that are queued, by channel: what waits for one need not wait for another. */
  readonly queues = new Map<string, Map<string, Entry>>();
  /** When `wake` has something to do; infinite for never. */
  wakesAt = Number.POSITIVE_INFINITY;
  retries = 0;

  add(entry: Entry): void {
    this.entries.set(entry.id, entry);
    this.#enqueue(entry);
    this.#wakeBy(entry.deadline);
  }

  /** Move a queued request into the window, to a worker or, without one, to its channel; channels take turns. */
  launch(entry: Entry, lane: Lane | undefined, now: number): void {
    this.#withdraw(entry);
    const queue = this.queues.get(entry.channel);
    if (queue !== undefined) {
      this.queues.delete(entry.channel);
      this.queues.set(entry.channel, queue);
    }
    if (entry.attempts > 0) {
      entry.earlier.add(entry.lane?.worker ?? "");
      this.retries += 1;
    }
    entry.attempts += 1;
    entry.sent = now;
    entry.lane = lane;
    entry.place = "in_flight";
    this.inFlight.set(entry.id, entry);
  }

  /** Remove a request for good; return undefined where it has its outcome already. */
  remove(id: string): Entry | undefined {
    const entry = this.entries.get(id);
    if (entry === undefined) return undefined;
    this.entries.delete(id);
    this.#withdraw(entry);
    entry.place = "ended";
    return entry;
  }

  /** Set a request aside, and queue it again later. */
  backOff(entry: Entry, until: number): void {
    if (!this.#withdraw(entry)) return;
    entry.place = "backing_off";
    entry.dueAt = until;
    this.#wakeBy(until);
  }

  /** Wait until then at least for what a request waits for: its reply, or to be queued again. */
  postpone(entry: Entry, until: number): void {
    entry.dueAt = Math.max(entry.dueAt, until);
  }

  /** Put a request in flight, or one that backs off, at the head of its queue; return false if it is neither. */
  requeue(entry: Entry): boolean {
    if (entry.place === "queued" || entry.place === "ended") return false;
    this.#withdraw(entry);
    this.#enqueue(entry, true);
    return true;
  }

  /** Put what is in flight back at the head of its queues: what was sent to a worker or, without one, everything. */
  recall(lane?: Lane): Entry[] {
    const recalled = [...this.inFlight.values()].filter((entry) => lane === undefined || entry.lane === lane);
    for (const entry of [...recalled].reverse()) this.requeue(entry);
    return recalled;
  }

  /**
   * Return the oldest of a stream's requests that a newer one may take the place of; undefined where there is none.
   *
   * That is one that waits to be sent or, at a worker that has fallen silent, behind another request of this client. The oldest
   * at each place stays, so that a stream that is always replaced still gets results; without a connection there are none, and
   * it goes, too. At a worker that answers in time nothing is replaced.
   */
  replaceable(ids: Iterable<string>, now: number, connected: boolean): string | undefined {
    let kept = !connected;
    for (const id of ids) {
      const entry = this.entries.get(id);
      if (entry === undefined) continue;
      if (entry.place !== "in_flight" || this.withheld.has(id)) {
        if (kept) return id;
        kept = true;
      } else if (entry.lane && !entry.lane.isUsable(now) && [...entry.lane.inFlight.keys()].indexOf(id) > 0) return id;
    }
    return undefined;
  }

  /** Return what is in flight and got no reply in the time of one attempt. */
  overdue(now: number): Entry[] {
    return [...this.inFlight.values()].filter((entry) => entry.dueAt <= now);
  }

  /** Return when the next request in flight is overdue; infinite where none is in flight. */
  nextOverdue(): number {
    let at = Number.POSITIVE_INFINITY;
    for (const { dueAt } of this.inFlight.values()) at = Math.min(at, dueAt);
    return at;
  }

  /** Return the requests that are due, in the order of their times: those that have expired are out, the others queued again. */
  wake(now: number): Entry[] {
    const due = [...this.entries.values()].filter((entry) => alarmOf(entry) <= now);
    for (const entry of due.sort((one, other) => alarmOf(one) - alarmOf(other))) {
      if (entry.deadline <= now) this.remove(entry.id);
      else this.#enqueue(entry);
    }
    this.wakesAt = Number.POSITIVE_INFINITY;
    for (const entry of this.entries.values()) this.#wakeBy(alarmOf(entry));
    return due;
  }

  #enqueue(entry: Entry, first = false): void {
    const queue = this.queues.get(entry.channel);
    entry.place = "queued";
    if (queue === undefined || first) this.queues.set(entry.channel, new Map([[entry.id, entry], ...(queue ?? [])]));
    else queue.set(entry.id, entry);
  }

  /** Remove a request from those in flight or queued; return false if it is among neither. */
  #withdraw(entry: Entry): boolean {
    if (entry.place === "in_flight") {
      this.inFlight.delete(entry.id);
      this.withheld.delete(entry.id);
      entry.lane?.land(entry.id);
      return true;
    }
    if (entry.place !== "queued") return false;
    const queue = this.queues.get(entry.channel);
    queue?.delete(entry.id);
    if (queue?.size === 0) this.queues.delete(entry.channel);
    return true;
  }

  #wakeBy(time: number): void {
    this.wakesAt = Math.min(this.wakesAt, time);
  }
}

/** Return when a request expires or, where that is sooner, is queued again. */
function alarmOf({ deadline, place, dueAt }: Entry): number {
  return place === "backing_off" ? Math.min(deadline, dueAt) : deadline;
}
