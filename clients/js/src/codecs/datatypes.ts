/** The datatypes of tensors: their typed arrays, and the bytes that a shape takes. */

import { BadTensor, LimitExceeded } from "../errors.js";
import { shown } from "../fields/fields.js";
import type { Datatype, Limits, TensorData } from "../types.js";

type NumericArray = Exclude<TensorData, Uint8Array[]>;

interface ArrayKind {
  new (size: number): NumericArray;
  new (buffer: ArrayBufferLike, offset: number, size: number): NumericArray;
  readonly BYTES_PER_ELEMENT: number;
}

interface Numeric {
  /** Bytes of one element on the wire. */
  readonly itemBytes: number;
  /** The array that holds the elements as they travel; FP16 travels as its bits. */
  readonly array: ArrayKind;
}

const NUMERIC: Readonly<Record<Exclude<Datatype, "BYTES">, Numeric>> = {
  BOOL: { itemBytes: 1, array: Uint8Array },
  UINT8: { itemBytes: 1, array: Uint8Array },
  UINT16: { itemBytes: 2, array: Uint16Array },
  UINT32: { itemBytes: 4, array: Uint32Array },
  UINT64: { itemBytes: 8, array: BigUint64Array },
  INT8: { itemBytes: 1, array: Int8Array },
  INT16: { itemBytes: 2, array: Int16Array },
  INT32: { itemBytes: 4, array: Int32Array },
  INT64: { itemBytes: 8, array: BigInt64Array },
  FP16: { itemBytes: 2, array: Uint16Array },
  FP32: { itemBytes: 4, array: Float32Array },
  FP64: { itemBytes: 8, array: Float64Array },
};

/** The names of all datatypes. */
export const DATATYPES = [...Object.keys(NUMERIC), "BYTES"] as readonly Datatype[];

/** What one empty string takes here: a view, and its place in an array. In Python it is 48. */
const STRING_BYTES = 128;

/** Return how a datatype travels; undefined for BYTES. */
export function numeric(datatype: Datatype): Numeric | undefined {
  return datatype === "BYTES" ? undefined : NUMERIC[datatype];
}

/** Return the datatype of an array whose datatype was not stated. */
export function datatypeOf(data: TensorData | readonly unknown[]): Datatype {
  if (Array.isArray(data)) return "BYTES";
  const own = DATATYPES.filter((datatype) => datatype !== "BOOL" && datatype !== "FP16");
  const found = own.find((datatype) => numeric(datatype)?.array === data.constructor);
  if (found !== undefined) return found;
  if (data instanceof Uint8Array) return "UINT8";
  throw new BadTensor(`a tensor's data is a typed array, or an array of strings, not ${shown(String(data))}`);
}

/** Return the number of elements of a shape that was checked. */
export function elements(shape: readonly number[]): number {
  return shape.reduce((product, side) => product * side, 1);
}

/**
 * Check a claimed shape: whether its array, for BYTES its empty strings, fits into the limits.
 *
 * Axes of size 0 are left out of the product, as in every implementation, so `[0, 2**62]` is refused as well.
 *
 * @returns The bytes that it takes.
 * @throws BadTensor: An entry is no integer of 0 or more.
 * @throws LimitExceeded: Too many axes, or too many bytes.
 */
export function checkShape(name: string, datatype: Datatype, shape: readonly number[], limits: Limits): number {
  if (shape.length > limits.dimensions) {
    throw new LimitExceeded(`tensor ${shown(name)}: ${shape.length} axes; at most ${limits.dimensions} are accepted`);
  }
  let size = numeric(datatype)?.itemBytes ?? STRING_BYTES;
  for (const side of shape) {
    if (!Number.isInteger(side) || side < 0) {
      throw new BadTensor(`tensor ${shown(name)}: every entry of a shape must be an integer of 0 or more`);
    }
    size *= side || 1;
  }
  if (size > limits.tensorBytes) {
    throw new LimitExceeded(
      `tensor ${shown(name)}: shape [${shape}] of ${datatype} takes ${size} bytes; at most ${limits.tensorBytes} are accepted`,
    );
  }
  return size;
}
