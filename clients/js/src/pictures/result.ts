/** What a model found in a picture, in the pixels of the picture itself. */

import type { Result } from "../requests/messages.js";
import type { ClassInfo } from "../states/card.js";
import { type DetectedBox, findBoxes, findMask, findTop, type Keypoint, type TopClass } from "./answers.js";
import { boxToFrame, type Placement, type Plane, planeToFrame } from "./placement.js";

/** Boxes, mask and best classes are worked out when they are read first. */
export interface PictureResult {
  /** As `infer` returns it. */
  readonly result: Result;
  /** Where the picture lies in what the model saw. */
  readonly placement: Placement;
  /** Of the model's card. */
  readonly classes: readonly ClassInfo[];
  /** The boxes, the best first, with the names of their classes. */
  readonly detections: readonly DetectedBox[];
  /** The class number of each pixel, 255 where the model did not see it; undefined without a mask. */
  readonly mask: Plane | undefined;
  /** The best classes of a classifier. */
  readonly top: readonly TopClass[];
}

export function pictureResult(result: Result, placement: Placement, classes: readonly ClassInfo[]): PictureResult {
  const outputs = Object.values(result.outputs);
  const detections = once(() =>
    findBoxes(outputs, classes).map(({ keypoints, ...each }) => ({
      ...each,
      box: boxToFrame(each.box, placement),
      ...(keypoints && { keypoints: keypoints.map((point) => pointToFrame(point, placement)) }),
    })),
  );
  const mask = once(() => {
    const found = findMask(outputs, placement.picture);
    return found && planeToFrame(found, placement);
  });
  const top = once(() => findTop(outputs, classes));
  return {
    result,
    placement,
    classes,
    get detections() {
      return detections();
    },
    get mask() {
      return mask();
    },
    get top() {
      return top();
    },
  };
}

function pointToFrame([x, y, score]: Keypoint, placement: Placement): Keypoint {
  const [left, top] = boxToFrame([x, y, x, y], placement);
  return [left, top, score];
}

/** Return a function that works out its value at the first call: a loop over `found.mask.data` reads it for each pixel. */
function once<Value>(work: () => Value): () => Value {
  let found: { readonly value: Value } | undefined;
  return () => {
    found ??= { value: work() };
    return found.value;
  };
}
