/** The chunks of a PNG (https://www.w3.org/TR/png-3/), read before anything is decoded. Every loop is bounded. */

import { BadEncoding } from "../errors.js";
import { crc32 } from "./crc32.js";
import { joined } from "./join.js";
import type { PictureInfo } from "./picture.js";

const SIGNATURE = [0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a];
const FIRST_CHUNK = 8;
const HEADER_BYTES = 33;
const MAX_CHUNKS = 65536;
const MAX_SIDE = 2 ** 31 - 1;
/** Channels by colour type. */
const CHANNELS: ReadonlyMap<number, number> = new Map([
  [0, 1],
  [2, 3],
  [3, 3],
  [4, 2],
  [6, 4],
]);
const BITS = [1, 2, 4, 8, 16];
/** All that pixels are made of. Profiles, gamma and transparency are ignored: pixels are decoded as stored. */
const PIXEL_CHUNKS = ["IHDR", "PLTE", "IDAT", "IEND"];
/** A byte of deflate inflates to at most this many. */
const MAX_DEFLATE_RATIO = 1032;

interface Chunk {
  readonly kind: string;
  readonly begin: number;
  readonly end: number;
}

/** Return format and size of a PNG; undefined for other files. */
export function pngInfo(file: Uint8Array): PictureInfo | undefined {
  if (SIGNATURE.some((byte, place) => byte !== file[place])) return undefined;
  if (file.length < HEADER_BYTES) throw new BadEncoding(`PNG of ${file.length} bytes ends within its header`);
  const view = new DataView(file.buffer, file.byteOffset, HEADER_BYTES);
  const [width, height] = [view.getUint32(16), view.getUint32(20)];
  const [bits, colour] = [view.getUint8(24), view.getUint8(25)];
  if (kindOf(file, FIRST_CHUNK) !== "IHDR" || !isSide(width) || !isSide(height)) {
    throw new BadEncoding(`PNG: ${width}x${height}; IHDR with a size above 0 must be the first chunk`);
  }
  const channels = CHANNELS.get(colour);
  if (channels === undefined || !BITS.includes(bits)) {
    throw new BadEncoding(`PNG: colour type ${colour} with ${bits} bits a sample does not exist`);
  }
  return { format: "png", height, width, channels, isProgressive: view.getUint8(28) !== 0, bits: bits === 16 ? 16 : 8 };
}

/**
 * Return a PNG with nothing but its pixels: decoders would inflate its texts and profiles too.
 *
 * @throws BadEncoding: A checksum is wrong, it is truncated or animated, or can't hold its pixels.
 */
export function plainPng(file: Uint8Array, info: PictureInfo): Uint8Array {
  const kept = [file.subarray(0, FIRST_CHUNK)];
  let compressed = 0;
  for (const { kind, begin, end } of chunks(file)) {
    if (kind === "acTL") throw new BadEncoding("PNG: animations are not supported; send one picture");
    if (kind === "IDAT") compressed += end - begin - 12;
    if (PIXEL_CHUNKS.includes(kind)) kept.push(file.subarray(begin, end));
  }
  if (info.height * (1 + Math.ceil(info.width / 8)) > compressed * MAX_DEFLATE_RATIO) {
    throw new BadEncoding(`PNG with ${compressed} bytes of pixels can't hold ${info.width}x${info.height}: a bomb`);
  }
  return joined(kept);
}

function isSide(side: number): boolean {
  return side > 0 && side <= MAX_SIDE;
}

function kindOf(file: Uint8Array, at: number): string {
  return String.fromCharCode(...file.subarray(at + 4, at + 8));
}

/** Yield the chunks up to IEND, each after its checksum was verified. */
function* chunks(file: Uint8Array): Generator<Chunk> {
  const view = new DataView(file.buffer, file.byteOffset, file.length);
  let begin = FIRST_CHUNK;
  for (let count = 0; count < MAX_CHUNKS; count++) {
    const end = begin + 12 <= file.length ? begin + 12 + view.getUint32(begin) : Number.POSITIVE_INFINITY;
    if (end > file.length) throw new BadEncoding(`PNG of ${file.length} bytes is truncated`);
    const kind = kindOf(file, begin);
    if (crc32(file.subarray(begin + 4, end - 4)) !== view.getUint32(end - 4)) {
      throw new BadEncoding(`PNG: checksum of the chunk at byte ${begin} is wrong`);
    }
    yield { kind, begin, end };
    if (kind === "IEND") return;
    begin = end;
  }
  throw new BadEncoding(`PNG has more than ${MAX_CHUNKS} chunks`);
}
