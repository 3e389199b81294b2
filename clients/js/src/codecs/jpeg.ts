/** The header of a JPEG (ITU-T T.81, annex B), read before anything is decoded. Every loop is bounded. */

import { BadEncoding } from "../errors.js";
import { joined } from "./join.js";
import type { PictureInfo } from "./picture.js";

const SOI = 0xd8;
const EOI = 0xd9;
const SOS = 0xda;
/** Start-of-frame markers that are read: baseline and extended sequential, and progressive. */
const FRAMES = [0xc0, 0xc1, 0xc2];
const PROGRESSIVE = 0xc2;
/** Markers in the range of the frames that are none: Huffman tables, an extension, arithmetic conditioning. */
const NO_FRAMES = [0xc4, 0xc8, 0xcc];
const MAX_SEGMENTS = 1024;
const MAX_SCANS = 32;
/** The first scan spends at least one bit on each block of 8x8 pixels, whatever its Huffman codes. */
const PIXELS_PER_BYTE = 512;
/** APP0 (JFIF) and APP14 (Adobe) state how colours are stored; the others hold profiles, orientation and comments. */
const KEPT_APPLICATIONS = [0xe0, 0xee];

interface Segment {
  readonly marker: number;
  /** Where its marker begins. */
  readonly begin: number;
  /** Where its content begins, behind its length. */
  readonly content: number;
  readonly end: number;
}

/** Return format and size of a JPEG; undefined for other files. */
export function jpegInfo(file: Uint8Array): PictureInfo | undefined {
  if (file[0] !== 0xff || file[1] !== SOI) return undefined;
  for (const { marker, content } of segments(file)) {
    if (FRAMES.includes(marker)) return frameInfo(file, content, marker);
    if (marker > PROGRESSIVE && marker < 0xd0 && !NO_FRAMES.includes(marker)) {
      throw new BadEncoding(`JPEG: coding process 0x${marker.toString(16)} (lossless or arithmetic) is not supported`);
    }
  }
  throw new BadEncoding("JPEG: no frame header before the pixels");
}

/**
 * Return a JPEG without what is to be ignored: colour profiles, and the orientation that browsers would obey.
 *
 * @throws BadEncoding: It is truncated, can't hold its pixels, or has too many scans.
 */
export function plainJpeg(file: Uint8Array, info: PictureInfo): Uint8Array {
  if (info.height * info.width > file.length * PIXELS_PER_BYTE) {
    throw new BadEncoding(`JPEG of ${file.length} bytes can't hold ${info.width}x${info.height} pixels: a bomb`);
  }
  const kept = [file.subarray(0, 2)];
  let rest = file.length;
  for (const { marker, begin, content, end } of segments(file)) {
    if (marker === SOS) {
      checkScans(file.subarray(content), info);
      rest = begin;
    } else if (marker < 0xe0 || marker > 0xef || KEPT_APPLICATIONS.includes(marker)) {
      kept.push(file.subarray(begin, end));
    }
  }
  kept.push(file.subarray(rest));
  return joined(kept);
}

/** Yield the segments up to the first scan. */
function* segments(file: Uint8Array): Generator<Segment> {
  const view = new DataView(file.buffer, file.byteOffset, file.length);
  let at = 2;
  for (let count = 0; count < MAX_SEGMENTS; count++) {
    if (at + 4 > file.length) throw new BadEncoding(`JPEG of ${file.length} bytes ends within its header`);
    const marker = file[at + 1] as number;
    if (file[at] !== 0xff || marker === 0) throw new BadEncoding(`JPEG: no marker at byte ${at}`);
    if (marker === 0xff || isBare(marker)) {
      at += marker === 0xff ? 1 : 2;
      continue;
    }
    const end = at + 2 + view.getUint16(at + 2);
    yield { marker, begin: at, content: at + 4, end };
    if (marker === SOS || marker === EOI || end < at + 4) return;
    at = end;
  }
}

/** Return whether no segment follows a marker. */
function isBare(marker: number): boolean {
  return marker === 1 || (marker >= 0xd0 && marker <= SOI);
}

function frameInfo(file: Uint8Array, at: number, marker: number): PictureInfo {
  if (at + 6 > file.length) throw new BadEncoding(`JPEG of ${file.length} bytes ends within its header`);
  const view = new DataView(file.buffer, file.byteOffset + at, 6);
  const [bits, height, width] = [view.getUint8(0), view.getUint16(1), view.getUint16(3)];
  const channels = view.getUint8(5);
  if (!height || !width || !channels) {
    throw new BadEncoding(`JPEG: ${width}x${height} with ${channels} components; none may be 0`);
  }
  return { format: "jpeg", height, width, channels, isProgressive: marker === PROGRESSIVE, bits };
}

function checkScans(scan: Uint8Array, info: PictureInfo): void {
  if (count(scan, EOI) === 0) throw new BadEncoding("JPEG has no end-of-image marker: truncated");
  if (scan[0] === info.channels && !info.isProgressive) return; // one scan holds all components
  const scans = 1 + count(scan, SOS);
  if (scans > MAX_SCANS) throw new BadEncoding(`JPEG has ${scans} scans; at most ${MAX_SCANS} are accepted`);
}

function count(bytes: Uint8Array, marker: number): number {
  let found = 0;
  for (let at = bytes.indexOf(0xff); at >= 0; at = bytes.indexOf(0xff, at + 1)) {
    if (bytes[at + 1] === marker) found++;
  }
  return found;
}
