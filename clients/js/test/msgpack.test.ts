import assert from "node:assert/strict";
import { test } from "node:test";
import { decode, encode } from "@msgpack/msgpack";
import { Float, readMessagePack, type Value } from "../src/fields/msgpack_read.js";
import { type Packable, writeMessagePack } from "../src/fields/msgpack_write.js";
import { BadEnvelope, LimitExceeded } from "../src/index.js";
import { generator } from "./random.js";

const BORDERS = [
  0,
  1,
  31,
  32,
  33,
  127,
  128,
  129,
  255,
  256,
  32767,
  32768,
  65535,
  65536,
  2 ** 31 - 1,
  2 ** 31,
  2 ** 32 - 1,
];
const INTEGERS = BORDERS.flatMap((border) => [border, -border]).filter((value) => !Object.is(value, -0));

test("integers have the bytes of the reference implementation, their smallest form", () => {
  for (const value of INTEGERS) {
    assert.deepEqual(writeMessagePack(value, "x"), new Uint8Array(encode(value)), String(value));
    assert.deepEqual(writeMessagePack(BigInt(value), "x"), new Uint8Array(encode(value)), `${value}n`);
  }
});

test("integers of more than 32 bits are written as such, whether they come as number or bigint", () => {
  for (const value of [2n ** 32n, 2n ** 53n - 1n, 2n ** 64n - 1n, -(2n ** 31n) - 1n, -(2n ** 63n)]) {
    const bytes = new Uint8Array(encode(value, { useBigInt64: true }));
    assert.deepEqual(writeMessagePack(value, "x"), bytes);
    if (Number.isSafeInteger(Number(value))) assert.deepEqual(writeMessagePack(Number(value), "x"), bytes);
  }
});

test("numbers with a fraction, NaN, infinities and -0 are floats of 64 bits", () => {
  for (const value of [0.5, -1e300, Number.NaN, Number.POSITIVE_INFINITY, -0]) {
    const bytes = writeMessagePack(value, "x");
    assert.equal(bytes[0], 0xcb);
    assert.deepEqual(readMessagePack(bytes), new Float(value));
  }
});

test("strings, arrays and maps of each length class are written and read", () => {
  for (const length of [0, 1, 15, 16, 31, 32, 255, 256, 4096]) {
    const text = "a".repeat(length);
    assert.deepEqual(writeMessagePack(text, "x"), new Uint8Array(encode(text)));
    const list = Array.from({ length }, (_, place) => place);
    assert.deepEqual(writeMessagePack(list, "x"), new Uint8Array(encode(list)));
    const entries = list.map((place): [string, Packable] => [`k${place}`, place]);
    const bytes = writeMessagePack(new Map(entries), "x");
    assert.deepEqual(bytes, new Uint8Array(encode(Object.fromEntries(entries))));
    assert.deepEqual(readMessagePack(bytes), new Map(entries));
  }
  assert.deepEqual(readMessagePack(writeMessagePack("x".repeat(70_000).slice(0, 4000), "x")), "x".repeat(4000));
});

test("a hundred arrays or maps within each other are read, and one more is refused", () => {
  for (const [open, innermost] of [
    [[0x91], 0x90],
    [[0x81, 0xa1, 0x6b], 0x80],
  ] as const) {
    const nested = (depth: number) =>
      new Uint8Array([
        ...Array(depth - 1)
          .fill(open)
          .flat(),
        innermost,
      ]);
    readMessagePack(nested(100));
    assert.throws(() => readMessagePack(nested(101)), /more than 100/);
  }
});

test("what the reference implementation writes is read", () => {
  const value = { a: [1, -1, 2 ** 40, true, false, "grün", 1.5, null], b: { c: {} } };
  assert.deepEqual(plain(readMessagePack(encode(value))), value);
  assert.deepEqual(decode(writeMessagePack([1, "x", true], "x")), [1, "x", true]);
});

function plain(value: Value): unknown {
  if (value instanceof Float) return value.value;
  if (Array.isArray(value)) return value.map(plain);
  if (value instanceof Map) return Object.fromEntries([...value].map(([key, each]) => [key, plain(each)]));
  return value;
}

test("keys keep their order, and none has a meaning of its own", () => {
  const entries: [string, Packable][] = [
    ["b", 1],
    ["7", 2],
    ["__proto__", 3],
    ["constructor", 4],
  ];
  assert.deepEqual([...(readMessagePack(writeMessagePack(new Map(entries), "x")) as Map<string, Value>)], entries);
});

test("values that a header can't hold are refused with their place", () => {
  const wrong: unknown[] = [null, undefined, {}, new Uint8Array(1), 2n ** 64n, -(2n ** 63n) - 1n, "\ud800"];
  for (const value of wrong) {
    assert.throws(() => writeMessagePack(new Map([["q", value as Packable]]), "request"), {
      name: /bad_envelope/,
      message: /request\.q/,
    });
  }
  assert.throws(() => writeMessagePack("x".repeat(4097), "x"), LimitExceeded);
});

test("a header cut off anywhere is refused", () => {
  const bytes = writeMessagePack(
    new Map<string, Packable>([
      ["id", "r"],
      ["list", [1, 70_000, 0.5, "text"]],
    ]),
    "x",
  );
  for (let length = 0; length < bytes.length; length++) {
    assert.throws(() => readMessagePack(bytes.subarray(0, length)), BadEnvelope);
  }
});

test("random bytes are read or refused, and never anything else", () => {
  const next = generator(1);
  for (let round = 0; round < 20_000; round++) {
    const bytes = Uint8Array.from({ length: next() % 40 }, next);
    try {
      readMessagePack(bytes);
    } catch (error) {
      assert.ok(error instanceof BadEnvelope, String(error));
    }
  }
});
