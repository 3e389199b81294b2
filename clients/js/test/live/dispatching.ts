/** Report the events of a file to a dispatcher; print what it does after each, for tests/clients/test_js_lanes.py. */

import { readFileSync } from "node:fs";
import { Dispatcher } from "../../src/dispatcher.js";
import { errorFromCode } from "../../src/errors.js";
import type { Entry } from "../../src/requests/entry.js";
import type { WorkerState } from "../../src/states/states.js";
import type { Reply } from "../../src/types.js";

interface Event {
  readonly now: number;
  readonly what: string;
  readonly id: string;
  readonly model: string;
  readonly version?: string;
  readonly timeoutMs: number;
  readonly attempt: number;
  readonly code: number;
  readonly error: string;
  readonly worker: string;
  readonly state?: WorkerState;
  readonly reply: Reply;
  readonly topic: string;
  readonly ids: readonly string[];
}

const dispatcher = new Dispatcher({ window: 12, patienceMs: 2_000, settlingMs: 6_000, backoffMs: 20 });
const entries = new Map<string, Entry>();
let connected = true;

const events: Record<string, (event: Event) => unknown> = {
  wait: () => undefined,
  add: ({ now, id, model, version, timeoutMs, topic }) =>
    entries.set(id, dispatcher.add({ id, model, version, responseTopic: topic }, now, timeoutMs)),
  ack: ({ now, id, attempt, code }) => dispatcher.acked(entries.get(id) as Entry, attempt, code, now),
  unsent: ({ now, id, attempt, error }) =>
    dispatcher.unsent(entries.get(id) as Entry, attempt, errorFromCode(error, ""), now),
  reply: ({ now, reply, topic }) => {
    if (dispatcher.replied(reply, topic, now)) dispatcher.settled(reply.outcome);
  },
  state: ({ now, worker, state }) => dispatcher.update(worker, state, now),
  corrupted: ({ id }) => dispatcher.corrupted(id),
  cancel: ({ id }) => dispatcher.cancel(id),
  connected: ({ now }) => {
    connected = true;
    dispatcher.connected(now);
  },
  disconnected: () => {
    connected = false;
    dispatcher.disconnected();
  },
};

const done = (JSON.parse(readFileSync(process.argv[2] ?? "", "utf8")) as Event[]).map((event) => {
  events[event.what]?.(event);
  const { send, ended } = dispatcher.take(event.now, connected);
  return {
    send: send.map(({ id, lane, attempts }) => [id, lane?.worker ?? "", attempts]),
    ended: ended.map(({ entry, error }) => [entry.id, error.code]).sort(),
    replaced: dispatcher.replaceable(event.ids, event.now, connected) ?? null,
  };
});
console.log(JSON.stringify({ done, counters: dispatcher.counters() }));
