/**
 * The workers that a client knows, and which of them gets the next request: the one expected to finish it first.
 *
 * The rules, and the reasons for each number, are those of Python's dispatcher (mqinfer/client/dispatch). Pure: times are
 * readings of the owner's clock, in milliseconds. Choosing changes nothing; sending does.
 */

import type { ServedModel, WorkerState } from "../states/states.js";
import { SharedChannels } from "./channels.js";
import { Lane } from "./lane.js";

/** Workers that are followed; the others get what the broker deals them. */
const MOST_WORKERS = 1_024;
/** Requests in flight at a worker while another one's first reply is awaited: else the first to reply would get all. */
const STARTING_LIMIT = 2;
/** Workers take turns while they are expected to finish within `ALIKE * best + max(ALIKE_MS, run - service)`. */
const ALIKE = 1.3;
const ALIKE_MS = 5;
/** What is known of an idle worker counts for less the older it is, until it gets one request. */
const STALE_REQUESTS = 40;
const STALE_MS = 2_000;

/** Where a request goes: to a worker, over its model's channel since no worker is known, or nowhere yet. */
export type Destination = Lane | "shared" | "wait";

interface Chosen {
  readonly expected: number;
  readonly lane: Lane;
}

export class Fleet {
  readonly channels = new SharedChannels();
  readonly #lanes = new Map<string, Lane>();
  #turn = 0;

  lane(worker: string): Lane | undefined {
    return this.#lanes.get(worker);
  }

  /** Return what the workers serve. */
  served(): ServedModel[] {
    return [...this.#lanes.values()].flatMap((lane) => lane.models);
  }

  /** Return the per cent of a model's requests without a version that go to its canary. */
  share(model: string): number {
    const open = [...this.#lanes.values()].filter((lane) => lane.open).flatMap((lane) => lane.models);
    return open.reduce((most, { name, share }) => (name === model ? Math.max(most, share) : most), 0); // strangers choose how many
  }

  /**
   * Handle a state that a worker, or the broker on its behalf, published.
   *
   * @returns The lane whose requests will not be answered: its worker is lost, has ended, or started anew.
   */
  update(state: WorkerState): Lane | undefined {
    const known = this.#lanes.get(state.worker);
    const isForeign = known !== undefined && known.boot !== state.boot;
    // The will or the last state of a twin or a predecessor is not about the known worker.
    if (isForeign && state.status !== "ready") return undefined;
    if (state.status !== "ready" && state.status !== "draining") return this.remove(state.worker);
    if (known === undefined && this.#lanes.size >= MOST_WORKERS) return undefined;
    const lane = known === undefined || isForeign ? new Lane(state.worker) : known;
    this.#lanes.set(state.worker, lane);
    lane.update(state);
    this.channels.openFor(lane);
    return isForeign ? known : undefined;
  }

  /** Drop a worker; return its lane, or undefined where it is not known. */
  remove(worker: string): Lane | undefined {
    const lane = this.#lanes.get(worker);
    this.#lanes.delete(worker);
    return lane;
  }

  /**
   * Return where the next request of a channel goes; nothing is changed.
   *
   * @param queued Requests of the channel that are queued in this client.
   * @param avoid Workers that it does not go to.
   * @param deadline The request's; one that can't wait does not find out whether a slow worker is faster by now.
   */
  choose(channel: string, now: number, queued: number, avoid: ReadonlySet<Lane>, deadline: number): Destination {
    const serving = this.#serving(channel);
    if (serving.length === 0) return this.channels.isClosed(channel, now) ? "wait" : "shared";
    const usable = serving.filter((lane) => lane.isUsable(now) && !avoid.has(lane));
    const [only] = usable;
    if (only === undefined) return "wait";
    if (usable.length === 1) return only.hasRoom() ? only : "wait";
    return firstToFinish(
      usable.map((lane) => ({ expected: this.#expected(lane, now, deadline), lane })),
      queued,
    );
  }

  /** Record a request that is being sent to a worker; return when it counts as unanswered. */
  sent(id: string, lane: Lane, now: number): number {
    this.#turn += 1;
    lane.turn = this.#turn;
    return lane.sent(id, now);
  }

  /** Return when a lane or a channel opens again that was closed at a time; infinite where none does. */
  nextOpening(since: number): number {
    const lanes = [...this.#lanes.values()].filter((lane) => lane.open && lane.opensAt > since);
    return Math.min(...lanes.map((lane) => lane.opensAt), ...this.channels.openings(since));
  }

  /** Return whether a canary's requests go to the default version instead of waiting. */
  fallsBack(channel: string, now: number, queued: number): boolean {
    const usable = this.#serving(channel).filter((lane) => lane.isUsable(now));
    return queued > usable.reduce((room, lane) => room + Math.max(1, lane.limit), 0);
  }

  /** Drop everything: on a new connection the broker sends the states of all workers again. */
  clear(): void {
    this.#lanes.clear();
    this.channels.clear();
  }

  #serving(channel: string): Lane[] {
    return [...this.#lanes.values()].filter((lane) => lane.open && lane.serves(channel));
  }

  /** Return how long a request would take; less where that is old, so that it is found out anew. */
  #expected(lane: Lane, now: number, deadline: number): number {
    const expected = lane.expected();
    if (lane.inFlight.size > 0) return expected;
    const age = Math.min((this.#turn - lane.turn) / STALE_REQUESTS, (now - lane.repliedAt) / STALE_MS);
    return age > 1 && lane.finish(now) <= deadline ? expected / age : expected;
  }
}

/** Return the lane that finishes a request first, if it pays to send it there now. */
function firstToFinish(usable: readonly Chosen[], queued: number): Destination {
  const { expected: best, lane: first } = least(usable, ({ expected }) => [expected]);
  const bound = ALIKE * best + Math.max(ALIKE_MS, first.run - first.service);
  const most = usable.some(({ lane }) => awaitsFirstReply(lane)) ? STARTING_LIMIT : Number.POSITIVE_INFINITY;
  const spare = usable.filter(({ lane }) => lane.hasRoom() && lane.inFlight.size < most);
  const alike = spare.filter(({ expected }) => expected <= bound);
  if (alike.length > 0) return least(alike, ({ lane }) => [lane.inFlight.size, lane.turn]).lane;
  if (spare.length === 0) return "wait";
  // Those that finish first are full. Waiting for them is better than a slower one that has room, unless so much is queued
  // that the last of it would finish later still.
  const byWaiting = best + queued / usable.reduce((rate, { lane }) => rate + 1 / Math.max(lane.service, 1e-3), 0);
  const second = least(spare, ({ expected, lane }) => [expected, lane.turn]);
  return second.expected <= byWaiting ? second.lane : "wait";
}

/** Return whether a worker has its first request and has not replied yet, though its service time is known. */
function awaitsFirstReply(lane: Lane): boolean {
  return lane.inFlight.size > 0 && lane.repliedAt === Number.NEGATIVE_INFINITY && lane.service > 0;
}

/** Return the first of those whose keys, one after the other, are the least. */
function least(all: readonly Chosen[], keys: (each: Chosen) => readonly number[]): Chosen {
  return all.reduce((found, each) => {
    const [one, other] = [keys(found), keys(each)];
    const place = one.findIndex((key, at) => key !== other[at]);
    return place >= 0 && (other[place] as number) < (one[place] as number) ? each : found;
  });
}
