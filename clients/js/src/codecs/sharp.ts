/** Pixels of JPEGs and PNGs in node, by the package `sharp`, which a program installs where it wants them. */

import { BadEncoding, MissingExtra } from "../errors.js";
import { shown } from "../fields/fields.js";
import type { PictureInfo } from "./picture.js";

/**
 * Return the samples of a picture, grey or RGB as its header states, of 8 or 16 bits; what is transparent is kept as it is stored.
 *
 * @throws BadEncoding: It can't be decoded to that size.
 * @throws MissingExtra: The package is not installed.
 */
export async function samples(name: string, file: Uint8Array, info: PictureInfo): Promise<Uint8Array | Uint16Array> {
  const channels = info.channels < 3 ? 1 : 3;
  const space = channels === 1 ? (info.bits === 16 ? "grey16" : "b-w") : info.bits === 16 ? "rgb16" : "srgb";
  const sharp = await loaded();
  try {
    const image = sharp(file, { failOn: "error", limitInputPixels: false }).removeAlpha().toColourspace(space);
    const raw = await image.raw({ depth: info.bits === 16 ? "ushort" : "uchar" }).toBuffer({ resolveWithObject: true });
    if (raw.info.height !== info.height || raw.info.width !== info.width || raw.info.channels !== channels)
      throw new Error(`it has ${raw.info.width}x${raw.info.height} pixels of ${raw.info.channels} channels`);
    const bytes = new Uint8Array(raw.data);
    return info.bits === 16 ? new Uint16Array(bytes.buffer) : bytes;
  } catch (cause) {
    throw new BadEncoding(`tensor ${shown(name)}: the ${info.format} can't be decoded: ${(cause as Error).message}`, {
      cause,
    });
  }
}

async function loaded(): Promise<typeof import("sharp").default> {
  const name = "sharp"; // not written in the call, where a bundler of pages looks for it
  try {
    return ((await import(/* @vite-ignore */ name)) as typeof import("sharp")).default;
  } catch (cause) {
    throw new MissingExtra(
      "pictures are decoded by the package sharp in node (npm install sharp), in browsers by decodePicture",
      { cause },
    );
  }
}
