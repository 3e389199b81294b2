/** Which worker gets a request, and what becomes of those that a worker had. tests/clients/test_js_lanes.py compares with Python. */

import assert from "node:assert/strict";
import { test } from "node:test";
import type { Entry } from "../src/requests/entry.js";
import { isMistyped, servedInstead } from "../src/requests/served.js";
import { Bench } from "./bench.js";

const SERVED = { name: "seg", version: "1", isDefault: true, share: 0, precision: "", backend: "", device: "" };

/** Return a bench whose workers have replied once, and allow four requests in flight each. */
function benchWith(...workers: string[]): Bench {
  const bench = new Bench();
  for (const worker of workers) bench.state(worker);
  for (const worker of workers) bench.add(`before ${worker}`);
  for (const entry of bench.take().send) bench.reply(entry, { load: { depth: 1, serviceTimeUs: 10_000, window: 4 } });
  return bench;
}

/** Send requests, which the broker acknowledges. */
function sent(bench: Bench, ...ids: string[]): Entry[] {
  for (const id of ids) bench.add(id);
  const { send } = bench.take();
  for (const entry of send) bench.dispatcher.acked(entry, entry.attempts, 0, bench.now);
  return [...send];
}

function workersOf(entries: readonly Entry[]): Record<string, number> {
  const counts: Record<string, number> = {};
  for (const { lane } of entries) counts[lane?.worker ?? ""] = (counts[lane?.worker ?? ""] ?? 0) + 1;
  return counts;
}

test("Without a worker that is known a request takes its model's channel; a worker gets one until it has replied", () => {
  const bench = new Bench();
  assert.deepEqual(workersOf(sent(bench, "a")), { "": 1 });
  bench.state("w");
  const [first, ...others] = sent(bench, "b", "c");
  assert.deepEqual([first?.lane?.worker, others.length], ["w", 0]);
  bench.reply(first as Entry, { load: { depth: 1, serviceTimeUs: 10_000, window: 4 } });
  assert.deepEqual(bench.sent(), ["c"]);
});

test("The worker with the least expected finish gets a request; equal ones take turns", () => {
  const bench = benchWith("a", "b");
  assert.deepEqual(workersOf(sent(bench, "1", "2", "3", "4")), { a: 2, b: 2 });
  const unlike = new Bench({ window: 40 });
  unlike.state("fast", { serviceTimeUs: 10_000 });
  unlike.state("slow", { serviceTimeUs: 100_000 });
  for (const entry of sent(unlike, "1", "2"))
    unlike.reply(entry, {
      load: { depth: 1, serviceTimeUs: entry.lane?.worker === "fast" ? 10_000 : 100_000, window: 8 },
    });
  assert.deepEqual(workersOf(sent(unlike, "3", "4", "5", "6")), { fast: 5 }); // the second one has waited for it
});

test("States that name one model hundreds of thousands of times hinder no request", () => {
  const bench = new Bench();
  const models = Array.from({ length: 4_000 }, () => SERVED);
  for (let number = 0; number < 50; number++) bench.state(`w-${number}`, { models });
  assert.equal(sent(bench, "a").length, 1);
});

test("What a lost worker had is sent to another at once, beyond the retry budget; what others have stays", () => {
  const bench = benchWith("a", "b");
  const had = sent(bench, "1", "2", "3", "4").filter(({ lane }) => lane?.worker === "a");
  bench.state("a", { status: "lost" });
  assert.deepEqual(
    bench.take().send.map(({ id, lane }) => [id, lane?.worker]),
    had.slice(0, 1).map(({ id }) => [id, "b"]),
    "one at a time, so that a crash is not blamed on both",
  );
  assert.equal(bench.dispatcher.counters().withheld, 0);
});

test("Two crashes are enough: such a request ends as poison, and the others go on", () => {
  const bench = benchWith("a", "b", "c");
  const [bad] = sent(bench, "bad");
  for (let crash = 0; crash < 2; crash++) {
    const worker = bad?.lane?.worker ?? "";
    bench.state(worker, { status: "lost" });
    bench.state(worker, { status: "crashed", running: ["bad", "nobody's"] });
    for (const entry of bench.take().send) bench.dispatcher.acked(entry, entry.attempts, 0, bench.now);
    bench.until(bench.now + 2_000);
  }
  assert.deepEqual([...bench.ended], [["bad", "poison"]]);
  assert.equal(bench.dispatcher.counters().outcomes.error, 1);
});

test("A worker that is there again in the same process did not crash", () => {
  const bench = benchWith("a", "b");
  sent(bench, "1");
  for (const worker of ["a", "b", "a", "b"]) {
    bench.state(worker, { status: "lost" });
    bench.state(worker);
    for (const entry of bench.take().send) bench.dispatcher.acked(entry, entry.attempts, 0, bench.now);
  }
  bench.until(bench.now + 10_000);
  assert.equal(bench.ended.size, 0);
});

test("Silence sends a request to another worker, and the silent one gets nothing for a second", () => {
  const bench = benchWith("a", "b");
  const [first] = sent(bench, "1");
  const silent = first?.lane?.worker;
  assert.deepEqual(bench.until(bench.now + 999), []);
  assert.deepEqual(bench.until(bench.now + 1), ["1"]);
  assert.notEqual(first?.lane?.worker, silent);
  assert.ok(!((silent as string) in workersOf(sent(bench, "2", "3"))));
});

test("A busy worker is left alone for the time that it stated, at most a second", () => {
  for (const [retry_after, pause] of [
    [300_000, 300],
    [1e18, 1_000],
    [-5, 10],
    [Number.NaN, 10],
    ["soon", 10],
    [2n ** 63n, 10],
  ] as const) {
    const bench = benchWith("w");
    const [entry] = sent(bench, "a");
    assert.ok(!bench.reply(entry as Entry, { outcome: "rejected", parameters: { retry_after } }));
    assert.deepEqual(bench.until(bench.now + pause - 1), []);
    assert.deepEqual(bench.until(bench.now + 1), ["a"]);
  }
});

test("A lane without subscribers, or a forbidden one, is closed until the worker's next state, and fails no request", () => {
  for (const code of [0x10, 0x87]) {
    const bench = benchWith("w");
    const [entry] = sent(bench, "a");
    bench.dispatcher.acked(entry as Entry, 1, code, bench.now);
    assert.deepEqual(workersOf(bench.take().send), { "": 1 });
    bench.state("w");
    assert.deepEqual(workersOf(sent(bench, "b")), { w: 1 });
  }
});

test("A reply of a worker that was not asked is counted, and ends nothing; one of an earlier attempt is as good", () => {
  const bench = benchWith("a", "b");
  const [entry] = sent(bench, "1");
  const first = entry?.lane?.worker ?? "";
  assert.ok(!bench.reply(entry as Entry, { worker: "stranger" }));
  assert.equal(bench.dispatcher.counters().mismatched, 1);
  bench.state(first, { status: "stopped" });
  bench.take();
  assert.ok(bench.reply(entry as Entry, { worker: first, attempt: 1 }));
});

test("A canary gets its share of the requests that name no version, all clients choosing alike", () => {
  const bench = new Bench({ window: 1_000 });
  bench.state("old", { models: [SERVED] });
  bench.state("new", { models: [{ ...SERVED, version: "2", isDefault: false, share: 30 }] });
  const ids = Array.from({ length: 100 }, (_, number) => `request-${number}`);
  const canary = ids.filter((id) => bench.add(id).channel === "seg/canary");
  assert.deepEqual(
    canary.slice(0, 5),
    [2, 7, 10, 13, 17].map((number) => `request-${number}`),
  );
  assert.equal(bench.add("named", 60_000, "seg", "1").channel, "seg/1");
});

test("A lost connection forgets all workers, and queues everything again", () => {
  const bench = benchWith("a", "b");
  sent(bench, "1", "2");
  bench.dispatcher.disconnected();
  bench.dispatcher.connected(bench.now);
  assert.deepEqual(workersOf(bench.take().send), { "": 2 });
});

test("The workers that are followed are bounded", () => {
  const bench = new Bench();
  for (let number = 0; number < 5_000; number++)
    bench.state(`w${number}`, { models: [{ ...SERVED, name: `m${number}` }] });
  assert.ok(bench.dispatcher.insteadOf("m").includes("and 1004 more"));
});

test("In place of a name that is not served are those that are, and the one that was probably meant", () => {
  const named = (...names: string[]) => names.map((name) => ({ ...SERVED, name }));
  const served = named("street", "boxes", "seg");
  const here = "models that workers serve here: boxes, seg, street";
  assert.equal(servedInstead([], "set"), "");
  assert.equal(servedInstead(served, "stret"), ` (${here}; did you mean "street"?)`);
  assert.equal(servedInstead(served, "nothing"), ` (${here})`);
  assert.equal(servedInstead(served, "seg", "3"), " (versions of it: 1)");
  assert.deepEqual(
    ["stret", "nothing", "seg", "set", "ab"].map((name) => isMistyped(served, name)),
    [true, false, false, true, false],
  );
  const many = [...served, ...named(...Array.from({ length: 20 }, (_, at) => `m${at}`))];
  assert.match(servedInstead(many, "nothing"), /boxes, m0, m1, m10, .*, m8 and 3 more\)$/);
  assert.match(servedInstead(many, "box"), /did you mean "boxes"/);
});
