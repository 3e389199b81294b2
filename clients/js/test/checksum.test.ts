import assert from "node:assert/strict";
import { test } from "node:test";
import { createXXHash3 } from "hash-wasm";
import { checksum } from "../src/index.js";

test("agrees with another implementation for every length up to 2100 bytes, at any alignment", async () => {
  const reference = await createXXHash3();
  const bytes = Uint8Array.from({ length: 2200 }, (_, place) => (place * place * 31 + place * 7) & 255);
  for (let length = 0; length <= 2100; length++) {
    const payload = bytes.subarray(length % 9, (length % 9) + length);
    assert.equal(checksum(payload), reference.init().update(payload).digest("hex"), `${length} bytes`);
  }
});

test("agrees with it for payloads of many blocks", async () => {
  const reference = await createXXHash3();
  const bytes = Uint8Array.from({ length: 300_000 }, (_, place) => (place * 2654435761) >>> 24);
  for (const length of [65_535, 65_536, 65_537, 262_144, 300_000]) {
    const payload = bytes.subarray(0, length);
    assert.equal(checksum(payload), reference.init().update(payload).digest("hex"));
  }
});
