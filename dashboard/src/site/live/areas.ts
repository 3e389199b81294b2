/** What a result has for each pixel: a class, an object, or a number such as a depth. */

import { findMask, LimitExceeded, type Tensor, type TensorData } from "mqinfer-client";
import { cut } from "../bounds.js";
import type { Area } from "../types.js";
import { elements, isNumeric, type OutputReader } from "./outputs.js";

/** Stands for no class, no object and no number. */
export const NOTHING = 255;
const LEVELS = NOTHING - 1;
const MOST_OBJECTS = 100;
const MOST_ROWS = 1 << 16;
/** Grids of at most so many numbers are no picture. */
const SMALL = 64;

export type Numbers = Exclude<TensorData, Uint8Array[]>;

/** Find the class mask, or else the masks of objects, or else a number for each pixel. */
export function findArea(outputs: readonly Tensor[], reader: OutputReader): Area | null {
  const mask = findMask(outputs, reader.size ?? undefined);
  if (mask) return { ...mask, isPartial: false, scale: null };
  return findObjects(outputs, reader) ?? findDepth(outputs, reader);
}

/** Lay `masks` [n, height, width] of objects over each other, the best on top: the number of each one's class. */
function findObjects(outputs: readonly Tensor[], reader: OutputReader): Area | null {
  const named = (name: string) => outputs.find((each) => each.name === name);
  const masks = named("masks");
  if (masks?.shape.length !== 3 || !["UINT8", "BOOL"].includes(masks.datatype)) return null;
  const [count = 0, height = 0, width = 0] = masks.shape;
  if (elements(masks) === 0 || count > MOST_ROWS) return null;
  checkPixels(width, height, reader);
  const [scores, classes] = [numbersOf(named("scores")), numbersOf(named("classes"))];
  const pixels = scores?.length === count ? numbersOf(masks) : null;
  if (!scores || !pixels) return null;
  const order = [...scores.keys()].sort((a, b) => Number(scores[b]) - Number(scores[a]));
  const data = new Uint8Array(height * width).fill(NOTHING);
  for (const row of order.slice(0, MOST_OBJECTS).reverse()) {
    const number = classes?.length === count ? Math.abs(Math.trunc(Number(classes[row]))) % NOTHING : 0;
    const first = row * data.length;
    for (let place = 0; place < data.length; place++) if (pixels[first + place]) data[place] = number;
  }
  return { width, height, data, isPartial: true, scale: null };
}

/** Find a number for each pixel: the first grid in the proportions of the model's picture. */
function findDepth(outputs: readonly Tensor[], reader: OutputReader): Area | null {
  for (const output of outputs) {
    const size = planeOf(output, outputs);
    if (!size || !reader.size || !isNumeric(output) || output.name === "confidence") continue;
    const [width, height] = reader.size;
    const isScaled = Math.abs(size.width * height - size.height * width) <= Math.max(width, height);
    if (!isScaled || elements(output) <= SMALL || elements(output) > reader.maskPixels) continue;
    const values = numbersOf(output);
    const ends = values && extremes(values);
    if (!ends) continue;
    const [least, greatest] = ends;
    const step = greatest > least ? LEVELS / (greatest - least) : 0;
    const data = new Uint8Array(values.length);
    for (let place = 0; place < data.length; place++) {
      const value = Number(values[place]);
      data[place] = Number.isFinite(value) ? Math.round((value - least) * step) : NOTHING;
    }
    return { ...size, data, isPartial: true, scale: { name: cut(output.name), least, greatest } };
  }
  return null;
}

/** Return the least and the greatest number that is finite; null where there is none. */
export function extremes(values: Numbers): readonly [number, number] | null {
  let [least, greatest] = [Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY];
  for (let place = 0; place < values.length; place++) {
    const value = Number(values[place]);
    if (!Number.isFinite(value)) continue;
    if (value < least) least = value;
    if (value > greatest) greatest = value;
  }
  return least <= greatest ? [least, greatest] : null;
}

/** Return the size of an output with exactly two axes longer than 1, which belongs to no boxes. */
function planeOf(output: Tensor, outputs: readonly Tensor[]): { width: number; height: number } | null {
  const sides = output.shape.filter((size) => size !== 1);
  const [height, width] = sides;
  if (sides.length !== 2 || !height || !width) return null;
  const isOfBoxes = output.name === "masks" || output.name === "boxes";
  return isOfBoxes && outputs.some((each) => each.name === "boxes") ? null : { width, height };
}

/** Refuse a picture of more pixels than the page shows, before it is decoded. */
export function checkPixels(width: number, height: number, reader: OutputReader): void {
  if (height * width > reader.maskPixels) {
    throw new LimitExceeded(`mask of ${width}x${height} pixels: this page shows at most ${reader.maskPixels}`);
  }
}

function numbersOf(output: Tensor | undefined): Numbers | null {
  return output && isNumeric(output) ? (output.data as Numbers) : null;
}
