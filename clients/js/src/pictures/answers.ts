/** Find boxes, class masks and scores among a result's outputs; the rules are Python's. */

import { elements } from "../codecs/datatypes.js";
import type { ClassInfo } from "../states/card.js";
import type { Datatype, Tensor, TensorData } from "../types.js";
import type { Corners, Plane, Size } from "./placement.js";

const MOST_BOXES = 100;
const MOST_CLASSES = 5;
const FLOATS: readonly Datatype[] = ["FP16", "FP32", "FP64"];
const INTEGERS: readonly Datatype[] = ["UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64"];

interface Rows {
  readonly datatype: Datatype;
  readonly shape: readonly number[];
  readonly values: readonly number[];
}

/** A class with its score, as the model has it: probability or logit. */
export interface TopClass {
  readonly name: string;
  readonly number: number;
  readonly score: number;
}

/** One detected object. */
export interface DetectedBox {
  readonly box: Corners;
  readonly score: number;
  /** Of the class, with its name; without them the model has no classes. */
  readonly number?: number;
  readonly name: string;
  /** Of the object over several pictures, where the model follows it. */
  readonly id?: number;
  /** Of the object, in the model's order; absent where the model has none. */
  readonly keypoints?: readonly Keypoint[];
}

/** x and y in pixels, and the score of one point of an object. */
export type Keypoint = readonly [number, number, number];

/**
 * Find boxes: `boxes` [n, 4] with `scores` [n], and perhaps `classes` [n], `ids` [n] and `keypoints` [n, K, 3]: the best first.
 *
 * An output `count` is the number of valid rows; an id below 0 is none.
 */
export function findBoxes(outputs: readonly Tensor[], classes: readonly ClassInfo[]): DetectedBox[] {
  const boxes = rows(outputs, "boxes", 2);
  const scores = boxes && rows(outputs, "scores", 1);
  if (!scores || boxes.shape[1] !== 4 || boxes.shape[0] !== scores.shape[0]) return [];
  if (!FLOATS.includes(scores.datatype)) return [];
  const count = rows(outputs, "count", 1);
  const end = count && INTEGERS.includes(count.datatype) && count.values.length === 1 ? count.values[0] : undefined;
  const length = scores.values.length;
  const [numberOf, idOf] = [wholeOf(outputs, "classes", length), wholeOf(outputs, "ids", length)];
  const points = keypointsOf(outputs, length);
  return [...scores.values.entries()]
    .slice(0, end)
    .map(([row, score]) => {
      const box = boxes.values.slice(4 * row, 4 * row + 4) as unknown as Corners;
      const [number, id = -1] = [numberOf(row), idOf(row)];
      const found = { box, score, ...(id >= 0 && { id }), ...points(row) };
      return number === undefined ? { ...found, name: "" } : { ...found, number, name: className(number, classes) };
    })
    .filter(({ box, score }) => [...box, score].every(Number.isFinite) && box[0] <= box[2] && box[1] <= box[3])
    .sort((one, other) => other.score - one.score)
    .slice(0, MOST_BOXES);
}

/** Return what finds a row's number in an output that has one for each box: its class, or its id. */
function wholeOf(outputs: readonly Tensor[], name: string, length: number): (row: number) => number | undefined {
  const numbers = rows(outputs, name, 1)?.values ?? [];
  if (numbers.length !== length || !numbers.every(Number.isFinite)) return () => undefined;
  return (row) => Math.trunc(numbers[row] as number);
}

/** Return what finds a row's key points; those that are not finite are at 0, with a score of 0. */
function keypointsOf(outputs: readonly Tensor[], count: number): (row: number) => { keypoints?: Keypoint[] } {
  const found = rows(outputs, "keypoints", 3);
  const [length, points = 0, numbers] = found?.shape ?? [];
  if (!found || !FLOATS.includes(found.datatype) || length !== count || numbers !== 3 || points === 0)
    return () => ({});
  return (row) => ({
    keypoints: Array.from({ length: points }, (_, point): Keypoint => {
      const [x = 0, y = 0, score = 0] = found.values.slice(3 * (row * points + point), 3 * (row * points + point) + 3);
      return [x, y, score].every(Number.isFinite) ? [x, y, score] : [0, 0, 0];
    }),
  });
}

/**
 * Find the class mask: the first output of integers from 0 to 255 with exactly two axes longer than 1.
 *
 * @param picture Size of what the model saw: of one that is a single line the mask is one, too.
 */
export function findMask(outputs: readonly Tensor[], picture: Size = [0, 0]): Plane | undefined {
  for (const output of outputs) {
    const isLine = picture.includes(1) && elements(output.shape) === picture[0] * picture[1];
    const [height, width, ...more] = isLine ? [picture[1], picture[0]] : output.shape.filter((side) => side !== 1);
    const isOfObjects = ["masks", "boxes"].includes(output.name) && outputs.some(({ name }) => name === "boxes");
    if (!height || !width || more.length > 0 || isOfObjects) continue;
    if (![...INTEGERS, "BOOL"].includes(output.datatype)) continue;
    const data = classNumbers(output.data);
    if (data) return { width, height, data };
  }
  return undefined;
}

/** Return numbers of classes as bytes; undefined where one is outside of 0 to 255. */
function classNumbers(data: TensorData): Uint8Array | undefined {
  if (data instanceof Uint8Array) return data;
  const numbers = new Uint8Array(data.length);
  for (let place = 0; place < data.length; place++) {
    const value = Number(data[place]);
    if (value < 0 || value > 255) return undefined;
    numbers[place] = value;
  }
  return numbers;
}

/** Find the best classes: scores along one axis, one for each class of the card, or floats as the only output. */
export function findTop(outputs: readonly Tensor[], classes: readonly ClassInfo[]): TopClass[] {
  const hasBoxes = outputs.some(({ name }) => name === "boxes");
  if (hasBoxes || findMask(outputs) || (classes.length === 0 && outputs.length !== 1)) return [];
  const found = outputs.find(({ datatype, shape }) => {
    const size = elements(shape);
    const isNumber = FLOATS.includes(datatype) || (classes.length > 0 && INTEGERS.includes(datatype));
    return isNumber && size > 1 && size === Math.max(...shape) && [0, size].includes(classes.length);
  });
  return best(found?.data ?? []).map(([number, score]) => ({ name: className(number, classes), number, score }));
}

/** Return the places of the greatest numbers, of equal ones the first, with the numbers; in one pass, without a copy. */
function best(scores: TensorData): [number, number][] {
  const top: [number, number][] = [];
  for (let number = 0; number < scores.length; number++) {
    const score = Number(scores[number]);
    const last = top.at(-1)?.[1] ?? Number.NEGATIVE_INFINITY;
    if (!Number.isFinite(score) || (top.length === MOST_CLASSES && score <= last)) continue;
    const place = top.findIndex(([, other]) => other < score);
    top.splice(place < 0 ? top.length : place, 0, [number, score]);
    if (top.length > MOST_CLASSES) top.pop();
  }
  return top;
}

/** Return the name of a class; a number that is not on the model's card is its own name. */
function className(number: number, classes: readonly ClassInfo[]): string {
  return classes[number]?.name ?? String(number);
}

/** Return the numbers of an output with so many axes, and perhaps one of 1 before them. */
function rows(outputs: readonly Tensor[], name: string, axes: number): Rows | undefined {
  const output = outputs.find((each) => each.name === name);
  if (!output || ![...FLOATS, ...INTEGERS].includes(output.datatype)) return undefined;
  const { datatype, data } = output;
  const shape = output.shape.length > axes && output.shape[0] === 1 ? output.shape.slice(1) : output.shape;
  return shape.length === axes ? { datatype, shape, values: Array.from(data as Float64Array, Number) } : undefined;
}
