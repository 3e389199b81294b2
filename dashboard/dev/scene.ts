import type { Box, ClassInfo } from "../src/site/types.js";

export const WIDTH = 480;
export const HEIGHT = 270;
const MASK_WIDTH = 512;
const MASK_HEIGHT = 288;

export const CLASSES: readonly ClassInfo[] = [
  { name: "road", colour: [128, 64, 128] },
  { name: "sidewalk", colour: [244, 35, 232] },
  { name: "building", colour: [70, 70, 70] },
  { name: "vegetation", colour: [107, 142, 35] },
  { name: "sky", colour: [70, 130, 180] },
  { name: "person", colour: [220, 20, 60] },
  { name: "car", colour: [0, 0, 142] },
];

/** A street at a moment: picture, mask and boxes of the same moment. */
export interface Scene {
  readonly picture: ImageBitmap;
  readonly mask: { readonly width: number; readonly height: number; readonly data: Uint8Array };
  readonly boxes: readonly Box[];
}

interface Car {
  readonly left: number;
  readonly top: number;
  readonly width: number;
  readonly height: number;
}

const easel = new OffscreenCanvas(WIDTH, HEIGHT);

export function drawScene(seed: number, moment: number): Scene {
  const cars = [0, 1, 2].map((number) => carAt(seed, number, moment));
  return { picture: drawPicture(seed, moment, cars), mask: drawMask(cars), boxes: cars.map(toBox) };
}

function carAt(seed: number, number: number, moment: number): Car {
  const phase = (moment * (0.05 + 0.02 * number) + 0.37 * number + 0.21 * seed) % 1;
  const width = 40 + 90 * phase;
  return { left: WIDTH * (1.1 * phase - 0.1), top: HEIGHT * (0.5 + 0.22 * phase), width, height: 0.55 * width };
}

function toBox(car: Car, place: number): Box {
  return {
    left: car.left,
    top: car.top,
    right: car.left + car.width,
    bottom: car.top + car.height,
    score: 0.97 - 0.13 * place,
    classIndex: place === 2 ? 5 : 6,
  };
}

function drawPicture(seed: number, moment: number, cars: readonly Car[]): ImageBitmap {
  const context = easel.getContext("2d") as OffscreenCanvasRenderingContext2D;
  const sky = context.createLinearGradient(0, 0, 0, HEIGHT / 2);
  sky.addColorStop(0, `hsl(${205 + 12 * seed} 45% 62%)`);
  sky.addColorStop(1, "hsl(205 40% 86%)");
  context.fillStyle = sky;
  context.fillRect(0, 0, WIDTH, HEIGHT);
  for (let house = 0; house < 9; house++) {
    const left = ((house * 70 - moment * 8) % 630) - 70;
    context.fillStyle = `hsl(${(20 + 25 * seed + 9 * house) % 360} 18% ${38 + (house % 3) * 9}%)`;
    context.fillRect(left < -70 ? left + 630 : left, 50 + (house % 4) * 14, 62, 100);
  }
  context.fillStyle = "hsl(95 30% 33%)";
  context.fillRect(0, 0.47 * HEIGHT, WIDTH, 18);
  context.fillStyle = "hsl(220 5% 36%)";
  context.fillRect(0, 0.53 * HEIGHT, WIDTH, HEIGHT);
  for (const { left, top, width, height } of cars) {
    context.fillStyle = "hsl(215 55% 30%)";
    context.fillRect(left, top, width, height);
    context.fillStyle = "hsl(200 40% 70%)";
    context.fillRect(left + 0.15 * width, top + 3, 0.7 * width, 0.35 * height);
  }
  return easel.transferToImageBitmap();
}

function drawMask(cars: readonly Car[]): Scene["mask"] {
  const data = new Uint8Array(MASK_WIDTH * MASK_HEIGHT);
  const fill = (left: number, top: number, right: number, bottom: number, number: number) => {
    for (let row = Math.max(0, Math.round(top)); row < Math.min(MASK_HEIGHT, Math.round(bottom)); row++) {
      const [from, to] = [Math.max(0, Math.round(left)), Math.min(MASK_WIDTH, Math.round(right))];
      if (to > from) data.fill(number, row * MASK_WIDTH + from, row * MASK_WIDTH + to);
    }
  };
  fill(0, 0, MASK_WIDTH, 0.25 * MASK_HEIGHT, 4);
  fill(0, 0.25 * MASK_HEIGHT, MASK_WIDTH, 0.47 * MASK_HEIGHT, 2);
  fill(0, 0.47 * MASK_HEIGHT, MASK_WIDTH, 0.535 * MASK_HEIGHT, 3);
  fill(0, 0.535 * MASK_HEIGHT, MASK_WIDTH, 0.6 * MASK_HEIGHT, 1);
  fill(0, 0.6 * MASK_HEIGHT, MASK_WIDTH, MASK_HEIGHT, 0);
  const [scaleX, scaleY] = [MASK_WIDTH / WIDTH, MASK_HEIGHT / HEIGHT];
  cars.forEach(({ left, top, width, height }, place) => {
    fill(left * scaleX, top * scaleY, (left + width) * scaleX, (top + height) * scaleY, place === 2 ? 5 : 6);
  });
  return { width: MASK_WIDTH, height: MASK_HEIGHT, data };
}
