/** The dispatcher under faults. The clock is a number: nothing waits, and nothing depends on the machine. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { Cancelled, MessageTooLarge, NotConnected } from "../src/errors.js";
import type { Entry } from "../src/requests/entry.js";
import type { Outcome, Reply } from "../src/types.js";
import { Bench, firstOf } from "./bench.js";

const NO_SUBSCRIBERS = 0x10;

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
  const { submitted, pending, outcomes } = bench.dispatcher.counters();
  assert.deepEqual([submitted, pending, outcomes.rejected], [2, 1, 1]);
});

test("The first reply wins; a duplicate is late", () => {
  const bench = new Bench();
  const entry = bench.add("a");
  bench.take();
  assert.ok(bench.reply(entry));
  assert.ok(!bench.reply(entry));
  assert.deepEqual([bench.dispatcher.counters().late, bench.dispatcher.counters().outcomes.ok], [1, 1]);
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
    assert.equal(bench.dispatcher.counters().mismatched, 1);
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
  assert.equal(bench.dispatcher.counters().late, 1);
});

test("Nothing is sent while not connected, and what was in flight goes out first on the next connection", () => {
  const bench = new Bench({ window: 2 });
  for (const id of ["a", "b", "c"]) bench.add(id);
  assert.deepEqual(bench.sent(), ["a", "b"]);
  bench.connected = false;
  bench.dispatcher.disconnected();
  assert.deepEqual(bench.until(5_000), []);
  bench.connected = true;
  bench.dispatcher.connected(bench.now);
  assert.deepEqual(bench.sent(), ["a", "b"]);
  assert.equal(bench.dispatcher.counters().retries, 2);
});

test("A publication that fails with the connection is not counted twice, and not sent before the next one", () => {
  const bench = new Bench();
  const entry = bench.add("a");
  bench.take();
  bench.connected = false;
  bench.dispatcher.disconnected();
  bench.dispatcher.unsent(entry, 1, new NotConnected("lost"), bench.now);
  assert.equal(bench.dispatcher.counters().inFlight, 0);
  bench.connected = true;
  bench.dispatcher.connected(bench.now);
  assert.deepEqual(bench.sent(), ["a"]);
  bench.dispatcher.unsent(entry, 1, new NotConnected("lost, reported late"), bench.now);
  assert.equal(bench.dispatcher.counters().inFlight, 1);
});

test("What can never be sent ends with its reason", () => {
  const bench = new Bench();
  bench.dispatcher.unsent(firstOf(bench, "a"), 1, new MessageTooLarge("too large"), bench.now);
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
    for (const entry of send) bench.dispatcher.acked(entry, entry.attempts, NO_SUBSCRIBERS, bench.now);
    assert.ok(sent === 0 || send.length <= 1);
    sent += send.length;
    if (send.length === 0) bench.now = Math.max(bench.now, bench.dispatcher.wakeAt);
  }
  assert.ok(sent < 30, `${sent} attempts`);
  assert.deepEqual([...new Set(bench.ended.values())], ["no_worker"]);
  assert.equal(bench.dispatcher.counters().inFlight, 0);
});

test("After a worker has come all that waited is sent", () => {
  const bench = new Bench({ patienceMs: 60_000 });
  for (const id of ["a", "b", "c"]) bench.add(id);
  for (const entry of bench.take().send) bench.dispatcher.acked(entry, entry.attempts, NO_SUBSCRIBERS, bench.now);
  bench.now = bench.dispatcher.wakeAt;
  const [asking] = bench.take().send;
  assert.ok(asking !== undefined);
  assert.ok(bench.reply(asking));
  assert.equal(bench.sent().length, 2);
});

test("Patience lasts for six seconds after a reconnection, since workers have to reconnect, too", () => {
  const bench = new Bench({ patienceMs: 0, settlingMs: 6_000 });
  bench.dispatcher.disconnected();
  bench.dispatcher.connected(bench.now);
  const entry = firstOf(bench, "a");
  bench.dispatcher.acked(entry, 1, NO_SUBSCRIBERS, 5_999);
  assert.equal(bench.dispatcher.counters().pending, 1);
});

test("Over a model's channel a busy worker is asked again after a pause that doubles, and within patience", () => {
  const bench = new Bench({ patienceMs: 2_000, backoffMs: 20 });
  const entry = firstOf(bench, "a");
  for (const pause of [20, 40, 80]) {
    const turnedAway = bench.now;
    assert.ok(!bench.reply(entry, { outcome: "rejected" }));
    assert.deepEqual(bench.until(turnedAway + pause - 1), []);
    assert.deepEqual(bench.until(turnedAway + pause), ["a"]);
  }
  bench.now = 2_500;
  bench.reply(entry, { outcome: "rejected", error: { code: "rejected", message: "full" } });
  bench.take();
  assert.deepEqual([...bench.ended], [["a", "rejected"]]);
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
  assert.equal(bench.dispatcher.counters().retries, 16);
  assert.ok(bench.dispatcher.counters().withheld > 0);
  assert.equal(bench.ended.size, 0);
});

test("A damaged reply, or a damaged request, is sent again at once", () => {
  const bench = new Bench();
  const entry = firstOf(bench, "a");
  bench.dispatcher.corrupted("a");
  assert.deepEqual(bench.sent(), ["a"]);
  bench.reply(entry, { outcome: "rejected", error: { code: "corrupted", message: "bits" } });
  assert.deepEqual(bench.sent(), ["a"]);
  bench.dispatcher.corrupted("not an id of ours");
  assert.deepEqual(bench.sent(), []);
});

test("A PUBACK of an earlier attempt changes nothing", () => {
  const bench = new Bench();
  const entry = firstOf(bench, "a");
  bench.dispatcher.corrupted("a");
  bench.take();
  bench.dispatcher.acked(entry, 1, NO_SUBSCRIBERS, bench.now);
  assert.equal(bench.dispatcher.counters().inFlight, 1);
});

test("A topic that the broker forbids ends the request", () => {
  const bench = new Bench();
  bench.dispatcher.acked(firstOf(bench, "a"), 1, 0x87, bench.now);
  bench.take();
  assert.deepEqual([...bench.ended], [["a", "not_authorized"]]);
});

test("A cancelled request ends once, wherever it is", () => {
  const bench = new Bench({ window: 1 });
  bench.add("flying");
  bench.add("queued");
  bench.take();
  assert.equal(bench.dispatcher.cancel("flying")?.attempts, 1);
  assert.equal(bench.dispatcher.cancel("queued")?.attempts, 0);
  assert.equal(bench.dispatcher.cancel("flying"), undefined);
  assert.deepEqual(bench.sent(), []);
  assert.equal(bench.dispatcher.counters().outcomes.cancelled, 2);
});

test("At the end everything is handed out once", () => {
  const bench = new Bench({ window: 1 });
  for (const id of ["a", "b", "c"]) bench.add(id);
  bench.take();
  const left = bench.dispatcher.drain(new Cancelled("closed"));
  assert.deepEqual(left.map(({ entry }) => entry.id).sort(), ["a", "b", "c"]);
  assert.deepEqual([bench.dispatcher.wakeAt, bench.dispatcher.counters().pending], [Number.POSITIVE_INFINITY, 0]);
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
      if (bench.connected) bench.dispatcher.connected(bench.now);
      else bench.dispatcher.disconnected();
    } else if (what === 4) {
      bench.now += random() * 3_000;
    } else if (entry !== undefined) {
      const outcome = (["ok", "ok", "error", "rejected", "expired"] as Outcome[])[Math.floor(random() * 5)] as Outcome;
      if (what === 5) bench.dispatcher.acked(entry, entry.attempts, random() < 0.5 ? NO_SUBSCRIBERS : 0x97, bench.now);
      else if (what === 6) bench.dispatcher.unsent(entry, entry.attempts, new NotConnected(""), bench.now);
      else if (what === 7) bench.dispatcher.corrupted(entry.id);
      else if (what === 8 && bench.dispatcher.cancel(entry.id)) replied.add(entry.id);
      else if (what >= 9 && bench.reply(entry, { outcome })) replied.add(entry.id);
    }
    bench.take();
    for (const id of open.keys()) if (bench.ended.has(id) || replied.has(id)) open.delete(id);
    checked(bench, number, open.size);
  }
  bench.until(bench.now + 30_000);
  assert.equal(bench.dispatcher.counters().pending, 0);
  assert.equal(bench.ended.size + replied.size, number);
  for (const id of replied) assert.ok(!bench.ended.has(id));
});

function checked(bench: Bench, submitted: number, pending: number): void {
  const counters = bench.dispatcher.counters();
  const outcomes = Object.values(counters.outcomes).reduce((sum, count) => sum + count, 0);
  assert.equal(counters.submitted, submitted);
  assert.equal(counters.pending, pending);
  assert.equal(outcomes + pending, submitted);
  assert.ok(counters.inFlight >= 0 && counters.inFlight <= 4);
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
