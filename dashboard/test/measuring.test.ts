import assert from "node:assert/strict";
import { test } from "node:test";
import { SequenceTracker } from "../src/site/live/sequence.js";
import { Budget, fairShare } from "../src/site/measuring/budget.js";
import { Percentiles } from "../src/site/measuring/percentiles.js";
import { Rhythm, SlidingRate } from "../src/site/measuring/rates.js";
import { MOST_POINTS, SecondsRing } from "../src/site/measuring/series.js";
import { randomNumbers } from "./fakes.js";

test("percentiles are those of a sorted list of the last values", () => {
  const random = randomNumbers(1);
  const percentiles = new Percentiles();
  const values: number[] = [];
  for (let count = 0; count < 5000; count++) {
    const value = random() * 100;
    values.push(value);
    percentiles.add(count, value);
  }
  const last = values.slice(-1024).sort((a, b) => a - b);
  const expected = [0.5, 0.95, 0.99].map((share) => last[Math.ceil(share * last.length) - 1]);
  assert.deepEqual(percentiles.read(5000, [0.5, 0.95, 0.99]), expected);
});

test("percentiles forget values after a minute, and there are none without values", () => {
  const percentiles = new Percentiles();
  assert.deepEqual(percentiles.read(0, [0.5]), [null]);
  percentiles.add(0, 10);
  percentiles.add(50_000, 20);
  percentiles.add(50_000, Number.NaN);
  assert.deepEqual(percentiles.read(50_000, [0, 0.5, 1]), [10, 10, 20]);
  assert.deepEqual(percentiles.read(70_000, [0.5]), [20]);
  assert.deepEqual(percentiles.read(200_000, [0.5]), [null]);
});

test("a rate is that of the last seconds, and 0 after a pause", () => {
  const rate = new SlidingRate();
  assert.equal(rate.read(0), 0);
  for (let ms = 0; ms < 20_000; ms += 50) rate.add(ms);
  assert.ok(Math.abs(rate.read(20_000) - 20) < 1);
  for (let ms = 20_000; ms < 26_000; ms += 500) rate.add(ms);
  assert.ok(Math.abs(rate.read(26_000) - 2) < 0.5);
  assert.equal(rate.read(40_000), 0);
  assert.equal(rate.read(39_000), 0);
});

test("a rhythm follows the usual interval, whatever one pause is", () => {
  const rhythm = new Rhythm();
  for (let ms = 0; ms <= 5000; ms += 100) rhythm.add(ms);
  assert.ok(Math.abs(rhythm.intervalMs - 100) < 1);
  rhythm.add(10_000_000);
  assert.ok(rhythm.intervalMs < 2100);
});

test("a chart has a point for each second that has ended, 300 at most", () => {
  const ring = new SecondsRing(["rate"], "sum");
  assert.deepEqual(ring.read(0), { seconds: [], values: {} });
  for (let second = 0; second < 1000; second++)
    for (let each = 0; each < second % 3; each++) ring.add(second * 1000, [1]);
  const { seconds, values } = ring.read(1_000_500);
  assert.equal(seconds.length, MOST_POINTS - 1);
  assert.equal(seconds.at(-1), 999);
  assert.deepEqual(
    values.rate,
    seconds.map((second) => second % 3),
  );
  assert.ok(ring.read(9_000_000).values.rate?.every((value) => value === 0));
});

test("the mean of a second without values is not a number", () => {
  const ring = new SecondsRing(["decode", "inference"], "mean");
  ring.add(1000, [1, 10]);
  ring.add(1500, [3, 30]);
  ring.add(3000, [5, 50]);
  assert.deepEqual(ring.read(4000), {
    seconds: [1, 2, 3],
    values: { decode: [2, Number.NaN, 5], inference: [20, Number.NaN, 50] },
  });
});

test("a clock that is set back does no harm to a chart", () => {
  const ring = new SecondsRing(["rate"], "sum");
  ring.add(10_000, [1]);
  ring.add(3000, [1]);
  ring.add(11_000, [1]);
  assert.deepEqual(ring.read(12_000), { seconds: [10, 11], values: { rate: [2, 1] } });
});

test("what is left out is a gap; what comes a little later, or twice, is none", () => {
  const tracker = new SequenceTracker();
  const add = (...numbers: number[]) => {
    for (const number of numbers) tracker.add(number, 0);
  };
  add(0, 1, 3, 2, 3, 5, 4, 4);
  for (let number = 6; number < 60; number++) add(number);
  assert.equal(tracker.gaps, 0);
  for (let number = 63; number < 100; number++) add(number);
  assert.equal(tracker.gaps, 3);
  add(600);
  for (let number = 601; number < 620; number++) add(number);
  assert.equal(tracker.gaps, 503);
  assert.equal(tracker.run, 0);
});

test("no step of a sequence takes long, or counts beyond reason", () => {
  const tracker = new SequenceTracker();
  for (const number of [0, Number.MAX_SAFE_INTEGER, 5, 999_999, Number.MAX_SAFE_INTEGER - 1, 0]) tracker.add(number, 0);
  assert.ok(tracker.gaps < 1_000_000);
});

test("shares of a budget are fair: who asks for little gets it, the others the same", () => {
  assert.equal(fairShare([], 75), 75);
  assert.equal(fairShare([10, 20, 30], 75), 75);
  assert.equal(fairShare([5, 5, 1000], 75), 65);
  assert.equal(fairShare([1000, 1000, 1000], 75), 25);
  assert.equal(fairShare(Array(500).fill(10), 75), 1);
});

test("one that floods is sampled, others are read in full, and what is read stands for the rest", () => {
  const budget = new Budget();
  const read = { flood: 0, honest: 0 };
  const stands = { flood: 0, honest: 0 };
  for (let ms = 0; ms < 10_000; ms += 2) {
    const weight = budget.admit("flood", ms);
    read.flood += weight > 0 ? 1 : 0;
    stands.flood += weight;
    if (ms % 50 !== 0) continue;
    const other = budget.admit("honest", ms);
    read.honest += other > 0 ? 1 : 0;
    stands.honest += other;
  }
  assert.equal(read.honest, 200);
  assert.equal(stands.honest, 200);
  assert.ok(read.flood < 3000, `${read.flood} of 5000`);
  assert.ok(Math.abs(stands.flood - 5000) < 200, `${stands.flood} of 5000`);
});

test("timers that come late make the budget smaller, and it grows again", () => {
  const budget = new Budget();
  const readInSlot = (atMs: number) => {
    let count = 0;
    for (let each = 0; each < 200; each++) count += budget.admit("one", atMs) > 0 ? 1 : 0;
    return count;
  };
  readInSlot(0);
  const before = readInSlot(1000);
  for (let each = 0; each < 10; each++) budget.late(500);
  const slow = readInSlot(2000);
  for (let each = 0; each < 40; each++) budget.late(0);
  const after = readInSlot(3000);
  assert.equal(before, 75);
  assert.equal(slow, 5);
  assert.equal(after, 75);
});

test("thousands of senders do not make the budget grow", () => {
  const budget = new Budget();
  let read = 0;
  for (let each = 0; each < 20_000; each++) read += budget.admit(`c-${each}`, each / 10) > 0 ? 1 : 0;
  assert.ok(read <= 150 * 8, `${read}`);
});
