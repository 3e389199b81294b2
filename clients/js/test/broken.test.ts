import assert from "node:assert/strict";
import { test } from "node:test";
import { brokenEntries, golden } from "./files.js";
import { codeOf, payloadOf } from "./neutral.js";

const NO_BYTES = new Uint8Array(0);

for (const entry of brokenEntries()) {
  test(`refuses with ${entry.code}: ${entry.name}`, async () => {
    const base = entry.base === undefined ? NO_BYTES : golden(entry.base);
    assert.equal(await codeOf(entry.kind, payloadOf(entry, base)), entry.code);
  });
}

test("what broken messages claim takes no memory", async () => {
  const messages = brokenEntries().filter((entry) => entry.payload !== undefined);
  const before = process.memoryUsage();
  let most = 0;
  for (const entry of messages) {
    await codeOf(entry.kind, payloadOf(entry, NO_BYTES));
    const { heapUsed, arrayBuffers } = process.memoryUsage();
    most = Math.max(most, heapUsed + arrayBuffers);
  }
  assert.ok(most - before.heapUsed - before.arrayBuffers < 64 << 20, `${most} bytes`);
});
