/** A dispatcher whose clock is a number: nothing waits, and nothing depends on the machine. */

import assert from "node:assert/strict";
import { Dispatcher, type PendingOptions, type Step } from "../src/dispatcher.js";
import type { Entry } from "../src/requests/entry.js";
import type { WorkerState } from "../src/states/states.js";
import type { Reply } from "../src/types.js";

export const NO_TIMINGS = {
  clientQueue: 0,
  transmission: 0,
  serverQueue: 0,
  decode: 0,
  preprocess: 0,
  inference: 0,
  postprocess: 0,
  encode: 0,
};

function asked(id: string, model = "seg", version?: string) {
  return { id, model, version, responseTopic: `r/results/${model}/js/${id}` };
}

function replyTo(entry: Entry, changes: Partial<Reply> = {}): Reply {
  return {
    id: entry.id,
    modelName: entry.model,
    modelVersion: entry.version ?? "1",
    outcome: "ok",
    outputs: [],
    modelHash: "",
    worker: entry.lane?.worker ?? "w",
    stage: "worker",
    timings: NO_TIMINGS,
    attempt: entry.attempts,
    capture: {},
    parameters: {},
    ...changes,
  };
}

const READY: WorkerState = {
  worker: "w",
  status: "ready",
  boot: 1,
  models: [{ name: "seg", version: "1", isDefault: true, share: 0, precision: "", backend: "", device: "" }],
  capacity: 8,
  depth: 0,
  serviceTimeUs: 10_000,
  counters: {},
  running: [],
};

/** A dispatcher with its clock: `at` moves the time on and returns what is due. */
export class Bench {
  now = 0;
  connected = true;
  readonly ended = new Map<string, string>();
  readonly dispatcher: Dispatcher;

  constructor(options: Partial<PendingOptions> = {}) {
    this.dispatcher = new Dispatcher(options);
  }

  add(id: string, timeoutMs = 60_000, model = "seg", version?: string): Entry {
    return this.dispatcher.add(asked(id, model, version), this.now, timeoutMs);
  }

  take(): Step {
    const step = this.dispatcher.take(this.now, this.connected);
    for (const { entry, error } of step.ended) {
      assert.ok(!this.ended.has(entry.id), "an outcome came twice");
      this.ended.set(entry.id, error.code);
    }
    return step;
  }

  sent(): string[] {
    return this.take().send.map((entry) => entry.id);
  }

  /** Move on to the next time that the table asks for, until a time; return what was sent meanwhile. */
  until(time: number): string[] {
    const sent: string[] = this.sent();
    while (this.dispatcher.wakeAt <= time) {
      assert.ok(this.dispatcher.wakeAt >= this.now, "the table asks for a time that has passed");
      this.now = Math.max(this.now, this.dispatcher.wakeAt);
      sent.push(...this.sent());
    }
    this.now = time;
    return [...sent, ...this.sent()];
  }

  /** Take a worker's state. */
  state(worker: string, changes: Partial<WorkerState> = {}): void {
    this.dispatcher.update(worker, { ...READY, worker, ...changes }, this.now);
  }

  reply(entry: Entry, changes: Partial<Reply> = {}, topic = entry.responseTopic): boolean {
    const reply = replyTo(entry, changes);
    const found = this.dispatcher.replied(reply, topic, this.now);
    if (found !== undefined) this.dispatcher.settled(reply.outcome);
    return found !== undefined;
  }
}

/** Add a request and send it. */
export function firstOf(bench: Bench, id: string): Entry {
  const entry = bench.add(id);
  bench.take();
  return entry;
}
