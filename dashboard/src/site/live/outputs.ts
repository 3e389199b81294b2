/** What a tile shows of a result's outputs: class mask, boxes, best classes, as in the pictures that edges draw. */

import type { EncodedTensor, Tensor, TensorData } from "mqinfer-client";
import { cut } from "../bounds.js";
import type { Area, Box, ClassInfo } from "../types.js";
import { extremes, findArea } from "./areas.js";

const MOST_BOXES = 100;
const MOST_LABELS = 5;
const MOST_AXES = 8;
/** Scores of so many classes are sorted; what has more is no classifier. */
const MOST_SCORES = 1 << 20;
/** Boxes of more rows are those before any selection. */
const MOST_ROWS = 1 << 16;

export const INTEGERS = new Set(["BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64"]);
const FLOATS = new Set(["FP16", "FP32", "FP64"]);

/** What is shown of the outputs of one result. */
export interface Shown {
  readonly mask: Area | null;
  readonly boxes: readonly Box[];
  readonly labels: readonly string[];
}

export interface OutputReader {
  /** Decode one output within limits. */
  decode(tensor: EncodedTensor): Tensor;
  readonly classes: readonly ClassInfo[];
  /** Most pixels of a mask. */
  readonly maskPixels: number;
  /** Size of the model's picture; null where it is not known. */
  readonly size: readonly [number, number] | null;
}

/** Read what is shown of outputs; only those that are shown are decoded. */
export function readOutputs(outputs: readonly EncodedTensor[], reader: OutputReader): Shown {
  const mask = findArea(outputs, reader);
  const boxes = findBoxes(outputs, reader);
  if (mask !== null || outputs.some((each) => each.name === "boxes")) return { mask, boxes, labels: [] };
  const labels = findLabels(outputs, reader);
  return { mask, boxes, labels: labels.length ? labels : describe(outputs, reader) };
}

/** Describe what has no other form: name, datatype and shape, and the least and the greatest number. */
function describe(outputs: readonly EncodedTensor[], reader: OutputReader): string[] {
  return outputs.slice(0, MOST_LABELS).map((each) => {
    const what = `${cut(each.name)} ${each.datatype}[${each.shape.slice(0, MOST_AXES).join(", ")}]`;
    if (!isNumeric(each) || elements(each) > MOST_SCORES) return what;
    const ends = extremes(reader.decode(each).data as Exclude<TensorData, Uint8Array[]>);
    const [least, greatest] = (ends ?? []).map((end) => String(Number(end.toPrecision(4))));
    return least === undefined ? what : `${what} ${least === greatest ? least : `${least} to ${greatest}`}`;
  });
}

/** Find boxes: `boxes` [n, 4] with `scores` [n] and perhaps `classes` [n], the best first; `count` are valid. */
function findBoxes(outputs: readonly EncodedTensor[], reader: OutputReader): Box[] {
  const numbers = (name: string) => numbersOf(outputs, name, reader);
  const corners = isRows(outputs) ? numbers("boxes") : null;
  const scores = corners && numbers("scores");
  if (!scores || corners.length !== 4 * scores.length) return [];
  const classes = numbers("classes");
  const count = numbers("count");
  const end = count?.length === 1 ? Math.min(Math.max(0, Number(count[0])), scores.length) : scores.length;
  const boxes: Box[] = [];
  for (let row = 0; row < end; row++) {
    const [left, top, right, bottom] = [0, 1, 2, 3].map((side) => Number(corners[4 * row + side]));
    const box = { left, top, right, bottom, score: Number(scores[row]), classIndex: classIndex(classes, scores, row) };
    if (Object.values(box).every(Number.isFinite) && isOrdered(box as Box)) boxes.push(box as Box);
  }
  return boxes.sort((a, b) => b.score - a.score).slice(0, MOST_BOXES);
}

/** A box that is turned round is none, as for clients. */
function isOrdered({ left, top, right, bottom }: Box): boolean {
  return left <= right && top <= bottom;
}

function isRows(outputs: readonly EncodedTensor[]): boolean {
  return outputs.some((each) => each.name === "boxes" && each.shape.at(-1) === 4 && each.shape.length <= 3);
}

/** Return the class of a row; -1 where the model has no classes. */
function classIndex(
  classes: Exclude<TensorData, Uint8Array[]> | null,
  scores: { length: number },
  row: number,
): number {
  return classes?.length === scores.length ? Math.trunc(Number(classes[row])) : -1;
}

/** Decode a small output of numbers; null where there is none. */
function numbersOf(
  outputs: readonly EncodedTensor[],
  name: string,
  reader: OutputReader,
): Exclude<TensorData, Uint8Array[]> | null {
  const output = outputs.find((each) => each.name === name);
  if (!output || !isNumeric(output) || elements(output) > 4 * MOST_ROWS) return null;
  const data = reader.decode(output).data;
  return Array.isArray(data) ? null : data;
}

/** Find the best classes: `value:index:label` as BYTES, or one row of scores. */
function findLabels(outputs: readonly EncodedTensor[], reader: OutputReader): string[] {
  const texts = outputs.find(
    (each) => each.datatype === "BYTES" && elements(each) > 0 && elements(each) <= MOST_SCORES,
  );
  if (texts) {
    const data = reader.decode(texts).data;
    return Array.isArray(data) ? data.slice(0, MOST_LABELS).flatMap(classified) : [];
  }
  const known = reader.classes.length;
  const rows = outputs.filter((each) => isRow(each) && (known > 0 || FLOATS.has(each.datatype)));
  const scores = known > 0 ? rows.find((each) => elements(each) === known) : outputs.length === 1 ? rows[0] : undefined;
  if (!scores) return [];
  const data = reader.decode(scores).data;
  return Array.isArray(data) ? [] : best(data, reader.classes);
}

function isRow(output: EncodedTensor): boolean {
  const size = elements(output);
  return isNumeric(output) && size > 1 && size <= MOST_SCORES && size === Math.max(...output.shape);
}

function best(scores: Exclude<TensorData, Uint8Array[]>, classes: readonly ClassInfo[]): string[] {
  const top: { index: number; score: number }[] = [];
  for (let index = 0; index < scores.length; index++) {
    const score = Number(scores[index]);
    const last = top.at(-1);
    if (!Number.isFinite(score) || (top.length === MOST_LABELS && last && score <= last.score)) continue;
    const place = top.findIndex((each) => each.score < score);
    top.splice(place < 0 ? top.length : place, 0, { index, score });
    if (top.length > MOST_LABELS) top.pop();
  }
  return top.map((each) => label(classes[each.index]?.name || String(each.index), each.score));
}

/** Return the label of `value:index` or `value:index:label`. */
function classified(bytes: Uint8Array): string[] {
  const text = new TextDecoder().decode(bytes.subarray(0, 1000));
  const found = /^([^:]*):(\d+)(?::([\s\S]*))?$/.exec(text);
  if (!found || !Number.isFinite(Number(found[1]))) return [cut(text)];
  return [label(found[3] || found[2] || "", Number(found[1]))];
}

function label(name: string, score: number): string {
  return `${cut(name)} ${Number(score.toPrecision(3))}`;
}

export function isNumeric(output: EncodedTensor): boolean {
  return INTEGERS.has(output.datatype) || FLOATS.has(output.datatype);
}

export function elements(output: EncodedTensor): number {
  return output.shape.reduce((product, size) => product * size, 1);
}
