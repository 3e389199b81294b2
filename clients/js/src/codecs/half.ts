/** FP16, which JavaScript has no arrays for: widened to 32 bits, and rounded back. */

const FLOAT = new Float32Array(1);
const BITS = new Uint32Array(FLOAT.buffer);
const LEAST_NORMAL = 2 ** -14;
const LEAST = 2 ** -24;

/** Return the values of numbers of 16 bits. */
export function widen(halves: Uint16Array): Float32Array {
  return Float32Array.from(halves, widened);
}

/** Return the bits of numbers rounded to 16 bits, to the nearest, of two equally near ones to the even one. */
export function narrow(values: ArrayLike<number>): Uint16Array {
  return Uint16Array.from(values, narrowed);
}

function widened(half: number): number {
  const sign = half & 0x8000 ? -1 : 1;
  const exponent = (half >> 10) & 0x1f;
  const fraction = half & 0x3ff;
  if (exponent === 0) return sign * fraction * LEAST;
  if (exponent === 0x1f) return fraction ? Number.NaN : sign * Number.POSITIVE_INFINITY;
  return sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
}

function narrowed(value: number): number {
  FLOAT[0] = value;
  const bits = BITS[0] as number;
  const sign = (bits >>> 16) & 0x8000;
  if (Number.isNaN(value)) return sign | 0x7e00;
  const size = Math.abs(value);
  if (size < LEAST_NORMAL) return sign | toEven(size / LEAST);
  if (size >= 65520) return sign | 0x7c00;
  const exponent = Math.floor(Math.log2(size));
  const place = 2 ** exponent <= size ? exponent : exponent - 1;
  return sign | (((place + 15) << 10) + toEven((size / 2 ** place - 1) * 1024));
}

function toEven(value: number): number {
  const below = Math.floor(value);
  const rest = value - below;
  return rest > 0.5 || (rest === 0.5 && below % 2 === 1) ? below + 1 : below;
}
