/** Watches over a link that is a table: bounded, counted, and each with its own end. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { checksum } from "../src/checksum.js";
import { encodeReply } from "../src/envelope.js";
import type { Link, Message } from "../src/link.js";
import { Topics } from "../src/topics.js";
import { type Watch, Watches } from "../src/watch.js";

class Table implements Link {
  readonly maxPacketSize = 1_000;
  readonly receivers = new Map<string, (message: Message) => void>();

  async subscribe(filter: string, _qos: 0 | 1, onMessage: (message: Message) => void): Promise<void> {
    this.receivers.set(filter, onMessage);
  }

  async unsubscribe(filter: string): Promise<void> {
    this.receivers.delete(filter);
  }

  async publish(): Promise<number> {
    return 0;
  }

  async close(): Promise<void> {}

  /** Deliver a reply to request `id`; `changes` replace parts of the message. */
  deliver(id: string, changes: Partial<Message> = {}): void {
    const payload = encodeReply({ id, modelName: "seg" });
    const userProperties = { xxh3: checksum(payload) };
    const message = { topic: `mqinfer/v1/results/seg/car/${id}`, payload, retain: false, userProperties, ...changes };
    for (const receive of this.receivers.values()) receive(message);
  }
}

async function ids(watch: Watch, count: number): Promise<string[]> {
  const iterator = watch[Symbol.asyncIterator]();
  const found: string[] = [];
  while (found.length < count) found.push((await iterator.next()).value?.request ?? "none");
  return found;
}

test("A slow program gets the newest results, and what was dropped is counted", async () => {
  const link = new Table();
  const watch = await new Watches(link, new Topics()).open("seg", { buffer: 2 });
  for (const id of ["a", "b", "c"]) link.deliver(id);
  assert.deepEqual(await ids(watch, 2), ["b", "c"]);
  assert.deepEqual(watch.counters(), { received: 3, dropped: 1, malformed: 0, retained: 0 });
});

test("What is damaged, kept, or not what its topic says is counted, and no result", async () => {
  const link = new Table();
  const watch = await new Watches(link, new Topics()).open("seg", {});
  link.deliver("a", { userProperties: { xxh3: "0000000000000000" } });
  link.deliver("a", { payload: new Uint8Array(64), userProperties: {} });
  link.deliver("a", { topic: "mqinfer/v1/results/seg/car/b" });
  link.deliver("a", { topic: "elsewhere" });
  link.deliver("a", { retain: true });
  link.deliver("good", { userProperties: {} });
  assert.deepEqual(await ids(watch, 1), ["good"]);
  assert.deepEqual(watch.counters(), { received: 6, dropped: 0, malformed: 4, retained: 1 });
});

test("Watches of one model share a subscription, which ends with the last of them", async () => {
  const link = new Table();
  const watches = new Watches(link, new Topics());
  const [first, second] = [await watches.open("seg", {}), await watches.open("seg", {})];
  await first.close();
  assert.equal(link.receivers.size, 1);
  link.deliver("a");
  assert.deepEqual(await ids(second, 1), ["a"]);
  const waiting = ids(second, 1);
  await second.close();
  assert.deepEqual(await waiting, ["none"]);
  assert.equal(link.receivers.size, 0);
});

test("A buffer without room for a result is refused", async () => {
  for (const buffer of [0, -1, Number.NaN]) {
    await assert.rejects(new Watches(new Table(), new Topics()).open("seg", { buffer }), { code: "config_error" });
  }
});
