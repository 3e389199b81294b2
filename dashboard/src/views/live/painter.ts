import type { ClassInfo, ShownFrame } from "../../site/types.js";
import { drawBoxes } from "./boxes.js";
import { boxColourOf, fillPixels, LEVEL_PIXELS } from "./palette.js";

/** The elements of a tile that change with each frame. */
export interface Surfaces {
  readonly tile: HTMLElement;
  /** Holds the canvases; has the shape of the model's picture. */
  readonly stack: HTMLElement;
  readonly picture: HTMLCanvasElement;
  readonly mask: HTMLCanvasElement;
  readonly boxes: HTMLCanvasElement;
}

/**
 * Draws the frames of one tile, picture and answer at once, past the page's tree.
 *
 * Of frames that come faster than the screen shows them the latest is drawn. Buffers are kept as long as the mask's size
 * stays, so that a frame takes no new memory.
 */
export class Painter {
  readonly #surfaces: Surfaces;
  readonly #table = new Uint32Array(256);
  readonly #counts = new Uint32Array(256);
  /** Of objects; the number that stands for nothing is transparent. */
  readonly #partial = new Uint32Array(256);
  #classes: readonly ClassInfo[] = [];
  #only = "";
  #image: ImageData | null = null;
  #pixels = new Uint32Array(0);
  #frame: ShownFrame | null = null;
  #request = 0;

  constructor(surfaces: Surfaces) {
    this.#surfaces = surfaces;
    fillPixels(this.#table, [], "");
  }

  /** Pixels of each class number in the mask drawn last. */
  get counts(): Uint32Array {
    return this.#counts;
  }

  /** Take the card's classes, and the name of the only one to draw. */
  setClasses(classes: readonly ClassInfo[], only: string): void {
    this.#classes = classes;
    this.#only = only;
    fillPixels(this.#table, classes, only);
    fillPixels(this.#partial, classes, only, boxColourOf);
    this.#partial[255] = 0;
    this.#schedule();
  }

  /** Draw a frame with the next picture of the screen, unless a later one comes before. */
  show(frame: ShownFrame | null): void {
    this.#frame = frame;
    this.#schedule();
  }

  /** Draw the same frame again, for the boxes' canvas has a new size. */
  redraw(): void {
    this.#schedule();
  }

  close(): void {
    cancelAnimationFrame(this.#request);
    this.#frame = null;
    this.#image = null;
    this.#pixels = new Uint32Array(0);
  }

  #schedule(): void {
    if (this.#request) return;
    this.#request = requestAnimationFrame(() => {
      this.#request = 0;
      this.#draw(this.#frame);
    });
  }

  #draw(frame: ShownFrame | null): void {
    const { tile, stack } = this.#surfaces;
    const sequence = String(frame?.sequence ?? "");
    const [width, height] = shapeOf(frame);
    stack.style.setProperty("--ratio", (width / height).toFixed(4));
    const hasPicture = this.#drawPicture(frame?.preview ?? null, sequence);
    this.#drawMask(frame?.mask ?? null, sequence);
    drawBoxes(this.#surfaces.boxes, frame?.boxes ?? [], [width, height], this.#classes, this.#only);
    tile.dataset.sequence = sequence;
    stack.dataset.picture = String(hasPicture);
    stack.dataset.scale = String(Boolean(frame?.mask?.scale));
  }

  #drawPicture(preview: ImageBitmap | null, sequence: string): boolean {
    const canvas = this.#surfaces.picture;
    const hasPicture = preview !== null && preview.width > 0; // one that was closed has no width
    canvas.dataset.sequence = hasPicture ? sequence : "";
    canvas.hidden = !hasPicture;
    if (!hasPicture) return false;
    setSize(canvas, preview.width, preview.height);
    canvas.getContext("2d", { alpha: false })?.drawImage(preview, 0, 0);
    return true;
  }

  #drawMask(mask: ShownFrame["mask"], sequence: string): void {
    const canvas = this.#surfaces.mask;
    this.#counts.fill(0);
    const count = mask ? mask.width * mask.height : 0;
    canvas.hidden = !count || mask?.data.length !== count;
    canvas.dataset.sequence = canvas.hidden ? "" : sequence;
    if (!mask || canvas.hidden) return;
    const context = canvas.getContext("2d", { willReadFrequently: true }); // written by the processor in any case
    if (!context) return;
    setSize(canvas, mask.width, mask.height);
    if (this.#image?.width !== mask.width || this.#image.height !== mask.height) {
      this.#image = context.createImageData(mask.width, mask.height);
      this.#pixels = new Uint32Array(this.#image.data.buffer);
    }
    const table = mask.scale ? LEVEL_PIXELS : mask.isPartial ? this.#partial : this.#table;
    paint(mask.data, table, this.#pixels, this.#counts);
    if (mask.isPartial) this.#counts[255] = 0;
    context.putImageData(this.#image, 0, 0);
  }
}

/** Look up the pixel of each class number, and count how often each occurs. */
export function paint(mask: Uint8Array, table: Uint32Array, pixels: Uint32Array, counts: Uint32Array): void {
  for (let place = 0; place < mask.length; place++) {
    const number = mask[place] as number;
    pixels[place] = table[number] as number;
    counts[number] = (counts[number] as number) + 1;
  }
}

/** Return the size of the model's picture, or of what there is of the frame. */
function shapeOf(frame: ShownFrame | null): readonly [number, number] {
  const known = [frame?.size, frame?.preview && [frame.preview.width, frame.preview.height]];
  const mask = frame?.mask;
  for (const size of [...known, mask && [mask.width, mask.height]]) {
    if (size && (size[0] ?? 0) > 0 && (size[1] ?? 0) > 0) return [size[0] ?? 1, size[1] ?? 1];
  }
  return [16, 9];
}

function setSize(canvas: HTMLCanvasElement, width: number, height: number): void {
  if (canvas.width !== width) canvas.width = width;
  if (canvas.height !== height) canvas.height = height;
}
