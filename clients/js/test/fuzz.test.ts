import assert from "node:assert/strict";
import { test } from "node:test";
import { brokenEntries, golden, goldenEntries } from "./files.js";
import { codeOf, payloadOf } from "./neutral.js";
import { generator } from "./random.js";

const ROUNDS = 3000;
/** Bytes that mean something in MessagePack. */
const HEADS = [0x00, 0x7f, 0x80, 0x90, 0xa0, 0xc0, 0xc1, 0xc4, 0xcb, 0xcf, 0xd3, 0xd9, 0xdd, 0xdf, 0xe0, 0xff];

test("damaged messages are read or refused with a code, and nothing else happens", async () => {
  const random = generator(3);
  const whole = goldenEntries().map(({ file, kind }) => [kind, golden(file)] as const);
  const broken = brokenEntries()
    .filter(({ payload }) => payload !== undefined)
    .map((entry) => [entry.kind, payloadOf(entry, new Uint8Array(0))] as const);
  const messages = [...whole, ...whole, ...broken];
  for (let round = 0; round < ROUNDS; round++) {
    const [kind, payload] = messages[random() % messages.length] ?? ["request", new Uint8Array(0)];
    const damaged = new Uint8Array(payload);
    for (let count = random() % 4; count >= 0 && damaged.length > 0; count--) {
      damaged[random() % Math.min(damaged.length, 400)] = random() % 2 ? random() : (HEADS[random() % 16] as number);
    }
    assert.match(await codeOf(kind as "request" | "reply", damaged), /^[a-z_]+$/);
  }
});
