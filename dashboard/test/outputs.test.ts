import assert from "node:assert/strict";
import { test } from "node:test";
import { decodeTensor, type EncodedTensor, encodeTensor, type TensorData } from "mqinfer-client";
import { readOutputs } from "../src/site/live/outputs.js";
import type { ClassInfo } from "../src/site/types.js";
import { shownPose } from "../src/views/live/pose.js";
import { tensor } from "./fakes.js";

const CLASSES: ClassInfo[] = ["road", "car", "<b>sky</b>"].map((name) => ({ name, colour: [1, 2, 3] }));

function read(
  outputs: readonly EncodedTensor[],
  classes: readonly ClassInfo[] = [],
  maskPixels = 1 << 20,
  size: readonly [number, number] | null = null,
) {
  const decoded: string[] = [];
  const decode = (each: EncodedTensor) => {
    decoded.push(each.name);
    return decodeTensor(each);
  };
  return { ...readOutputs(outputs, { decode, classes, maskPixels, size }), decoded };
}

function encoded(name: string, data: TensorData | readonly string[], shape: readonly number[], encoding = "raw") {
  return encodeTensor(name, data, { shape, encoding });
}

test("a mask is the first output of integers with two axes longer than one", () => {
  const numbers = new Uint8Array([0, 1, 2, 3, 4, 5]);
  for (const shape of [
    [2, 3],
    [1, 2, 3],
    [1, 2, 3, 1],
    [1, 1, 2, 3],
  ]) {
    for (const encoding of ["raw", "lz4", "mask"]) {
      const { mask } = read([
        encoded("scores", new Float32Array(6), [2, 3]),
        encoded("mask", numbers, shape, encoding),
      ]);
      assert.deepEqual(mask, { width: 3, height: 2, data: numbers, isPartial: false, scale: null });
    }
  }
  assert.equal(read([encoded("mask", new Uint8Array(12), [2, 2, 3])]).mask, null);
  assert.equal(read([encoded("mask", new Uint8Array(0), [0, 3])]).mask, null);
});

test("a mask of wider integers has numbers of 0 to 255", () => {
  const wide = encoded("mask", new BigInt64Array([0n, 255n, 7n, 1n]), [2, 2], "shuffle-lz4");
  assert.deepEqual(read([wide]).mask?.data, new Uint8Array([0, 255, 7, 1]));
  assert.equal(read([encoded("mask", new Int32Array([0, -1, 7, 1]), [2, 2])]).mask, null);
  assert.equal(read([encoded("mask", new Uint16Array([0, 256, 7, 1]), [2, 2])]).mask, null);
});

test("a mask that claims more pixels than the page shows is refused before it is decoded", () => {
  const claim = tensor("mask", new Uint8Array(64), { shape: [1, 316_228, 316_228], encoding: "mask" });
  assert.throws(() => read([claim]), { code: "limit_exceeded" });
  assert.throws(() => read([encoded("mask", new Uint8Array(64), [8, 8])], [], 63), { code: "limit_exceeded" });
});

test("boxes come best first, in pixels, with their classes; padding and what is not finite is left out", () => {
  const outputs = [
    encoded("boxes", new Float32Array([1, 2, 3, 4, 5, 6, 7, 8, 9, Number.NaN, 1, 1, 0, 0, 0, 0]), [1, 4, 4]),
    encoded("scores", new Float32Array([0.5, 0.75, 0.9, 1]), [1, 4]),
    encoded("classes", new BigInt64Array([1n, 0n, 0n, 0n]), [1, 4]),
    encoded("count", new Int32Array([3]), [1]),
    encoded("masks", new Uint8Array(4 * 6).fill(1, 3, 9), [4, 2, 3]),
  ];
  const { boxes, mask, labels } = read(outputs, CLASSES);
  assert.deepEqual(boxes, [
    { left: 5, top: 6, right: 7, bottom: 8, score: 0.75, classIndex: 0 },
    { left: 1, top: 2, right: 3, bottom: 4, score: 0.5, classIndex: 1 },
  ]);
  assert.deepEqual(labels, []);
  assert.deepEqual([mask?.isPartial, [...(mask?.data ?? [])]], [true, [0, 0, 0, 1, 1, 1]]);
});

test("an object that the model follows has its id; a number below 0 is none", () => {
  const outputs = [
    encoded("boxes", new Float32Array(8).fill(1), [2, 4]),
    encoded("scores", new Float32Array([0.75, 0.5]), [2]),
  ];
  const ids = (...numbers: number[]) => {
    const own = encoded("ids", new Int32Array(numbers), [1, numbers.length]);
    return read([...outputs, own]).boxes.map(({ id }) => id);
  };
  assert.deepEqual(ids(7, -1), [7, undefined]);
  assert.deepEqual(ids(7, 8, 9), [undefined, undefined]);
});

test("an object has its key points in the model's order; those that are nowhere have no score", () => {
  const outputs = [
    encoded("boxes", new Float32Array(8).fill(1), [2, 4]),
    encoded("scores", new Float32Array([0.5, 0.75]), [2]),
    encoded("keypoints", new Float32Array([1, 2, 0.5, Number.NaN, 4, 1, 5, 6, 0.25, 7, 8, 1]), [1, 2, 2, 3]),
  ];
  const [best, other] = read(outputs).boxes.map(({ keypoints }) => keypoints);
  assert.deepEqual(best, [
    [5, 6, 0.25],
    [7, 8, 1],
  ]);
  assert.deepEqual(other, [
    [1, 2, 0.5],
    [0, 0, 0],
  ]);
  const wrong = encoded("keypoints", new Float32Array(12), [2, 3, 2]);
  assert.deepEqual(read([...outputs.slice(0, 2), wrong]).boxes[0]?.keypoints, undefined);
});

test("points in sight are drawn by the class's names, or COCO's, with the lines between them", () => {
  const box = { left: 0, top: 0, right: 9, bottom: 9, score: 1, classIndex: 0 };
  const dog: ClassInfo = { name: "dog", colour: [1, 2, 3], keypoints: ["nose", "tail"], skeleton: [["nose", "tail"]] };
  const keypoints = [[1, 2, 0.9] as const, [3, 4, 0.9] as const];
  const ends = [
    [2, 6],
    [6, 12],
  ];
  assert.deepEqual(shownPose({ ...box, keypoints }, [dog], [2, 3]), { points: ends, lines: [ends] });
  assert.deepEqual(shownPose({ ...box, keypoints }, [], [2, 3]), { points: ends, lines: [] });
  const person = { ...box, keypoints: Array.from({ length: 17 }, (_, place) => [place, place, place / 10] as const) };
  const { points, lines } = shownPose(person, [], [1, 1]);
  assert.deepEqual([points.length, lines.length], [14, 14]);
  assert.deepEqual(shownPose(box, [], [1, 1]), { points: [], lines: [] });
});

test("a box that is turned round is none, and one without width is one", () => {
  const corners = new Float32Array([3, 2, 1, 4, 1, 4, 3, 2, 1, 2, 1, 4]);
  const scores = encoded("scores", new Float32Array([0.5, 0.5, 0.25]), [3]);
  const { boxes } = read([encoded("boxes", corners, [3, 4]), scores]);
  assert.deepEqual(boxes, [{ left: 1, top: 2, right: 1, bottom: 4, score: 0.25, classIndex: -1 }]);
});

test("at most 100 boxes are shown, and of too many none is decoded", () => {
  const boxes = (count: number) => [
    encoded("boxes", new Float32Array(4 * count), [count, 4]),
    encoded("scores", new Float32Array(count).fill(0.5), [count]),
  ];
  assert.equal(read(boxes(300)).boxes.length, 100);
  const many = read(boxes(100_000));
  assert.deepEqual([many.boxes, many.decoded], [[], []]);
});

test("boxes whose parts do not fit are none", () => {
  const scores = encoded("scores", new Float32Array(2), [2]);
  assert.deepEqual(read([encoded("boxes", new Float32Array(4), [1, 4]), scores]).boxes, []);
  assert.deepEqual(read([encoded("boxes", new Float32Array(8), [2, 2, 2]), scores]).boxes, []);
  assert.deepEqual(read([encoded("boxes", ["a", "b"], [2]), scores]).boxes, []);
  assert.deepEqual(read([encoded("boxes", new Float32Array(8), [2, 4])]).boxes, []);
});

test("a classifier's best classes come from scores with or without labels, or as text", () => {
  const scores = new Float32Array([0.125, 0.75, Number.NaN]);
  assert.deepEqual(read([encoded("probabilities", scores, [1, 3])], CLASSES).labels, ["car 0.75", "road 0.125"]);
  const text = ["0.93:281:tabby cat", "0.0512345:3:a:b", "0.01:7", "odd"];
  assert.deepEqual(read([encoded("top", text, [1, 4])]).labels, ["tabby cat 0.93", "a:b 0.0512", "7 0.01", "odd"]);
  const many = Array.from({ length: 50 }, (_, index) => `0.5:${index}`);
  assert.equal(read([encoded("top", many, [50])]).labels.length, 5);
});

test("scores are ranked as they are: equal ones by their index, five at most", () => {
  const scores = encoded("logits", new Float32Array([1, 3, 2, 3, 5, 4, 3]), [7]);
  const classes = Array.from("abcdefg", (name): ClassInfo => ({ name, colour: [1, 2, 3] }));
  assert.deepEqual(read([scores], classes).labels, ["e 5", "f 4", "b 3", "d 3", "g 3"]);
});

test("numbers without names of classes are described too: they may be an embedding", () => {
  const numbers = encoded("features", new Float32Array([0.125, 0.75, Number.NaN]), [3, 1, 1]);
  assert.deepEqual(read([numbers]).labels, ["features FP32[3, 1, 1] 0.125 to 0.75", "1 0.75", "0 0.125"]);
});

test("boxes in whole pixels are no mask", () => {
  const outputs = [encoded("boxes", new Int32Array([1, 2, 3, 4, 5, 6, 7, 8]), [2, 4])];
  const found = read([...outputs, encoded("scores", new Float32Array([0.5, 0.75]), [2])]);
  assert.deepEqual([found.mask, found.boxes.length], [null, 2]);
});

test("what has no order or is no classifier has no labels, and large outputs are not decoded", () => {
  const numbers = encoded("numbers", new Int32Array([3, 4]), [2]);
  assert.deepEqual(read([numbers]).labels, ["numbers INT32[2] 3 to 4"]);
  assert.deepEqual(read([encoded("one", new Float32Array(1), [1])]).labels, ["one FP32[1] 0"]);
  const odd = new Float32Array([Number.NaN, -0.123456, 7, 8, Number.POSITIVE_INFINITY, 9, 1, 1]);
  assert.deepEqual(read([encoded("codes", odd, [2, 2, 2])]).labels, ["codes FP32[2, 2, 2] -0.1235 to 9"]);
  const large = read([tensor("logits", new Uint8Array(64), { shape: [2, 3, 1 << 20] })]);
  assert.deepEqual([large.labels.length, large.decoded], [1, []]);
});

test("numbers in the proportions of the picture are levels, with their scale", () => {
  const values = Float32Array.from({ length: 8 * 16 }, (_, place) => 2 + (place % 16) / 10);
  values[0] = Number.NaN;
  const depth = encoded("depth", values, [1, 8, 16, 1]);
  const { mask, labels } = read([depth], [], 1 << 20, [640, 320]);
  assert.deepEqual([mask?.width, mask?.height, mask?.isPartial, labels], [16, 8, true, []]);
  assert.deepEqual([...(mask?.data.subarray(0, 2) ?? []), mask?.data[15]], [255, 17, 254]);
  assert.deepEqual([mask?.scale?.name, mask?.scale?.least, mask?.scale?.greatest?.toFixed(1)], ["depth", 2, "3.5"]);
  for (const size of [null, [640, 640]] as const) assert.equal(read([depth], [], 1 << 20, size).mask, null);
  assert.deepEqual(read([depth], [], 100, [640, 320]).mask, null);
});

test("of the masks of objects the best is on top; what does not fit is none", () => {
  const outputs = (count: number, classes = [7, 260]) => [
    encoded("boxes", new Float32Array(8), [2, 4]),
    encoded("scores", new Float32Array([0.5, 0.9]), [2]),
    encoded("classes", new Int32Array(classes), [2]),
    encoded("masks", new Uint8Array([1, 1, 0, 0, 0, 1, 0, 0]).subarray(0, 4 * count), [count, 1, 4]),
  ];
  assert.deepEqual([...(read(outputs(2)).mask?.data ?? [])], [7, 5, 255, 255]);
  assert.equal(read(outputs(1)).mask, null);
  assert.equal(read(outputs(2).slice(0, 1)).mask, null);
  assert.throws(() => read(outputs(2), [], 3), { code: "limit_exceeded" });
});
