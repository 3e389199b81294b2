import type { Box, ClassInfo } from "../../site/types.js";
import { brief } from "../format.js";
import { colourOf, css, isBright, nameOf } from "./palette.js";

const FONT_PX = 12;
const LABEL_PX = 16;
const MOST_BOXES = 300;
const LONGEST_NAME = 40;
/** Narrower boxes, in pixels of the screen, get no label: it would hide more than it says. */
const NARROWEST_LABELLED = 14;

/**
 * Draw boxes with class and score, the best on top.
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
  for (const box of boxes.slice(0, MOST_BOXES).reverse()) {
    if (!only || nameOf(box.classIndex, classes) === only) {
      drawBox(context, box, [width / size[0], height / size[1]], width, classes);
    }
  }
}

function drawBox(
  context: CanvasRenderingContext2D,
  box: Box,
  [scaleX, scaleY]: readonly [number, number],
  pictureWidth: number,
  classes: readonly ClassInfo[],
): void {
  const [left, top] = [box.left * scaleX, box.top * scaleY];
  const [width, height] = [(box.right - box.left) * scaleX, (box.bottom - box.top) * scaleY];
  const colour = colourOf(box.classIndex, classes);
  context.strokeStyle = css(colour);
  context.strokeRect(left, top, width, height);
  if (width < NARROWEST_LABELLED) return;
  const label = `${brief(nameOf(box.classIndex, classes), LONGEST_NAME)} ${box.score.toFixed(2)}`;
  const labelTop = top >= LABEL_PX ? top - LABEL_PX : Math.max(0, top);
  const labelWidth = context.measureText(label).width + 8;
  const labelLeft = Math.max(0, Math.min(left - 1, pictureWidth - labelWidth));
  context.fillStyle = css(colour);
  context.fillRect(labelLeft, labelTop, labelWidth, LABEL_PX);
  context.fillStyle = isBright(colour) ? "#000" : "#fff";
  context.fillText(label, labelLeft + 4, labelTop + LABEL_PX - 4);
}
