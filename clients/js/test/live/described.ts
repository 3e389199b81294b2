/** What was found in a picture, as tests/clients/test_js_pictures.py compares it with what Python finds. */

import type { PictureResult } from "../../src/index.js";

/** Return it as JSON can hold it: a mask as text, two hexadecimal digits a pixel. */
export function described({ detections, mask, top }: PictureResult): unknown {
  const hex = mask && Array.from(mask.data, (number) => number.toString(16).padStart(2, "0")).join("");
  return { detections, mask: mask ? [mask.width, mask.height, hex] : null, top };
}
