/** `mask`: class masks as run lengths or packed pixels, in one LZ4 block (docs/reference/protocol.md, section 6). */

import { BadEncoding } from "../errors.js";
import { shown } from "../fields/fields.js";
import type { EncodedTensor } from "../types.js";
import { elements } from "./datatypes.js";
import { decompressBlock } from "./lz4_block.js";
import { compressBlock } from "./lz4_compress.js";

const HEAD_BYTES = 8;
const LONGEST = 65535;
/** Least number of pixels a run, on average: so expanding a mask takes a bounded multiple of its size. */
const PIXELS_PER_RUN = 8;
const BYTES_PER_RUN = 3;
const BITS = [1, 2, 4, 8];

/** Return class numbers as `mask`: as runs if they are long enough, else with as few bits a pixel as they need. */
export function encodeMask(pixels: Uint8Array): Uint8Array {
  if (pixels.length === 0) return new Uint8Array(0);
  const runs = longRuns(pixels);
  if (runs !== undefined) return framed(0, runs.length / BYTES_PER_RUN, runs);
  const largest = pixels.reduce((most, pixel) => Math.max(most, pixel), 0);
  const bits = BITS.find((count) => largest < 1 << count) ?? 8;
  return framed(bits, 0, packed(pixels, bits));
}

/**
 * Return the class numbers of a mask.
 *
 * @throws BadEncoding: It is no mask of the declared size.
 */
export function decodeMask(tensor: EncodedTensor): Uint8Array {
  const { name, bytes } = tensor;
  const size = elements(tensor.shape);
  if (size === 0 && bytes.length === 0) return new Uint8Array(0);
  if (size === 0 || bytes.length < HEAD_BYTES) throw corrupt(name, `${size} pixels can't have ${bytes.length} bytes`);
  const head = new DataView(bytes.buffer, bytes.byteOffset, HEAD_BYTES);
  const [bits, runs] = [head.getUint32(0, true), head.getUint32(4, true)];
  const block = bytes.subarray(HEAD_BYTES);
  if (bits === 0 && runs > 0 && runs * PIXELS_PER_RUN <= size) {
    return expanded(name, decompressBlock(name, block, runs * BYTES_PER_RUN), size);
  }
  if (BITS.includes(bits) && runs === 0) {
    return unpacked(decompressBlock(name, block, Math.ceil((size * bits) / 8)), bits, size);
  }
  throw corrupt(name, `${size} pixels can't have ${runs} runs and ${bits} bits a pixel`);
}

function corrupt(name: string, why: string): BadEncoding {
  return new BadEncoding(`tensor ${shown(name)}: the mask is corrupt: ${why}`);
}

function framed(bits: number, runs: number, content: Uint8Array): Uint8Array {
  const block = compressBlock(content);
  const bytes = new Uint8Array(HEAD_BYTES + block.length);
  const head = new DataView(bytes.buffer);
  head.setUint32(0, bits, true);
  head.setUint32(4, runs, true);
  bytes.set(block, HEAD_BYTES);
  return bytes;
}

/** Return the planes of runs (class numbers, low and high bytes of lengths); undefined where runs are too short. */
function longRuns(pixels: Uint8Array): Uint8Array | undefined {
  const splits = Math.floor(pixels.length / LONGEST) + 1;
  let left = Math.floor(pixels.length / PIXELS_PER_RUN) - splits;
  const lengths: number[] = [];
  const values: number[] = [];
  for (let begin = 0, at = 1; at <= pixels.length; at++) {
    if (at < pixels.length && pixels[at] === pixels[begin]) continue;
    if (--left < 0) return undefined;
    for (; begin < at; begin += LONGEST) {
      values.push(pixels[begin] as number);
      lengths.push(Math.min(at - begin, LONGEST));
    }
    begin = at;
  }
  return Uint8Array.from([
    ...values,
    ...lengths.map((length) => length & 0xff),
    ...lengths.map((length) => length >> 8),
  ]);
}

function expanded(name: string, planes: Uint8Array, size: number): Uint8Array {
  const runs = planes.length / BYTES_PER_RUN;
  const length = (run: number) => (planes[runs + run] as number) | ((planes[2 * runs + run] as number) << 8);
  let total = 0;
  for (let run = 0; run < runs; run++) total += length(run);
  if (total !== size) throw corrupt(name, `its runs have ${total} pixels, but ${size} are declared`);
  const pixels = new Uint8Array(size);
  for (let run = 0, at = 0; run < runs; run++) {
    const end = at + length(run);
    pixels.fill(planes[run] as number, at, end);
    at = end;
  }
  return pixels;
}

function packed(pixels: Uint8Array, bits: number): Uint8Array {
  if (bits === 8) return pixels;
  const found = new Uint8Array(Math.ceil((pixels.length * bits) / 8));
  const count = 8 / bits;
  for (let place = 0; place < pixels.length; place++) {
    const byte = Math.floor(place / count);
    found[byte] = (found[byte] as number) | ((pixels[place] as number) << (bits * (place % count)));
  }
  return found;
}

function unpacked(content: Uint8Array, bits: number, size: number): Uint8Array {
  if (bits === 8) return content;
  const pixels = new Uint8Array(size);
  const largest = (1 << bits) - 1;
  let at = 0;
  for (let byte = 0; byte < content.length; byte++) {
    let rest = content[byte] as number;
    for (const end = Math.min(at + 8 / bits, size); at < end; at++) {
      pixels[at] = rest & largest;
      rest >>= bits;
    }
  }
  return pixels;
}
