/** `jpeg` and `png`: what a picture's header states, checked against shape and limits before anything is decoded. */

import { BadEncoding, LimitExceeded, MissingExtra } from "../errors.js";
import { shown } from "../fields/fields.js";
import type { EncodedTensor, Limits } from "../types.js";
import { jpegInfo, plainJpeg } from "./jpeg.js";
import { plainPng, pngInfo } from "./png.js";

/** Format and size of an encoded picture. */
export interface PictureInfo {
  readonly format: "jpeg" | "png";
  readonly height: number;
  readonly width: number;
  /** 1 grey, 2 grey with alpha, 3 colour (a palette too), 4 colour with alpha or CMYK. */
  readonly channels: number;
  /** Whether it is a progressive JPEG or an interlaced PNG. */
  readonly isProgressive: boolean;
  /** Of one sample after decoding: 8 or 16; 12 in JPEGs that are refused later. */
  readonly bits: number;
}

/**
 * Return format and size of a JPEG or PNG; undefined for other files.
 *
 * @throws BadEncoding: Its header is corrupt.
 */
export function probePicture(file: Uint8Array): PictureInfo | undefined {
  return jpegInfo(file) ?? pngInfo(file);
}

/**
 * Return format and size of a JPEG or PNG of a kind that receivers take.
 *
 * @throws BadEncoding: It is neither, its header is corrupt, or it has alpha, four colours or 12 bits.
 */
export function pictureInfo(name: string, file: Uint8Array): PictureInfo {
  const info = probePicture(file);
  if (info === undefined) throw new BadEncoding(`tensor ${shown(name)}: ${file.length} bytes are neither JPEG nor PNG`);
  if (![1, 3].includes(info.channels) || ![8, 16].includes(info.bits)) {
    throw new BadEncoding(
      `tensor ${shown(name)}: ${info.format} with ${info.channels} channels of ${info.bits} bits is not supported;` +
        " save it as 8-bit grey or RGB, without alpha",
    );
  }
  return info;
}

/**
 * Return the bytes of a picture that are to be decoded, without its profiles, orientation and texts.
 *
 * @throws BadEncoding: Its header is not that of the declared tensor, or it is truncated, or a bomb.
 * @throws LimitExceeded: It has too many pixels.
 */
export function checkedPicture(tensor: EncodedTensor, limits: Limits): Uint8Array {
  const { name, bytes } = tensor;
  const info = pictureInfo(name, bytes);
  checkDeclared(tensor, info);
  if (info.height * info.width > limits.imagePixels) {
    throw new LimitExceeded(
      `tensor ${shown(name)}: ${info.width}x${info.height} pixels; at most ${limits.imagePixels} are accepted`,
    );
  }
  return info.format === "jpeg" ? plainJpeg(bytes, info) : plainPng(bytes, info);
}

/**
 * Decode the bytes of a checked picture with the browser's decoder.
 *
 * @throws BadEncoding: The browser can't decode it to the declared size.
 * @throws MissingExtra: There is no decoder here, as in node.
 */
export async function decodeBitmap(tensor: EncodedTensor, file: Uint8Array): Promise<ImageBitmap> {
  if (typeof createImageBitmap !== "function") {
    throw new MissingExtra("decodePicture makes bitmaps, in browsers; decodePixels makes arrays, in node");
  }
  const blob = new Blob([file as Uint8Array<ArrayBuffer>], { type: `image/${tensor.encoding}` });
  const bitmap = await createImageBitmap(blob, { colorSpaceConversion: "none", premultiplyAlpha: "none" }).catch(
    (error: unknown) => {
      throw new BadEncoding(`tensor ${shown(tensor.name)}: the browser can't decode the picture`, { cause: error });
    },
  );
  if (bitmap.width * bitmap.height === pixelsOf(tensor.shape)) return bitmap;
  bitmap.close();
  throw new BadEncoding(`tensor ${shown(tensor.name)}: the browser decoded another size than is declared`);
}

function checkDeclared(tensor: EncodedTensor, info: PictureInfo): void {
  const { name, encoding, shape, datatype } = tensor;
  if (info.format !== encoding) {
    throw new BadEncoding(`tensor ${shown(name)}: encoding is ${encoding}, but the bytes are ${info.format}`);
  }
  const size = [info.height, info.width];
  const frames = info.channels === 1 ? [size, [...size, 1]] : [[...size, 3]];
  if (!frames.some((frame) => isShape(shape, frame) || isShape(shape, [1, ...frame]))) {
    throw new BadEncoding(
      `tensor ${shown(name)}: shape [${shape}] is declared, but the ${encoding} has ${info.height} rows,` +
        ` ${info.width} columns and ${info.channels} channels`,
    );
  }
  if (datatype !== (info.bits === 16 ? "UINT16" : "UINT8")) {
    throw new BadEncoding(`tensor ${shown(name)}: ${datatype} is declared, but samples have ${info.bits} bits`);
  }
}

function isShape(shape: readonly number[], expected: readonly number[]): boolean {
  return shape.length === expected.length && expected.every((side, axis) => side === shape[axis]);
}

/** Return height times width of a declared shape that `checkDeclared` has found right. */
function pixelsOf(shape: readonly number[]): number {
  const channels = shape.length > 2 && [1, 3].includes(shape.at(-1) as number) ? (shape.at(-1) as number) : 1;
  return shape.reduce((product, side) => product * side, 1) / channels;
}
