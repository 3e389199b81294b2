/** What a tile shows of a result's outputs: class mask, boxes, best classes, as in the pictures that edges draw. */

import { type DetectedBox, type EncodedTensor, findBoxes, findTop, type Tensor } from "mqinfer-client";
import { cut } from "../bounds.js";
import type { Area, Box, ClassInfo } from "../types.js";
import { checkPixels, extremes, findArea, type Numbers } from "./areas.js";

const MOST_LABELS = 5;
const MOST_AXES = 8;
/** Of outputs that are no picture: what has more is not decoded. */
const MOST_NUMBERS = 1 << 20;
/** Boxes of more rows are those before any selection. */
const MOST_ROWS = 1 << 16;

const INTEGERS = new Set(["BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64"]);
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
  const tensors = outputs.map((each) => undecoded(each, reader));
  const mask = findArea(tensors, reader);
  const boxes = findBoxes(
    tensors.filter((each) => elements(each) <= 4 * MOST_ROWS),
    reader.classes,
  ).map(boxOf);
  if (mask !== null || outputs.some((each) => each.name === "boxes")) return { mask, boxes, labels: [] };
  const labels = findLabels(tensors, reader.classes);
  const isNamed = reader.classes.length > 0 || outputs.some((each) => each.datatype === "BYTES");
  const described = labels.length > 0 && isNamed ? [] : describe(tensors);
  return { mask, boxes, labels: [...described, ...labels].slice(0, MOST_LABELS) };
}

/** Return a tensor that is decoded when its data is read first. */
function undecoded(output: EncodedTensor, reader: OutputReader): Tensor {
  const { name, datatype, shape } = output;
  const [height = 0, width = 0, ...others] = shape.filter((side) => side !== 1);
  let decoded: Tensor | undefined;
  return {
    ...{ name, datatype, shape },
    get data() {
      if (INTEGERS.has(datatype) && others.length === 0) checkPixels(width, height, reader);
      decoded ??= reader.decode(output);
      return decoded.data;
    },
  };
}

/** Describe what has no other form: name, datatype and shape, and the least and the greatest number. */
function describe(outputs: readonly Tensor[]): string[] {
  return outputs.slice(0, MOST_LABELS).map((each) => {
    const what = `${cut(each.name)} ${each.datatype}[${each.shape.slice(0, MOST_AXES).join(", ")}]`;
    if (!isNumeric(each) || elements(each) > MOST_NUMBERS) return what;
    const ends = extremes(each.data as Numbers);
    const [least, greatest] = (ends ?? []).map((end) => String(Number(end.toPrecision(4))));
    return least === undefined ? what : `${what} ${least === greatest ? least : `${least} to ${greatest}`}`;
  });
}

function boxOf({ box: [left, top, right, bottom], number = -1, name: _, ...found }: DetectedBox): Box {
  return { left, top, right, bottom, classIndex: number, ...found };
}

/** Find the best classes: `value:index:label` as BYTES, or one row of scores. */
function findLabels(outputs: readonly Tensor[], classes: readonly ClassInfo[]): string[] {
  const isText = (each: Tensor) => each.datatype === "BYTES" && elements(each) > 0 && elements(each) <= MOST_NUMBERS;
  const texts = outputs.find(isText)?.data;
  if (Array.isArray(texts)) return texts.slice(0, MOST_LABELS).flatMap(classified);
  const isReadable = outputs.length > 1 || outputs.every((each) => elements(each) <= MOST_NUMBERS);
  const top = isReadable ? findTop(outputs, classes) : [];
  return top.map(({ name, number, score }) => label(name || String(number), score));
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

export function isNumeric(output: Tensor): boolean {
  return INTEGERS.has(output.datatype) || FLOATS.has(output.datatype);
}

export function elements(output: Tensor): number {
  return output.shape.reduce((product, size) => product * size, 1);
}
