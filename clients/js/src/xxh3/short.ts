/** XXH3-64 of up to 240 bytes: few steps, so BigInt is fast enough. */

import { avalanche, fold, PRIME64_1, PRIME64_2, PRIME64_3, SECRET, secret, word } from "./words.js";

/** Payloads above this are hashed in stripes. */
export const LONG = 240;

const PRIME_MX2 = 0x9fb21c651e98df25n;
const MIDDLE = 128;

/** Return the hash of at most 240 bytes. */
export function shortHash(data: Uint8Array): bigint {
  const view = new DataView(data.buffer, data.byteOffset, data.length);
  if (data.length > MIDDLE) return upTo240(view);
  if (data.length > 16) return upTo128(view);
  if (data.length > 8) return upTo16(view);
  if (data.length > 3) return upTo8(view);
  return upTo3(view);
}

function upTo3(view: DataView): bigint {
  const length = view.byteLength;
  if (length === 0) return avalanche64(secret(56) ^ secret(64));
  const last = view.getUint8(length - 1);
  const middle = view.getUint8(length >> 1);
  const all = ((view.getUint8(0) << 16) | (middle << 24) | last | (length << 8)) >>> 0;
  return avalanche64(BigInt((all ^ SECRET.getUint32(0, true) ^ SECRET.getUint32(4, true)) >>> 0));
}

function upTo8(view: DataView): bigint {
  const length = view.byteLength;
  const [first, last] = [view.getUint32(0, true), view.getUint32(length - 4, true)];
  let mixed = (BigInt(last) + (BigInt(first) << 32n)) ^ secret(8) ^ secret(16);
  mixed ^= rotate(mixed, 49n) ^ rotate(mixed, 24n);
  mixed = word(mixed * PRIME_MX2);
  mixed ^= (mixed >> 35n) + BigInt(length);
  mixed = word(mixed * PRIME_MX2);
  return mixed ^ (mixed >> 28n);
}

function upTo16(view: DataView): bigint {
  const length = view.byteLength;
  const low = view.getBigUint64(0, true) ^ secret(24) ^ secret(32);
  const high = view.getBigUint64(length - 8, true) ^ secret(40) ^ secret(48);
  return avalanche(word(BigInt(length) + swap(low) + high + fold(low, high)));
}

function upTo128(view: DataView): bigint {
  const length = view.byteLength;
  let sum = BigInt(length) * PRIME64_1;
  for (let pair = (length - 1) >> 5; pair >= 0; pair--) {
    sum += mix(view, 16 * pair, 32 * pair) + mix(view, length - 16 * (pair + 1), 32 * pair + 16);
  }
  return avalanche(word(sum));
}

function upTo240(view: DataView): bigint {
  const length = view.byteLength;
  let sum = BigInt(length) * PRIME64_1;
  for (let at = 0; at < MIDDLE; at += 16) sum += mix(view, at, at);
  sum = avalanche(word(sum));
  for (let at = MIDDLE; at + 16 <= length; at += 16) sum += mix(view, at, at - MIDDLE + 3);
  return avalanche(word(sum + mix(view, length - 16, 119)));
}

function mix(view: DataView, at: number, key: number): bigint {
  return fold(view.getBigUint64(at, true) ^ secret(key), view.getBigUint64(at + 8, true) ^ secret(key + 8));
}

function avalanche64(value: bigint): bigint {
  const first = word((value ^ (value >> 33n)) * PRIME64_2);
  const second = word((first ^ (first >> 29n)) * PRIME64_3);
  return second ^ (second >> 32n);
}

function rotate(value: bigint, bits: bigint): bigint {
  return word(value << bits) | (value >> (64n - bits));
}

function swap(value: bigint): bigint {
  const view = new DataView(new ArrayBuffer(8));
  view.setBigUint64(0, value, true);
  return view.getBigUint64(0, false);
}
