import assert from "node:assert/strict";
import { test } from "node:test";
import { type Half, Pairing } from "../src/site/live/pairing.js";
import { Turns } from "../src/site/live/turns.js";
import { FakeClock, settle } from "./fakes.js";

function half(sequence: number | null, more: Partial<Half> = {}): Half {
  return { sequence, captureTimeNs: null, bytes: 100, receivedMs: 0, ...more };
}

test("what waits for its other half is bounded by count and by bytes, the newest stay", () => {
  const pairing = new Pairing<Half, Half>();
  for (let sequence = 0; sequence < 1000; sequence++) {
    pairing.addPreview(half(sequence), 1 << 20);
    pairing.addResult(half(10_000 + sequence), 1 << 20);
  }
  assert.equal(pairing.bytes, 2 * 64 * 100);
  assert.equal(pairing.addResult(half(0), 1 << 20), null);
  assert.ok(pairing.addResult(half(999), 1 << 20));
  for (let sequence = 0; sequence < 100; sequence++) pairing.addResult(half(20_000 + sequence), 1000);
  for (let sequence = 0; sequence < 100; sequence++) pairing.addPreview(half(30_000 + sequence), 1000);
  assert.ok(pairing.bytes <= 1000, String(pairing.bytes));
  pairing.addResult(half(40_000, { bytes: 5000 }), 1000);
  assert.ok(pairing.bytes <= 500, "one that is larger than its share is not held");
});

test("a half that waited for more than ten seconds is forgotten", () => {
  const pairing = new Pairing<Half, Half>();
  pairing.addPreview(half(1), 1 << 20);
  pairing.addPreview(half(2, { receivedMs: 5000 }), 1 << 20);
  assert.equal(pairing.addResult(half(1, { receivedMs: 10_001 }), 1 << 20), null);
  assert.ok(pairing.addResult(half(2, { receivedMs: 10_001 }), 1 << 20));
});

test("messages without a sequence number never pair", () => {
  const pairing = new Pairing<Half, Half>();
  pairing.addPreview(half(null), 1 << 20);
  assert.equal(pairing.addResult(half(null), 1 << 20), null);
});

test("a repetition takes the place of the first", () => {
  const pairing = new Pairing<Half, Half>();
  for (let times = 0; times < 50; times++) pairing.addPreview(half(1, { bytes: 100 + times }), 1 << 20);
  assert.equal(pairing.bytes, 149);
});

test("two jobs run at a time, each waits once, and after long ones there is a rest", async () => {
  const clock = new FakeClock();
  const turns = new Turns(clock);
  const ends: (() => void)[] = [];
  let begun = 0;
  const jobs = Array.from({ length: 4 }, () => () => {
    begun += 1;
    return new Promise<void>((resolve) => ends.push(resolve));
  });
  for (const job of [...jobs, ...jobs.slice(2)]) turns.ask(job);
  assert.equal(begun, 2);
  ends.shift()?.();
  await settle();
  assert.equal(begun, 3);
  for (const end of ends) end();
  await settle();
  assert.equal(begun, 4);
  for (const end of ends) end();
  await settle();
  assert.equal(begun, 4);
  turns.ask(async () => clock.block(50));
  turns.ask(async () => {
    begun += 1;
  });
  await settle();
  assert.equal(begun, 4);
  clock.advance(100);
  await settle();
  assert.equal(begun, 5);
});
