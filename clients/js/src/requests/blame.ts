/**
 * Which requests are to blame for the end of workers: two crashes are enough.
 *
 * A worker that is lost may only have lost its connection: what it had may have been its end until its server reports a crash,
 * or it is back. A report that names the requests which the process worked on settles it.
 */

import type { Entry } from "./entry.js";
import type { Fleet } from "./fleet.js";
import type { Lane } from "./lane.js";
import type { PendingTable } from "./table.js";

const MOST_CRASHES = 2;
/** A request that two workers were lost with is set aside for this time: their servers report, or they are back. */
const RETURN_MS = 2_000;

export class Blame {
  readonly #table: PendingTable;
  readonly #fleet: Fleet;

  constructor(table: PendingTable, fleet: Fleet) {
    this.#table = table;
    this.#fleet = fleet;
  }

  /** Record that a worker is lost: each request that it had, now queued again, may have been its end. */
  lost(lane: Lane, recalled: readonly Entry[], now: number): void {
    for (const entry of recalled) {
      // One that the broker has not acknowledged never reached the worker: so the wills of all workers, which a broker
      // publishes while it shuts down, count once at most.
      if (entry.acknowledged !== entry.attempts) continue;
      entry.lostOn.add(lane.start);
      if (this.#withSilent(entry, entry.lostOn).size >= MOST_CRASHES) this.#table.backOff(entry, now + RETURN_MS);
    }
    // Before a request is sent to a third one, a crash has its time to be reported.
    for (const entry of this.#table.entries.values())
      if (entry.silent.has(lane)) this.#table.postpone(entry, now + RETURN_MS);
  }

  /** Send on what was set aside because of a worker that is back in the same process: it did not crash. */
  isBack(start: string): void {
    for (const entry of this.#lostOn(start)) if (!entry.crashedOn.has(start)) this.#exculpate(start, entry);
  }

  /**
   * Count a crash for the requests that the process worked on, and return those that are poison.
   *
   * @param running What its server names; empty where it can't name all: then everything counts that it was lost with.
   */
  crashed(start: string, running: readonly string[], now: number): Entry[] {
    let culprits = this.#lostOn(start);
    if (running.length > 0) {
      for (const entry of culprits) if (!running.includes(entry.id)) this.#exculpate(start, entry);
      culprits = running.map((id) => this.#table.entries.get(id)).filter((entry) => entry !== undefined);
    }
    for (const entry of culprits) {
      entry.lostOn.add(start);
      entry.crashedOn.add(start);
      if (entry.place === "queued" && this.holds(entry)) this.#table.backOff(entry, now + RETURN_MS);
    }
    return culprits.filter((entry) => entry.crashedOn.size >= MOST_CRASHES);
  }

  /** Return whether no other worker gets a request: two have crashed on it, or do not reply since they have it. */
  holds(entry: Entry): boolean {
    return this.#withSilent(entry, entry.crashedOn).size >= MOST_CRASHES;
  }

  /** Return the workers at which requests are in flight that another one was lost with. */
  suspectLanes(): Lane[] {
    const suspects = [...this.#table.inFlight.values()].filter((entry) => entry.lostOn.size > 0);
    return suspects.map((entry) => entry.lane).filter((lane) => lane !== undefined);
  }

  #lostOn(start: string): Entry[] {
    return [...this.#table.entries.values()].filter((entry) => entry.lostOn.has(start));
  }

  /** Add the workers that let an attempt time out, are there and have replied to nothing since. */
  #withSilent(entry: Entry, starts: ReadonlySet<string>): Set<string> {
    for (const [lane, since] of entry.silent)
      if (lane.repliedAt >= since || this.#fleet.lane(lane.worker) !== lane) entry.silent.delete(lane);
    return new Set([...starts, ...[...entry.silent.keys()].map((lane) => lane.start)]);
  }

  #exculpate(start: string, entry: Entry): void {
    entry.lostOn.delete(start);
    entry.crashedOn.delete(start);
    if (entry.lostOn.size < MOST_CRASHES && entry.place === "backing_off") this.#table.requeue(entry);
  }
}
