/** The table of pending requests under faults. The clock is a number: nothing waits, and nothing depends on the machine. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { Cancelled, MessageTooLarge, NotConnected } from "../src/errors.js";
import { type PendingOptions, PendingTable, type Step } from "../src/pending.js";
import type { Entry } from "../src/requests/entry.js";
import type { Outcome, Reply } from "../src/types.js";

const NO_TIME = {
  clientQueue: 0,
  transmission: 0,
  serverQueue: 0,
  decode: 0,
  preprocess: 0,
  inference: 0,
  postprocess: 0,
  encode: 0,
};
const NO_SUBSCRIBERS = 0x10;

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
    worker: "w",
    stage: "worker",
    timings: NO_TIME,
    attempt: entry.attempts,
    capture: {},
    parameters: {},
    ...changes,
  };
}

/** A table with its clock: `at` moves the time on and returns what is due. */
class Bench {
  now = 0;
  connected = true;
  readonly ended = new Map<string, string>();
  readonly table: PendingTable;

  constructor(options: Partial<PendingOptions> = {}) {
    this.table = new PendingTable(options);
  }

  add(id: string, timeoutMs = 60_000, model = "seg", version?: string): Entry {
    return this.table.add(asked(id, model, version), this.now, timeoutMs);
  }

  take(): Step {
    const step = this.table.take(this.now, this.connected);
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
    while (this.table.wakeAt <= time) {
      assert.ok(this.table.wakeAt >= this.now, "the table asks for a time that has passed");
      this.now = Math.max(this.now, this.table.wakeAt);
      sent.push(...this.sent());
    }
    this.now = time;
    return [...sent, ...this.sent()];
  }

  reply(entry: Entry, changes: Partial<Reply> = {}, topic = entry.responseTopic): boolean {
    const reply = replyTo(entry, changes);
    const found = this.table.replied(reply, topic, this.now);
    if (found !== undefined) this.table.settled(reply.outcome);
    return found !== undefined;
  }
}

test("At most the window is in flight, and each reply lets the next request out", () => {
  const bench = new Bench({ window: 2 });
  const [first] = ["a", "b", "c"].map((id) => bench.add(id));
  assert.deepEqual(bench.sent(), ["a", "b"]);
  assert.ok(bench.reply(first as Entry));
  assert.deepEqual(bench.sent(), ["c"]);
});

test("Models take turns, so a long queue of one does not hold up another", () => {
  const bench = new Bench({ window: 2 });
  for (const id of ["a1", "a2", "a3"]) bench.add(id, 60_000, "a");
  bench.add("b1", 60_000, "b");
  assert.deepEqual(bench.sent(), ["a1", "b1"]);
});

test("Beyond maxPending a request is rejected at once, and counted", () => {
  const bench = new Bench({ maxPending: 1 });
  bench.add("a");
  assert.throws(() => bench.add("b"), { code: "rejected" });
  const { submitted, pending, outcomes } = bench.table.counters();
  assert.deepEqual([submitted, pending, outcomes.rejected], [2, 1, 1]);
});

test("The first reply wins; a duplicate is late", () => {
  const bench = new Bench();
  const entry = bench.add("a");
  bench.take();
  assert.ok(bench.reply(entry));
  assert.ok(!bench.reply(entry));
  assert.deepEqual([bench.table.counters().late, bench.table.counters().outcomes.ok], [1, 1]);
});

const STRANGE: [string, Partial<Reply>, string?][] = [
  ["on another topic", {}, "r/results/seg/js/b"],
  ["of another model", { modelName: "other" }],
  ["of another version", { modelVersion: "4" }],
  ["to a later attempt than was sent", { attempt: 2 }],
];
for (const [what, changes, topic] of STRANGE) {
  test(`A reply ${what} is counted, and ends nothing`, () => {
    const bench = new Bench();
    const entry = bench.add("a", 60_000, "seg", "3");
    bench.take();
    assert.ok(!bench.reply(entry, changes, topic));
    assert.equal(bench.table.counters().mismatched, 1);
    assert.ok(bench.reply(entry));
  });
}

test("An error of another version than was asked for ends the request: the version may not exist", () => {
  const bench = new Bench();
  const entry = bench.add("a", 60_000, "seg", "3");
  bench.take();
  assert.ok(bench.reply(entry, { modelVersion: "", outcome: "error" }));
});

test("A request expires at its deadline, sent or not, and a later reply is late", () => {
  const bench = new Bench({ window: 1 });
  const sent = bench.add("sent", 1_000);
  bench.add("queued", 500);
  bench.take();
  bench.until(499);
  assert.equal(bench.ended.size, 0);
  bench.until(1_000);
  assert.deepEqual(
    [...bench.ended],
    [
      ["queued", "expired"],
      ["sent", "expired"],
    ],
  );
  assert.ok(!bench.reply(sent));
  assert.equal(bench.table.counters().late, 1);
});

test("Nothing is sent while not connected, and what was in flight goes out first on the next connection", () => {
  const bench = new Bench({ window: 2 });
  for (const id of ["a", "b", "c"]) bench.add(id);
  assert.deepEqual(bench.sent(), ["a", "b"]);
  bench.connected = false;
  bench.table.disconnected();
  assert.deepEqual(bench.until(5_000), []);
  bench.connected = true;
  bench.table.connected(bench.now);
  assert.deepEqual(bench.sent(), ["a", "b"]);
  assert.equal(bench.table.counters().retries, 2);
});

test("A publication that fails with the connection is not counted twice, and not sent before the next one", () => {
  const bench = new Bench();
  const entry = bench.add("a");
  bench.take();
  bench.connected = false;
  bench.table.disconnected();
  bench.table.unsent(entry, 1, new NotConnected("lost"), bench.now);
  assert.equal(bench.table.counters().inFlight, 0);
  bench.connected = true;
  bench.table.connected(bench.now);
  assert.deepEqual(bench.sent(), ["a"]);
  bench.table.unsent(entry, 1, new NotConnected("lost, reported late"), bench.now);
  assert.equal(bench.table.counters().inFlight, 1);
});

test("What can never be sent ends with its reason", () => {
  const bench = new Bench();
  bench.table.unsent(firstOf(bench, "a"), 1, new MessageTooLarge("too large"), bench.now);
  bench.take();
  assert.deepEqual([...bench.ended], [["a", "message_too_large"]]);
});

test("Without subscribers one request asks, more and more seldom, until patience ends", () => {
  const bench = new Bench({ patienceMs: 2_000, backoffMs: 20 });
  const entries = ["a", "b", "c"].map((id) => bench.add(id));
  let sent = 0;
  while (bench.ended.size < entries.length) {
    assert.ok(bench.now < 10_000, "the requests never end");
    const { send } = bench.take();
    for (const entry of send) bench.table.acked(entry, entry.attempts, NO_SUBSCRIBERS, bench.now);
    assert.ok(sent === 0 || send.length <= 1);
    sent += send.length;
    if (send.length === 0) bench.now = Math.max(bench.now, bench.table.wakeAt);
  }
  assert.ok(sent < 30, `${sent} attempts`);
  assert.deepEqual([...new Set(bench.ended.values())], ["no_worker"]);
  assert.equal(bench.table.counters().inFlight, 0);
});

test("After a worker has come all that waited is sent", () => {
  const bench = new Bench({ patienceMs: 60_000 });
  for (const id of ["a", "b", "c"]) bench.add(id);
  for (const entry of bench.take().send) bench.table.acked(entry, entry.attempts, NO_SUBSCRIBERS, bench.now);
  bench.now = bench.table.wakeAt;
  const [asking] = bench.take().send;
  assert.ok(asking !== undefined);
  assert.ok(bench.reply(asking));
  assert.equal(bench.sent().length, 2);
});

test("Patience lasts for six seconds after a reconnection, since workers have to reconnect, too", () => {
  const bench = new Bench({ patienceMs: 0, settlingMs: 6_000 });
  bench.table.disconnected();
  bench.table.connected(bench.now);
  const entry = firstOf(bench, "a");
  bench.table.acked(entry, 1, NO_SUBSCRIBERS, 5_999);
  assert.equal(bench.table.counters().pending, 1);
});

test("A busy worker is asked again after the pause that it stated, and within patience", () => {
  const bench = new Bench({ patienceMs: 2_000 });
  const entry = firstOf(bench, "a");
  assert.ok(!bench.reply(entry, { outcome: "rejected", parameters: { retry_after: 300_000 } }));
  assert.deepEqual(bench.until(299), []);
  assert.deepEqual(bench.until(300), ["a"]);
  bench.now = 2_500;
  bench.reply(entry, { outcome: "rejected", error: { code: "rejected", message: "full" } });
  bench.take();
  assert.deepEqual([...bench.ended], [["a", "rejected"]]);
});

test("A stated pause that is absurd, or no number, is at most a second", () => {
  for (const retry_after of [1e18, -5, Number.NaN, "soon", 2n ** 63n]) {
    const bench = new Bench();
    bench.reply(firstOf(bench, "a"), { outcome: "rejected", parameters: { retry_after } });
    assert.deepEqual(bench.until(1_000), ["a"]);
  }
});

test("Silence: ten seconds where nothing is known, then three, or three times the usual", () => {
  const bench = new Bench();
  const first = firstOf(bench, "a");
  assert.deepEqual(bench.until(9_999), []);
  assert.deepEqual(bench.until(10_000), ["a"]);
  bench.now += 100;
  bench.reply(first);
  const sentAt = bench.now;
  bench.add("b");
  assert.deepEqual(bench.until(sentAt + 2_999), ["b"]);
  assert.deepEqual(bench.until(sentAt + 3_000), ["b"]);
});

test("A slow model gets three times its usual time", () => {
  const bench = new Bench();
  const first = firstOf(bench, "a");
  bench.now = 5_000;
  bench.reply(first);
  bench.add("b");
  assert.deepEqual(bench.until(19_999), ["b"]);
  assert.deepEqual(bench.until(20_000), ["b"]);
});

test("Retries for silence are sixteen at once, then a tenth of the requests; the rest keep waiting", () => {
  const bench = new Bench({ window: 100 });
  for (let each = 0; each < 40; each += 1) bench.add(`r${each}`);
  assert.equal(bench.until(9_999).length, 40);
  assert.equal(bench.until(15_000).length, 16);
  assert.equal(bench.table.counters().retries, 16);
  assert.ok(bench.table.counters().withheld > 0);
  assert.equal(bench.ended.size, 0);
});

test("A damaged reply, or a damaged request, is sent again at once", () => {
  const bench = new Bench();
  const entry = firstOf(bench, "a");
  bench.table.corrupted("a");
  assert.deepEqual(bench.sent(), ["a"]);
  bench.reply(entry, { outcome: "rejected", error: { code: "corrupted", message: "bits" } });
  assert.deepEqual(bench.sent(), ["a"]);
  bench.table.corrupted("not an id of ours");
  assert.deepEqual(bench.sent(), []);
});

test("A PUBACK of an earlier attempt changes nothing", () => {
  const bench = new Bench();
  const entry = firstOf(bench, "a");
  bench.table.corrupted("a");
  bench.take();
  bench.table.acked(entry, 1, NO_SUBSCRIBERS, bench.now);
  assert.equal(bench.table.counters().inFlight, 1);
});

test("A topic that the broker forbids ends the request", () => {
  const bench = new Bench();
  bench.table.acked(firstOf(bench, "a"), 1, 0x87, bench.now);
  bench.take();
  assert.deepEqual([...bench.ended], [["a", "not_authorized"]]);
});

test("A cancelled request ends once, wherever it is", () => {
  const bench = new Bench({ window: 1 });
  bench.add("flying");
  bench.add("queued");
  bench.take();
  assert.equal(bench.table.cancel("flying")?.attempts, 1);
  assert.equal(bench.table.cancel("queued")?.attempts, 0);
  assert.equal(bench.table.cancel("flying"), undefined);
  assert.deepEqual(bench.sent(), []);
  assert.equal(bench.table.counters().outcomes.cancelled, 2);
});

test("At the end everything is handed out once", () => {
  const bench = new Bench({ window: 1 });
  for (const id of ["a", "b", "c"]) bench.add(id);
  bench.take();
  const left = bench.table.drain(new Cancelled("closed"));
  assert.deepEqual(left.map(({ entry }) => entry.id).sort(), ["a", "b", "c"]);
  assert.deepEqual([bench.table.wakeAt, bench.table.counters().pending], [Number.POSITIVE_INFINITY, 0]);
});

test("Under 20,000 random faults every request gets exactly one outcome, and the counters agree", () => {
  const random = generator(4711);
  const bench = new Bench({ window: 4, maxPending: 64, patienceMs: 500 });
  const open = new Map<string, Entry>();
  const replied = new Set<string>();
  let number = 0;
  for (let step = 0; step < 20_000; step += 1) {
    const entry = [...open.values()][Math.floor(random() * open.size)];
    const what = Math.floor(random() * 12);
    if (what < 3 && open.size < 60) {
      const id = `r${number++}`;
      open.set(id, bench.add(id, 1 + random() * 20_000, random() < 0.5 ? "a" : "b"));
    } else if (what === 3) {
      bench.connected = !bench.connected;
      if (bench.connected) bench.table.connected(bench.now);
      else bench.table.disconnected();
    } else if (what === 4) {
      bench.now += random() * 3_000;
    } else if (entry !== undefined) {
      const outcome = (["ok", "ok", "error", "rejected", "expired"] as Outcome[])[Math.floor(random() * 5)] as Outcome;
      if (what === 5) bench.table.acked(entry, entry.attempts, random() < 0.5 ? NO_SUBSCRIBERS : 0x97, bench.now);
      else if (what === 6) bench.table.unsent(entry, entry.attempts, new NotConnected(""), bench.now);
      else if (what === 7) bench.table.corrupted(entry.id);
      else if (what === 8 && bench.table.cancel(entry.id)) replied.add(entry.id);
      else if (what >= 9 && bench.reply(entry, { outcome })) replied.add(entry.id);
    }
    bench.take();
    for (const id of open.keys()) if (bench.ended.has(id) || replied.has(id)) open.delete(id);
    checked(bench, number, open.size);
  }
  bench.until(bench.now + 30_000);
  assert.equal(bench.table.counters().pending, 0);
  assert.equal(bench.ended.size + replied.size, number);
  for (const id of replied) assert.ok(!bench.ended.has(id));
});

function checked(bench: Bench, submitted: number, pending: number): void {
  const counters = bench.table.counters();
  const outcomes = Object.values(counters.outcomes).reduce((sum, count) => sum + count, 0);
  assert.equal(counters.submitted, submitted);
  assert.equal(counters.pending, pending);
  assert.equal(outcomes + pending, submitted);
  assert.ok(counters.inFlight >= 0 && counters.inFlight <= 4);
}

/** Add a request and send it. */
function firstOf(bench: Bench, id: string): Entry {
  const entry = bench.add(id);
  bench.take();
  return entry;
}

/** A small generator of numbers from 0 to 1, so that a failure can be repeated (mulberry32). */
function generator(seed: number): () => number {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

test("What is in flight to the models of a lost worker is sent again at once, and beyond the retry budget", () => {
  const bench = new Bench({ window: 40 });
  for (let number = 0; number < 30; number++) bench.add(`a${number}`);
  bench.add("b", 60_000, "other");
  assert.equal(bench.sent().length, 31);
  bench.now = 50;
  bench.table.workerLost(["seg"], bench.now);
  assert.deepEqual(
    bench.sent(),
    Array.from({ length: 30 }, (_, number) => `a${number}`),
  );
  assert.equal(bench.table.counters().withheld, 0);
});

test("After a loss a request without a worker waits longer than patience, and ends then", () => {
  const bench = new Bench({ patienceMs: 100, settlingMs: 5_000 });
  const entry = bench.add("a");
  bench.take();
  bench.table.workerLost(["seg"], bench.now);
  bench.take();
  while (bench.now < 4_000) {
    bench.table.acked(entry, entry.attempts, NO_SUBSCRIBERS, bench.now);
    bench.until(bench.now + 500);
    assert.equal(bench.ended.size, 0);
  }
  bench.until(5_000);
  bench.table.acked(entry, entry.attempts, NO_SUBSCRIBERS, bench.now);
  bench.take();
  assert.deepEqual([...bench.ended], [["a", "no_worker"]]);
});

test("A request that is in flight at a second loss waits for the reports of crashes", () => {
  const bench = new Bench();
  bench.add("a");
  bench.take();
  bench.table.workerLost(["seg"], bench.now);
  assert.deepEqual(bench.sent(), ["a"]);
  bench.table.workerLost(["seg"], bench.now);
  assert.deepEqual(bench.until(1_900), []);
  assert.deepEqual(bench.until(2_100), ["a"]);
});

test("A request that two workers crashed on ends as poison; one crash, and the crashes of others, change nothing", () => {
  const bench = new Bench();
  for (const id of ["a", "b"]) bench.add(id);
  bench.take();
  bench.table.crashedOn(["a", "b", "nobody's"]);
  bench.take();
  assert.equal(bench.ended.size, 0);
  bench.table.crashedOn(["a"]);
  bench.take();
  assert.deepEqual([...bench.ended], [["a", "poison"]]);
  assert.equal(bench.table.counters().outcomes.error, 1);
});
