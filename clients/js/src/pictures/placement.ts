/** Where a picture lies in what a model sees, and the way back to the picture's own pixels; the rules are Python's. */

import type { ImageContract } from "../states/card.js";

/** Of a pixel that the model did not see. */
const UNKNOWN = 255;

/** Width and height. */
export type Size = readonly [number, number];
/** Left, top, right and bottom, in pixels; 0 is the outer edge of the first one. */
export type Corners = readonly [number, number, number, number];

/** A class number for each pixel, in rows. */
export interface Plane {
  readonly width: number;
  readonly height: number;
  readonly data: Uint8Array;
}

/** The rectangle of the model's picture that a region of the frame, the picture as it was given, fills. */
export interface Placement {
  readonly frame: Size;
  /** Size of what the model sees. */
  readonly picture: Size;
  readonly left: number;
  readonly top: number;
  readonly width: number;
  readonly height: number;
  /** Left, top, width and height of the part of the frame that the model sees. */
  readonly region: Corners;
}

/** Place a picture in what a model sees, which has the picture's size where the model takes any. */
export function placeInModel(contract: ImageContract, width: number, height: number): Placement {
  const picture = [contract.width ?? width, contract.height ?? height] as const;
  let placed: Size = picture;
  let region: Corners = [0, 0, width, height];
  // One of the same proportions, to the pixel, fills it: rounding adds no margin.
  const isScaled = Math.abs(width * picture[1] - height * picture[0]) <= Math.max(...picture);
  if (!isScaled && contract.resize === "letterbox") {
    const factor = Math.min(picture[0] / width, picture[1] / height);
    placed = [Math.max(1, rounded(width * factor)), Math.max(1, rounded(height * factor))];
  } else if (!isScaled && contract.resize === "crop") {
    const across = Math.min(width, Math.max(1, rounded((height * picture[0]) / picture[1])));
    const down = Math.min(height, Math.max(1, rounded((width * picture[1]) / picture[0])));
    region = [Math.floor((width - across) / 2), Math.floor((height - down) / 2), across, down];
  }
  const [left, top] = [Math.floor((picture[0] - placed[0]) / 2), Math.floor((picture[1] - placed[1]) / 2)];
  return { frame: [width, height], picture, left, top, width: placed[0], height: placed[1], region };
}

/** Map a box from the model's picture to the frame, cut off at its edges. */
export function boxToFrame([left, top, right, bottom]: Corners, at: Placement): Corners {
  const [across, down] = [at.region[2] / at.width, at.region[3] / at.height];
  const x = (side: number) => Math.min(Math.max((side - at.left) * across + at.region[0], 0), at.frame[0]);
  const y = (side: number) => Math.min(Math.max((side - at.top) * down + at.region[1], 0), at.frame[1]);
  return [x(left), y(top), x(right), y(bottom)];
}

/** Map a mask, which covers the model's picture, to the frame, each pixel from its nearest neighbour. */
export function planeToFrame(plane: Plane, at: Placement): Plane {
  const [left, top, width, height] = at.region;
  const columns = nearest(width, at.left, at.width, at.picture[0], plane.width);
  const rows = nearest(height, at.top, at.height, at.picture[1], plane.height);
  const data = new Uint8Array(at.frame[0] * at.frame[1]).fill(UNKNOWN);
  for (const [y, row] of rows.entries()) {
    const [from, to] = [row * plane.width, (top + y) * at.frame[0] + left];
    for (let x = 0; x < width; x++) data[to + x] = plane.data[from + (columns[x] as number)] as number;
  }
  return { width: at.frame[0], height: at.frame[1], data };
}

/** Return for each pixel of the region, along one axis, the cell of the plane that its centre lies in. */
function nearest(region: number, first: number, size: number, picture: number, cells: number): Int32Array {
  return Int32Array.from({ length: region }, (_, pixel) => {
    const centre = first + (pixel + 0.5) * (size / region);
    return Math.min(Math.max(Math.floor(centre * (cells / picture)), 0), cells - 1);
  });
}

/** Round as workers do: halves to the even number. */
function rounded(value: number): number {
  const up = Math.round(value);
  return up - value === 0.5 && up % 2 !== 0 ? up - 1 : up;
}
