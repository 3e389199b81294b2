/** Which workers serve which models, by their states: so that the loss of one is noticed at once. Pure, and bounded. */

import { insteadOf, nearest } from "../fields/nearest.js";
import type { ServedModel, WorkerState } from "../states/states.js";

/** Workers that are followed; the loss of others shows by silence. */
const MOST_WORKERS = 1_024;

/** What follows from a worker's state. */
export interface Change {
  /** Models that a worker served which is gone, or another process now: what it had is sent again. */
  readonly lost: readonly string[];
  /** Requests that a process worked on when it crashed. */
  readonly crashedOn: readonly string[];
}

interface Known {
  readonly boot: number;
  readonly models: readonly ServedModel[];
}

const NOTHING: readonly string[] = [];

export class Workers {
  readonly #known = new Map<string, Known>();

  /** Take a worker's state; undefined where an empty payload removed it. */
  observe(worker: string, state: WorkerState | undefined): Change {
    const known = this.#known.get(worker);
    const isServing = state?.status === "ready" || state?.status === "draining";
    const isOther = state !== undefined && known !== undefined && state.boot !== known.boot;
    const crashedOn = state?.status === "crashed" ? state.running : NOTHING;
    // The end of an earlier process of this name says nothing about the one that serves now.
    if (!isServing && isOther) return { lost: NOTHING, crashedOn };
    if (isServing && (known !== undefined || this.#known.size < MOST_WORKERS)) {
      this.#known.set(worker, { boot: state.boot, models: state.models });
    } else this.#known.delete(worker);
    // One that stopped has answered all that it had accepted.
    const isLost = known !== undefined && state?.status !== "stopped" && (!isServing || isOther);
    return { lost: isLost ? known.models.map((model) => model.name) : NOTHING, crashedOn };
  }

  /** Return which models there are or, of one that is served, which versions, for a message; empty where none is known. */
  insteadOf(model: string, version?: string): string {
    const served = [...this.#known.values()].flatMap((worker) => worker.models);
    const versions = served.filter((each) => each.name === model).map((each) => each.version);
    if (version !== undefined && versions.length > 0)
      return ` (versions of it: ${insteadOf(version, new Set(versions))})`;
    const names = new Set(served.map((each) => each.name));
    return names.size > 0 ? ` (models that workers serve here: ${insteadOf(model, names)})` : "";
  }

  /** Return whether no worker serves a model, and one serves a model whose name is nearly the same. */
  isMistyped(model: string): boolean {
    const names = [...this.#known.values()].flatMap((worker) => worker.models.map((each) => each.name));
    return !names.includes(model) && nearest(model, names) !== undefined;
  }
}
