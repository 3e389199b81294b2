/**
 * XXH3-64 of more than 240 bytes, in stripes of 64.
 *
 * The sums of 64 bits are kept as halves of 32 in plain numbers: BigInt would take tens of times as long.
 */

import {
  avalanche,
  fold,
  PRIME32_1,
  PRIME32_2,
  PRIME32_3,
  PRIME64_1,
  PRIME64_2,
  PRIME64_3,
  PRIME64_4,
  PRIME64_5,
  SECRET,
  secret,
  word,
} from "./words.js";

const STRIPE = 64;
const STRIPES = 16;
const START = [PRIME32_3, PRIME64_1, PRIME64_2, PRIME64_3, PRIME64_4, PRIME32_2, PRIME64_5, PRIME32_1];
const HALF = 65536;
const WHOLE = 4294967296;
/** The secret as words of 32 bits, for each of the 8 bytes that a stripe's key is shifted by, and for the last stripe. */
const KEYS = Array.from({ length: STRIPES }, (_, stripe) => words(8 * stripe));
const SCRAMBLE = words(128);
const LAST = words(121);

/** Return the hash of more than 240 bytes. */
export function longHash(data: Uint8Array): bigint {
  const view = new DataView(data.buffer, data.byteOffset, data.length);
  const sums = new Uint32Array(16);
  START.forEach((value, lane) => {
    sums[2 * lane] = Number(value & 0xffffffffn);
    sums[2 * lane + 1] = Number(value >> 32n);
  });
  const end = data.length - 1;
  let stripe = 0;
  for (let at = 0; at + STRIPE <= end; at += STRIPE) {
    add(sums, view, at, KEYS[stripe] as Uint32Array);
    stripe += 1;
    if (stripe === STRIPES) {
      scramble(sums);
      stripe = 0;
    }
  }
  add(sums, view, data.length - STRIPE, LAST);
  return merge(sums, data.length);
}

function words(at: number): Uint32Array {
  return Uint32Array.from({ length: 16 }, (_, place) => SECRET.getUint32(at + 4 * place, true));
}

/** Add one stripe to the sums. */
function add(sums: Uint32Array, view: DataView, at: number, key: Uint32Array): void {
  for (let lane = 0; lane < 16; lane += 2) {
    const low = view.getUint32(at + 4 * lane, true);
    const high = view.getUint32(at + 4 * lane + 4, true);
    addTo(sums, lane ^ 2, low, high);
    const left = (low ^ (key[lane] as number)) >>> 0;
    const right = (high ^ (key[lane + 1] as number)) >>> 0;
    addTo(sums, lane, Math.imul(left, right) >>> 0, highHalf(left, right));
  }
}

function addTo(sums: Uint32Array, lane: number, low: number, high: number): void {
  const sum = (sums[lane] as number) + low;
  sums[lane] = sum;
  sums[lane + 1] = (sums[lane + 1] as number) + high + (sum >= WHOLE ? 1 : 0);
}

/** Return the upper 32 bits of a product of two numbers of 32 bits; no step leaves the 53 bits that are exact. */
function highHalf(left: number, right: number): number {
  const carried = Math.floor(((left & 0xffff) * right) / HALF);
  return Math.floor(((left >>> 16) * right + carried) / HALF);
}

/** Mix the sums after each block. */
function scramble(sums: Uint32Array): void {
  const prime = Number(PRIME32_1);
  for (let lane = 0; lane < 16; lane += 2) {
    const high = sums[lane + 1] as number;
    const low = ((sums[lane] as number) ^ (high >>> 15) ^ (SCRAMBLE[lane] as number)) >>> 0;
    const mixed = (high ^ (SCRAMBLE[lane + 1] as number)) >>> 0;
    sums[lane] = Math.imul(low, prime);
    sums[lane + 1] = Math.imul(mixed, prime) + highHalf(low, prime);
  }
}

function merge(sums: Uint32Array, length: number): bigint {
  const view = new DataView(sums.buffer);
  let total = BigInt(length) * PRIME64_1;
  for (let at = 0; at < STRIPE; at += 16) {
    total += fold(view.getBigUint64(at, true) ^ secret(11 + at), view.getBigUint64(at + 8, true) ^ secret(19 + at));
  }
  return avalanche(word(total));
}
