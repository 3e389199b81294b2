/** What a result says, as lines of text: for the log, where there is no picture to draw upon. */

import type { EncodedTensor } from "mqinfer-client";
import { cut, RESULT_LIMITS } from "../bounds.js";
import type { Decoder } from "../platform.js";
import type { AnswerLine, Area, Box, ClassInfo } from "../types.js";
import { readOutputs } from "./outputs.js";

const MOST_LINES = 64;

/** Return a line for each class of a mask with its share, each box with its score and corners, and each best class. */
export function readAnswer(
  outputs: readonly EncodedTensor[],
  classes: readonly ClassInfo[],
  decoder: Decoder,
): readonly AnswerLine[] {
  const decode = (tensor: EncodedTensor) => decoder.decodeTensor(tensor, RESULT_LIMITS);
  try {
    const reader = { decode, classes, maskPixels: RESULT_LIMITS.imagePixels, size: null };
    const { mask, boxes, labels } = readOutputs(outputs, reader);
    const lines = [
      ...(mask && !mask.isPartial ? shareLines(mask, classes) : []),
      ...boxes.map((box) => boxLine(box, classes)),
      ...labels.map((label) => ({ name: label, value: "" })),
    ];
    const most = { name: "…", value: `and ${lines.length - MOST_LINES} more` };
    return lines.length > MOST_LINES ? [...lines.slice(0, MOST_LINES), most] : lines;
  } catch (error) {
    return [{ name: "not readable", value: cut(error instanceof Error ? error.message : String(error)) }];
  }
}

function shareLines(mask: Area, classes: readonly ClassInfo[]): AnswerLine[] {
  const counts = new Uint32Array(256);
  for (const number of mask.data) counts[number] = (counts[number] ?? 0) + 1;
  const present = [...counts.entries()].filter(([, count]) => count > 0).sort((one, other) => other[1] - one[1]);
  const share = (count: number) => `${((100 * count) / mask.data.length).toFixed(1)} %`;
  return present.map(([number, count]) => ({ name: className(number, classes), value: share(count) }));
}

function boxLine(box: Box, classes: readonly ClassInfo[]): AnswerLine {
  const [left, top, right, bottom] = [box.left, box.top, box.right, box.bottom].map(Math.round);
  const value = `${box.score.toFixed(2)} at ${left}, ${top} to ${right}, ${bottom}`;
  return { name: `${className(box.classIndex, classes)}${idOf(box)}`, value };
}

/** Return how the id of a box's object is written behind its class; nothing without one. */
export function idOf({ id }: Box): string {
  return id === undefined ? "" : ` #${id}`;
}

function className(number: number, classes: readonly ClassInfo[]): string {
  return cut(classes[number]?.name || (number < 0 ? "object" : `class ${number}`));
}
