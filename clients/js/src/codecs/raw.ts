/** The raw form of arrays: elements in row-major order, little-endian; of BYTES each string behind its length. */

import { BadTensor } from "../errors.js";
import { shown } from "../fields/fields.js";
import type { Datatype, EncodedTensor, TensorData } from "../types.js";
import { elements, numeric } from "./datatypes.js";
import { narrow, widen } from "./half.js";

const LENGTH_BYTES = 4;

/** Return the raw form of an array: a view of it where it needs no conversion. */
export function toRaw(name: string, datatype: Datatype, data: TensorData): Uint8Array {
  if (Array.isArray(data)) return joinStrings(data);
  const kind = numeric(datatype);
  const array = datatype === "FP16" && !(data instanceof Uint16Array) ? narrow(data as Float32Array) : data;
  if (kind === undefined || !(array instanceof kind.array)) {
    throw new BadTensor(`tensor ${shown(name)}: ${datatype} needs a ${kind?.array.name ?? "array of strings"}`);
  }
  const raw = new Uint8Array(array.buffer, array.byteOffset, array.byteLength);
  if (datatype === "BOOL") checkBooleans(name, raw);
  return raw;
}

/**
 * Return the array of raw bytes: a view of them where they lie at a multiple of the element's size, else a copy.
 *
 * @throws BadTensor: The bytes are not those of such an array.
 */
export function fromRaw(tensor: Pick<EncodedTensor, "name" | "datatype" | "shape">, raw: Uint8Array): TensorData {
  const { name, datatype, shape } = tensor;
  const kind = numeric(datatype);
  const count = elements(shape);
  if (kind === undefined) return splitStrings(name, raw, count);
  if (raw.length !== count * kind.itemBytes) {
    const expected = count * kind.itemBytes;
    throw new BadTensor(
      `tensor ${shown(name)}: ${datatype} of shape [${shape}] takes ${expected} bytes; got ${raw.length}`,
    );
  }
  if (datatype === "BOOL") checkBooleans(name, raw);
  const aligned = raw.byteOffset % kind.itemBytes ? new Uint8Array(raw) : raw;
  const array = new kind.array(aligned.buffer, aligned.byteOffset, count);
  return datatype === "FP16" ? widen(array as Uint16Array) : array;
}

function checkBooleans(name: string, raw: Uint8Array): void {
  if (raw.some((byte) => byte > 1)) throw new BadTensor(`tensor ${shown(name)}: a BOOL must be a byte of 0 or 1`);
}

function joinStrings(strings: readonly Uint8Array[]): Uint8Array {
  const raw = new Uint8Array(strings.reduce((sum, string) => sum + LENGTH_BYTES + string.length, 0));
  const view = new DataView(raw.buffer);
  let at = 0;
  for (const string of strings) {
    view.setUint32(at, string.length, true);
    raw.set(string, at + LENGTH_BYTES);
    at += LENGTH_BYTES + string.length;
  }
  return raw;
}

/** Split the raw form of so many strings; their lengths are added up before any array is made. */
function splitStrings(name: string, raw: Uint8Array, count: number): Uint8Array[] {
  const view = new DataView(raw.buffer, raw.byteOffset, raw.length);
  if (endOfStrings(view, count) !== raw.length) {
    throw new BadTensor(`tensor ${shown(name)}: lengths of ${count} strings don't add up to its ${raw.length} bytes`);
  }
  const found: Uint8Array[] = [];
  for (let at = 0; found.length < count; ) {
    const end = at + LENGTH_BYTES + view.getUint32(at, true);
    found.push(raw.subarray(at + LENGTH_BYTES, end));
    at = end;
  }
  return found;
}

function endOfStrings(view: DataView, count: number): number {
  let at = 0;
  for (let place = 0; place < count; place++) {
    if (at + LENGTH_BYTES > view.byteLength) return -1;
    at += LENGTH_BYTES + view.getUint32(at, true);
  }
  return at;
}
