import { idOf } from "../../site/live/answer_lines.js";
import type { Box, ClassInfo } from "../../site/types.js";
import { brief } from "../format.js";
import { boxColourOf, css, isBright, nameOf } from "./palette.js";
import { type Pose, shownPose } from "./pose.js";

const POINT_PX = 2.5;
const FONT_PX = 12;
const LABEL_PX = 16;
const MOST_BOXES = 300;
const LONGEST_NAME = 40;
/** Narrower boxes, in pixels of the screen, get no label: it would hide more than it says. */
const NARROWEST_LABELLED = 14;

/**
 * Draw boxes with class and score, the best on top; labels do not cover each other.
 *
 * Args:
 *   canvas: Covers the picture; its own size is that of the screen's pixels, so that letters are sharp.
 *   boxes: In pixels of the model's picture, best first.
 *   size: Width and height of the model's picture.
 *   classes: Names and colours from the card.
 *   only: Name of the one class to draw; empty for all.
 */
export function drawBoxes(
  canvas: HTMLCanvasElement,
  boxes: readonly Box[],
  size: readonly [number, number],
  classes: readonly ClassInfo[],
  only: string,
): void {
  canvas.hidden = boxes.length === 0;
  const context = canvas.hidden ? null : canvas.getContext("2d");
  if (!context) return;
  const scale = window.devicePixelRatio || 1;
  const [width, height] = [canvas.width / scale, canvas.height / scale];
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, width, height);
  context.font = `600 ${FONT_PX}px system-ui, sans-serif`;
  context.lineWidth = 2;
  const scales = [width / size[0], height / size[1]] as const;
  const drawn = boxes
    .slice(0, MOST_BOXES)
    .filter((box) => !only || nameOf(box.classIndex, classes) === only)
    .map((box) => ({
      ...onScreen(box, scales),
      ...textOf(box, classes),
      colour: boxColourOf(box.classIndex, classes),
      pose: shownPose(box, classes, scales),
    }));
  for (const { left, top, right, bottom, colour, pose } of [...drawn].reverse()) {
    context.strokeStyle = css(colour);
    context.strokeRect(left, top, right - left, bottom - top);
    drawPose(context, pose);
  }
  const wide = drawn.filter(({ left, right }) => right - left >= NARROWEST_LABELLED);
  const labels = wide.map((box) => ({ ...box, width: context.measureText(box.text).width + 8 }));
  for (const { place, label } of placeLabels(labels, width, height)) {
    context.fillStyle = css(label.colour);
    context.fillRect(place.left, place.top, label.width, LABEL_PX);
    context.fillStyle = isBright(label.colour) ? "#000" : "#fff";
    context.fillText(label.text, place.left + 4, place.top + LABEL_PX - 4);
  }
}

/** Draw lines and points in the colour of the box; a point has a dark rim, so that it is seen on its lines. */
function drawPose(context: CanvasRenderingContext2D, { points, lines }: Pose): void {
  context.beginPath();
  for (const [from, to] of lines) {
    context.moveTo(...from);
    context.lineTo(...to);
  }
  context.stroke();
  for (const [radius, style] of [
    [POINT_PX + 1, "#181818"],
    [POINT_PX, context.strokeStyle],
  ] as const) {
    context.fillStyle = style;
    for (const [x, y] of points) {
      context.beginPath();
      context.arc(x, y, radius, 0, 2 * Math.PI);
      context.fill();
    }
  }
}

/** A box on the screen, and how wide its label is. */
export interface Labelled {
  readonly left: number;
  readonly top: number;
  readonly right: number;
  readonly bottom: number;
  readonly width: number;
}

/**
 * Return where labels stand so that none covers another: above its box, else below it, else in it.
 *
 * Those of the first boxes, which are the best, get their places first; one without a free place is left out.
 */
export function placeLabels<L extends Labelled>(
  labels: readonly L[],
  width: number,
  height: number,
): readonly { readonly label: L; readonly place: { readonly left: number; readonly top: number } }[] {
  const taken: { left: number; top: number; width: number }[] = [];
  return labels.flatMap((label) => {
    const left = Math.max(0, Math.min(label.left - 1, width - label.width));
    const tops = [label.top - LABEL_PX, label.bottom, label.top, label.bottom - LABEL_PX];
    const isFree = (top: number) =>
      top >= 0 &&
      top + LABEL_PX <= height &&
      taken.every(
        (other) =>
          Math.abs(top - other.top) >= LABEL_PX || left >= other.left + other.width || left + label.width <= other.left,
      );
    const top = tops.find(isFree);
    if (top === undefined) return [];
    taken.push({ left, top, width: label.width });
    return [{ label, place: { left, top } }];
  });
}

function onScreen(box: Box, [scaleX, scaleY]: readonly [number, number]) {
  return {
    left: box.left * scaleX,
    top: box.top * scaleY,
    right: box.right * scaleX,
    bottom: box.bottom * scaleY,
  };
}

function textOf(box: Box, classes: readonly ClassInfo[]) {
  return { text: `${brief(nameOf(box.classIndex, classes), LONGEST_NAME)}${idOf(box)} ${box.score.toFixed(2)}` };
}
