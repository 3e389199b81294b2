import assert from "node:assert/strict";
import { test } from "node:test";
import { readAddress, writeAddress } from "../src/views/address.js";
import {
  brief,
  count,
  duration,
  milliseconds,
  NOTHING,
  rate,
  sentence,
  shortHash,
  timeOfDay,
} from "../src/views/format.js";
import { jsonTokens } from "../src/views/parts/json_text.js";
import { matches } from "../src/views/words.js";

test("numbers have few digits and a unit", () => {
  assert.deepEqual([0.424, 4.25, 47.31, 118.4, 12_340].map(milliseconds), [
    "0.42 ms",
    "4.3 ms",
    "47.3 ms",
    "118 ms",
    "12.3 s",
  ]);
  assert.deepEqual([0, 1204, 1_204_331, 2.5e9].map(count), ["0", "1,204", "1.20 M", "2.50 G"]);
  assert.deepEqual([100, 12_000, 180_000, 7_200_000, 9e8].map(duration), ["0.1 s", "12 s", "3 min", "2 h", "10 days"]);
  assert.deepEqual([19.84, 1234.5].map(rate), ["19.8", "1,235"]);
});

test("what nobody stated, or stated wrongly, is a dash", () => {
  for (const write of [count, rate, milliseconds, duration]) {
    assert.deepEqual([write(null), write(Number.NaN), write(Number.POSITIVE_INFINITY)], [NOTHING, NOTHING, NOTHING]);
  }
  assert.deepEqual([timeOfDay(null), timeOfDay(Number.NaN), timeOfDay(1e300)], [NOTHING, NOTHING, NOTHING]);
});

test("times that are not of today have a date", () => {
  const ms = new Date(2026, 0, 2, 3, 4, 5).getTime();
  assert.equal(timeOfDay(ms, ms + 1000), "03:04:05");
  assert.equal(timeOfDay(ms, ms + 1e9), "2026-01-02 03:04:05");
});

test("hashes and long texts are cut", () => {
  assert.equal(shortHash("xxh3:9f2c1a7b44d0"), "9f2c1a7b");
  assert.equal(brief("abcdef", 3), "abc…");
  assert.deepEqual(["the link broke", "It ended."].map(sentence), ["The link broke.", "It ended."]);
});

test("each word of a filter must occur, in any of the texts and any case", () => {
  assert.equal(matches("", "x"), true);
  assert.equal(matches("car  REAR", "car-1", "/camera/rear"), true);
  assert.equal(matches("car left", "car-1", "/camera/rear"), false);
});

test("a link's fragment names a view, and anything else the first one", () => {
  assert.deepEqual(
    ["#log", "#workers", "", "#x", "#__proto__"].map((hash) => readAddress(hash).view),
    ["log", "workers", "live", "live", "live"],
  );
});

test("an address keeps filter, stream, model, class, ids and the enlarged tile, whatever their names are", () => {
  const stream = { stream: 'car-1//front&x=1?#"<b>', model: "seg", className: "lane mark + 100%", hasIds: true };
  const shown = { view: "live", filter: "ä b", enlarged: "car-1/seg//front", ...stream } as const;
  assert.deepEqual(readAddress(writeAddress(shown)), shown);
  const nothing = {
    view: "streams",
    filter: "",
    enlarged: "",
    stream: "",
    model: "",
    className: "",
    hasIds: false,
  } as const;
  assert.equal(writeAddress(nothing), "#streams");
  assert.equal(writeAddress({ ...nothing, stream: "car-1//front" }), "#streams?stream=car-1//front");
  assert.deepEqual(readAddress("#streams?view=log&__proto__=x&filter=%E0%A4%A"), { ...nothing, filter: "\ufffd%A" });
  assert.equal(readAddress(`#log?filter=${"x".repeat(5000)}`).filter.length, 1000);
});

test("a log entry is written as indented JSON", () => {
  const value = { a: [1, true, null], b: { c: 'x"<b>' }, d: [], e: {} };
  assert.equal(textOf(value), JSON.stringify(value, null, 2).replace("[]", "[]").replace("{}", "{}"));
});

test("what JSON does not know is written all the same", () => {
  assert.equal(
    textOf({ n: 2n ** 60n, u: undefined, x: Number.NaN, b: new Uint8Array([1, 2]) }).replaceAll(/\s+/g, ""),
    '{"n":1152921504606846976,"u":null,"x":NaN,"b":[1,2]}',
  );
});

test("a detail that is deep, long or wide is cut off", () => {
  let deep: unknown = 1;
  for (let level = 0; level < 5000; level++) deep = { deep };
  assert.match(textOf(deep), /\{…\}/);
  assert.ok(textOf("x".repeat(1e6)).length < 3000);
  assert.ok(jsonTokens(Array.from({ length: 1e5 }, () => ({ a: 1 }))).length < 5000);
});

function textOf(value: unknown): string {
  return jsonTokens(value)
    .map((token) => token.text)
    .join("");
}
