/** Arrays to encoded tensors, and back. */

import { checkShape, datatypeOf, elements, numeric } from "./codecs/datatypes.js";
import { decompressBlock } from "./codecs/lz4_block.js";
import { compressBlock } from "./codecs/lz4_compress.js";
import { decodeMask, encodeMask } from "./codecs/mask.js";
import { checkedPicture, decodeBitmap, pictureInfo } from "./codecs/picture.js";
import { fromRaw, toRaw } from "./codecs/raw.js";
import { samples } from "./codecs/sharp.js";
import { shuffle, unshuffle } from "./codecs/shuffle.js";
import { BadEncoding, BadTensor, LimitExceeded } from "./errors.js";
import { shown } from "./fields/fields.js";
import { DEFAULT_LIMITS } from "./limits.js";
import type { Datatype, EncodedTensor, Limits, Parameters, Tensor, TensorData } from "./types.js";

/** How an array is to travel. */
export interface EncodeOptions {
  /** That of the typed array without it; `BOOL` is for a Uint8Array of 0 and 1, `FP16` for a Float32Array. */
  readonly datatype?: Datatype;
  /** One axis without it. */
  readonly shape?: readonly number[];
  /** `raw` (default), `lz4`, `shuffle-lz4` or `mask`. */
  readonly encoding?: string;
  /** Further parameters of the tensor. */
  readonly parameters?: Parameters;
}

const RAW_SIZE = "raw_size";
const DECODED_HERE = "raw, lz4, shuffle-lz4 and mask; decodePicture and decodePixels decode jpeg and png";
const ONE_BYTE: readonly Datatype[] = ["UINT8", "BOOL"];

/**
 * Return an array as it travels.
 *
 * @param data - Elements in row-major order. Strings become BYTES, in UTF-8. With `raw` the tensor is a view of the
 *   array: don't change it until it is sent.
 * @throws BadTensor: The data are not those of the datatype and shape.
 * @throws BadEncoding: There is no such codec here, or it can't carry the array.
 */
export function encodeTensor(
  name: string,
  data: TensorData | readonly (string | Uint8Array)[],
  options: EncodeOptions = {},
): EncodedTensor {
  checkElements(name, data);
  const { datatype = datatypeOf(data), shape = [data.length], encoding = "raw", parameters = {} } = options;
  checkShape(name, datatype, shape, { ...DEFAULT_LIMITS, tensorBytes: Number.POSITIVE_INFINITY });
  if (elements(shape) !== data.length) {
    throw new BadTensor(`tensor ${shown(name)}: shape [${shape}] has ${elements(shape)} elements; got ${data.length}`);
  }
  const raw = toRaw(name, datatype, bytesOfStrings(data));
  const needsSize = datatype === "BYTES" && encoding.endsWith("lz4");
  const further = needsSize ? { ...parameters, [RAW_SIZE]: raw.length } : parameters;
  return { name, datatype, shape, encoding, parameters: further, bytes: encoded(name, datatype, raw, encoding) };
}

/**
 * Return a JPEG or PNG file as a tensor, without decoding it: of shape [1, height, width, 3], or [1, height, width].
 *
 * @throws BadEncoding: It is neither, or of a kind that receivers refuse (alpha, CMYK, 12 bits).
 */
export function encodePicture(name: string, file: Uint8Array, parameters: Parameters = {}): EncodedTensor {
  const info = pictureInfo(name, file);
  const shape = [1, info.height, info.width, ...(info.channels === 3 ? [3] : [])];
  const datatype = info.bits === 16 ? "UINT16" : "UINT8";
  return { name, datatype, shape, encoding: info.format, parameters, bytes: file };
}

/**
 * Decode an array; its declared size is checked before memory is taken for it.
 *
 * @returns The tensor. With `raw` its data are a view of the payload, where that lies as the elements need it.
 * @throws BadEncoding: The codec is none of this function's, or the bytes are not those of the declared array.
 * @throws BadTensor: The shape or the raw bytes are wrong.
 * @throws LimitExceeded: Something is larger than `limits`.
 */
export function decodeTensor(tensor: EncodedTensor, limits: Limits = DEFAULT_LIMITS): Tensor {
  const { name, datatype, shape } = tensor;
  checkShape(name, datatype, shape, limits);
  return { name, datatype, shape, data: decoded(tensor, limits) };
}

/**
 * Check that the outputs of a reply take no more memory together than one may, before any is decoded.
 *
 * @throws LimitExceeded: They take more.
 */
export function checkTogether(outputs: readonly EncodedTensor[], limits: Limits = DEFAULT_LIMITS): void {
  const sizes = outputs.map(({ name, datatype, shape }) => checkShape(name, datatype, shape, limits));
  const size = sizes.reduce((sum, each) => sum + each, 0);
  if (size <= limits.tensorBytes) return;
  throw new LimitExceeded(
    `its ${outputs.length} outputs take ${size} bytes; at most ${limits.tensorBytes} are accepted`,
  );
}

/**
 * Decode a JPEG or PNG with the browser's decoder, after its header was checked; samples of 16 bits become 8.
 *
 * @throws BadEncoding: It is not the declared picture, or corrupt.
 * @throws LimitExceeded: It is larger than `limits`.
 * @throws MissingExtra: There is no decoder here, as in node.
 */
export async function decodePicture(tensor: EncodedTensor, limits: Limits = DEFAULT_LIMITS): Promise<ImageBitmap> {
  return decodeBitmap(tensor, checkedFile(tensor, limits));
}

/**
 * Decode a JPEG or PNG into an array of the declared shape, as Python does: in node, with the package `sharp`.
 *
 * @throws BadEncoding: It is not the declared picture, or corrupt.
 * @throws LimitExceeded: It is larger than `limits`.
 * @throws MissingExtra: The package is not there.
 */
export async function decodePixels(tensor: EncodedTensor, limits: Limits = DEFAULT_LIMITS): Promise<Tensor> {
  const { name, datatype, shape } = tensor;
  const file = checkedFile(tensor, limits);
  return { name, datatype, shape, data: await samples(name, file, pictureInfo(name, file)) };
}

function checkedFile(tensor: EncodedTensor, limits: Limits): Uint8Array {
  if (!["jpeg", "png"].includes(tensor.encoding)) {
    throw new BadEncoding(`tensor ${shown(tensor.name)}: ${shown(tensor.encoding)} is no picture; use decodeTensor`);
  }
  checkShape(tensor.name, tensor.datatype, tensor.shape, limits);
  return checkedPicture(tensor, limits);
}

/** Refuse what only a program without types can pass, such as an array of numbers. */
function checkElements(name: string, data: unknown): void {
  const isStrings = Array.isArray(data) && data.every((each) => typeof each === "string" || each instanceof Uint8Array);
  if (isStrings || ArrayBuffer.isView(data)) return;
  const got = Array.isArray(data) ? "an array of other things" : typeof data;
  const expected =
    "a typed array such as Float32Array.of(1, 2), an array of strings, or { data, shape } with one of them";
  throw new BadTensor(`tensor ${shown(name)}: expected ${expected}; got ${got}`);
}

function bytesOfStrings(data: TensorData | readonly (string | Uint8Array)[]): TensorData {
  if (!Array.isArray(data)) return data as TensorData;
  const encoder = new TextEncoder();
  return data.map((element: string | Uint8Array) => (typeof element === "string" ? encoder.encode(element) : element));
}

function encoded(name: string, datatype: Datatype, raw: Uint8Array, encoding: string): Uint8Array {
  if (encoding === "raw" || (raw.length === 0 && ["lz4", "shuffle-lz4"].includes(encoding))) return raw;
  if (encoding === "lz4") return compressBlock(raw);
  if (encoding === "shuffle-lz4") return compressBlock(shuffle(raw, numeric(datatype)?.itemBytes ?? 1));
  if (encoding !== "mask") throw unknown(name, encoding);
  if (ONE_BYTE.includes(datatype)) return encodeMask(raw);
  throw new BadEncoding(`tensor ${shown(name)}: mask takes UINT8 or BOOL, not ${datatype}; use lz4 or raw`);
}

function decoded(tensor: EncodedTensor, limits: Limits): TensorData {
  const { name, datatype, encoding, bytes } = tensor;
  if (encoding === "raw") return fromRaw(tensor, bytes);
  if (encoding === "mask") return decodedMask(tensor);
  if (encoding !== "lz4" && encoding !== "shuffle-lz4") throw unknown(name, encoding);
  const raw = decompressBlock(name, bytes, rawSize(tensor, limits));
  return fromRaw(tensor, encoding === "lz4" ? raw : unshuffle(raw, numeric(datatype)?.itemBytes ?? 1));
}

function decodedMask(tensor: EncodedTensor): Uint8Array {
  const { name, datatype } = tensor;
  if (!ONE_BYTE.includes(datatype)) {
    throw new BadEncoding(`tensor ${shown(name)}: mask holds UINT8 or BOOL, not ${datatype}`);
  }
  const pixels = decodeMask(tensor);
  if (datatype === "BOOL" && pixels.some((pixel) => pixel > 1)) {
    throw new BadEncoding(`tensor ${shown(name)}: a BOOL must be 0 or 1`);
  }
  return pixels;
}

function rawSize(tensor: EncodedTensor, limits: Limits): number {
  const kind = numeric(tensor.datatype);
  if (kind !== undefined) return elements(tensor.shape) * kind.itemBytes;
  const size = tensor.parameters[RAW_SIZE];
  if ((typeof size !== "number" && typeof size !== "bigint") || size < 0 || !Number.isInteger(Number(size))) {
    throw new BadEncoding(`tensor ${shown(tensor.name)}: LZ4 of BYTES needs the parameter ${RAW_SIZE}, in bytes`);
  }
  if (size <= limits.tensorBytes) return Number(size);
  throw new LimitExceeded(
    `tensor ${shown(tensor.name)}: ${RAW_SIZE} is ${size}; at most ${limits.tensorBytes} are accepted`,
  );
}

function unknown(name: string, encoding: string): BadEncoding {
  return new BadEncoding(
    `tensor ${shown(name)}: encoding ${shown(encoding)} is not known here; known are ${DECODED_HERE}`,
  );
}
