/** A picture as a program has it, file, pixels or canvas, as the tensor that travels. */

import { probePicture } from "../codecs/picture.js";
import { samples } from "../codecs/sharp.js";
import { BadEncoding, BadTensor } from "../errors.js";
import { shown } from "../fields/fields.js";
import { DEFAULT_LIMITS } from "../limits.js";
import type { ImageContract, ModelCard } from "../states/card.js";
import { encodePicture, encodeTensor } from "../tensors.js";
import type { EncodedTensor } from "../types.js";
import { type Placement, placeInModel } from "./placement.js";

/** Pixels in RGBA order: an `ImageData`, or what libraries in node decode to. */
export interface Pixels {
  readonly data: Uint8Array | Uint8ClampedArray;
  readonly width: number;
  readonly height: number;
}
type Drawable = HTMLCanvasElement | OffscreenCanvas | ImageBitmap;

/** A JPEG or PNG (a `Blob` or `File`, its bytes, in node its path), pixels, or in browsers what can be drawn. */
export type Picture = string | URL | Blob | ArrayBuffer | Uint8Array | Pixels | Drawable;

/** Return the inputs of a request with a picture, or with one for each `[[image]]`, and where the first one lies. */
export async function pictureInputs(
  card: ModelCard,
  picture: Picture | readonly Picture[],
): Promise<{ inputs: Record<string, EncodedTensor>; placement: Placement }> {
  const contracts = card.images.length > 0 || !card.image ? card.images : [card.image];
  const given = Array.isArray(picture) ? (picture as readonly Picture[]) : [picture as Picture];
  const names = contracts.map(({ input }) => input).join(", ");
  if (contracts.length === 0) {
    const inputs = card.inputs
      .map(({ name, datatype, shape }) => `${name} ${datatype}[${shape.join(", ")}]`)
      .join(", ");
    const cure = `if one has a picture's shape, \`mqinfer infer ${card.name} --input a.jpg\` prints the line that its model.toml lacks`;
    throw new BadTensor(`model ${shown(card.name)} takes no pictures; its inputs are ${inputs}; ${cure}`);
  }
  if (given.length !== contracts.length) {
    throw new BadTensor(
      `${given.length} pictures: model ${shown(card.name)} takes ${contracts.length} in one request: ${names}`,
    );
  }
  const sent = await Promise.all(contracts.map((each, place) => pictureTensor(given[place] as Picture, each)));
  const inputs = Object.fromEntries(sent.map(({ tensor }) => [tensor.name, tensor]));
  return { inputs, placement: (sent[0] as { placement: Placement }).placement };
}

async function pictureTensor(picture: Picture, contract: ImageContract) {
  const file = await fileOf(picture);
  const tensor = file
    ? await fileTensor(file, contract.input)
    : rgbTensor(pixelsOf(picture as Pixels | Drawable), contract.input);
  const [, height = 0, width = 0, channels] = tensor.shape;
  const kind = (channels ? "rgb" : "mono") + (tensor.datatype === "UINT16" ? 16 : 8);
  return {
    tensor: { ...tensor, parameters: { image_encoding: kind } },
    placement: placeInModel(contract, width, height),
  };
}

/** Return the bytes of a file; undefined of pixels. */
async function fileOf(picture: Picture): Promise<Uint8Array | undefined> {
  if (picture instanceof Uint8Array) return picture;
  if (picture instanceof ArrayBuffer) return new Uint8Array(picture);
  if (picture instanceof Blob) return new Uint8Array(await picture.arrayBuffer());
  if (typeof picture !== "string" && !(picture instanceof URL)) return undefined;
  if (!("process" in globalThis))
    throw new BadTensor(`${picture}: a page reads no paths; give the File, or the Blob of a response`);
  const files = "node:fs/promises"; // not written in the call, where a bundler of pages looks for it
  return ((await import(/* @vite-ignore */ files)) as typeof import("node:fs/promises")).readFile(picture);
}

/** Return a file as it is or, of a kind that does not travel, such as one with transparency, its pixels. */
async function fileTensor(file: Uint8Array, name: string): Promise<EncodedTensor> {
  try {
    return encodePicture(name, file);
  } catch (error) {
    if (!(error instanceof BadEncoding)) throw error;
    return decodedTensor(file, name).catch(() => {
      throw error;
    });
  }
}

async function decodedTensor(file: Uint8Array, name: string): Promise<EncodedTensor> {
  if (typeof createImageBitmap === "function") {
    const blob = new Blob([file as Uint8Array<ArrayBuffer>]);
    return rgbTensor(pixelsOf(await createImageBitmap(blob, { colorSpaceConversion: "none" })), name);
  }
  const info = probePicture(file);
  if (!info || info.height * info.width > DEFAULT_LIMITS.imagePixels)
    throw new BadEncoding("no picture to decode here");
  const { height, width, channels } = info;
  return encodeTensor(name, await samples(name, file, info), {
    shape: [1, height, width, ...(channels < 3 ? [] : [3])],
  });
}

/** Return the pixels of what can be drawn; what is transparent becomes black. */
function pixelsOf(picture: Pixels | Drawable): Pixels {
  const { width, height } = picture ?? {};
  if (picture && width && height && !("data" in picture) && typeof OffscreenCanvas === "function") {
    const context = new OffscreenCanvas(width, height).getContext("2d") as OffscreenCanvasRenderingContext2D;
    context.drawImage(picture, 0, 0);
    return context.getImageData(0, 0, width, height);
  }
  if (picture && width && height && "data" in picture && picture.data.length === 4 * width * height) return picture;
  throw new BadTensor(
    "expected a JPEG or PNG, pixels { data, width, height } of 4 bytes in RGBA order each, or a canvas",
  );
}

function rgbTensor({ data, width, height }: Pixels, name: string): EncodedTensor {
  const rgb = new Uint8Array(3 * width * height);
  for (let from = 0, to = 0; to < rgb.length; from += 4, to += 3) {
    for (let channel = 0; channel < 3; channel++) rgb[to + channel] = data[from + channel] as number;
  }
  return encodeTensor(name, rgb, { shape: [1, height, width, 3] });
}
