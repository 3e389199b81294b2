/** The workers, by their states and by the results that the page has seen of them. */

import type { WorkerState } from "mqinfer-client";
import { boundedRecord, cut, type Drops, MOST_ROWS } from "../bounds.js";
import { SlidingRate } from "../measuring/rates.js";
import type { Clock } from "../platform.js";
import type { WorkerRow } from "../types.js";
import { RowList, shownRate, startedMs } from "./rows.js";

const MOST_MODELS = 64;

interface Entry {
  readonly state: WorkerState;
  readonly row: Omit<WorkerRow, "rate">;
  readonly rate: SlidingRate;
  /** Incarnation of the last `ready`; null if none has come. */
  readonly readyBoot: number | null;
  /** Connection with which its state came last. */
  readonly connection: number;
}

export class Workers {
  readonly #clock: Clock;
  readonly #drops: Drops;
  readonly #entries = new Map<string, Entry>();
  readonly #list = new RowList<WorkerRow>();

  constructor(clock: Clock, drops: Drops) {
    this.#clock = clock;
    this.#drops = drops;
  }

  /**
   * Take a state; undefined removes the worker.
   *
   * @returns The new status where it has changed; null otherwise.
   */
  take(worker: string, state: WorkerState | undefined, connection: number): string | null {
    const known = this.#entries.get(worker);
    if (state === undefined) {
      // A server removes the state of a worker that crashed, too; its end stays to be seen until it is back.
      if (!known || known.row.status === "crashed") return null;
      this.#entries.delete(worker);
      return "removed";
    }
    if (known && isOfAnother(state, known)) return null;
    if (!known && this.#entries.size >= MOST_ROWS) {
      this.#drops.add("too many workers");
      return null;
    }
    this.#entries.set(worker, this.#entry(state, known, connection));
    return known?.row.status === state.status ? null : state.status;
  }

  /** Count results of a worker that has a state. */
  count(worker: string, results: number): void {
    this.#entries.get(worker)?.rate.add(this.#clock.nowMs(), results);
  }

  /** Remove those whose states did not come again after a new connection. */
  forgetBefore(connection: number): void {
    for (const [worker, entry] of this.#entries) {
      if (entry.connection < connection && entry.row.status !== "crashed") this.#entries.delete(worker);
    }
  }

  /** Return the names of the workers that serve each model. */
  servers(): ReadonlyMap<string, readonly string[]> {
    const servers = new Map<string, string[]>();
    for (const [worker, { state }] of this.#entries) {
      if (state.status !== "ready" && state.status !== "draining") continue;
      for (const model of new Set(state.models.slice(0, MOST_MODELS).map((each) => each.name))) {
        const names = servers.get(model);
        if (names) names.push(worker);
        else servers.set(model, [worker]);
      }
    }
    return servers;
  }

  rows(): readonly WorkerRow[] {
    const nowMs = this.#clock.nowMs();
    const names = [...this.#entries.keys()].sort();
    const sources = names.flatMap((key) => {
      const entry = this.#entries.get(key);
      if (!entry) return [];
      const rate = shownRate(entry.rate.read(nowMs));
      return [{ key, parts: [entry.row, rate], make: () => ({ ...entry.row, rate }) }];
    });
    return this.#list.update(sources);
  }

  #entry(state: WorkerState, known: Entry | undefined, connection: number): Entry {
    // A will holds little more than name and status: the rest stays as it was stated last.
    const isEnd = state.status === "lost" || state.status === "crashed";
    const stated = isEnd && known && state.models.length === 0 ? { ...known.state, status: state.status } : state;
    const models = stated.models.slice(0, MOST_MODELS);
    return {
      state: stated,
      row: {
        name: state.worker,
        status: state.status,
        models: models.map((each) => cut(`${each.name} ${each.version}`.trim())),
        device: cut([...new Set(models.map((each) => each.device).filter(Boolean))].join(", ")),
        depth: stated.depth,
        capacity: stated.capacity,
        serviceTimeUs: stated.serviceTimeUs,
        counters: boundedRecord(stated.counters),
        startedMs: startedMs(stated.boot, this.#clock.epochMs()),
      },
      rate: known?.rate ?? new SlidingRate(),
      readyBoot: state.status === "ready" ? state.boot : (known?.readyBoot ?? null),
      connection,
    };
  }
}

/** Return whether a state is that of another process than the one that is shown, or less than what is known. */
function isOfAnother(state: WorkerState, known: Entry): boolean {
  if (state.status === "ready") return false;
  if (known.readyBoot !== null && state.boot !== known.readyBoot) return true;
  return state.status === "lost" && known.row.status === "crashed";
}
