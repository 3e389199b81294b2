/** What all lengths of XXH3 share: the secret, the primes, and arithmetic modulo 2^64. */

const SECRET_HEX =
  "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221" +
  "b8084674f743248ee03590e6813a264c3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8a8" +
  "fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364eac5ac8334d3ebc3c581a0fffa1363eb17" +
  "0ddd51b7f0da49d316552629d4689e2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e";

/** The secret of XXH3 with seed 0, 192 bytes. */
export const SECRET = new DataView(
  Uint8Array.from(SECRET_HEX.match(/../g) ?? [], (pair) => Number.parseInt(pair, 16)).buffer,
);

export const PRIME32_1 = 0x9e3779b1n;
export const PRIME32_2 = 0x85ebca77n;
export const PRIME32_3 = 0xc2b2ae3dn;
export const PRIME64_1 = 0x9e3779b185ebca87n;
export const PRIME64_2 = 0xc2b2ae3d27d4eb4fn;
export const PRIME64_3 = 0x165667b19e3779f9n;
export const PRIME64_4 = 0x85ebca77c2b2ae63n;
export const PRIME64_5 = 0x27d4eb2f165667c5n;
const PRIME_MX1 = 0x165667919e3779f9n;

/** Return a number modulo 2^64. */
export function word(value: bigint): bigint {
  return BigInt.asUintN(64, value);
}

/** Return 64 bits of the secret. */
export function secret(at: number): bigint {
  return SECRET.getBigUint64(at, true);
}

/** Return both halves of a product of 128 bits, combined by exclusive or. */
export function fold(left: bigint, right: bigint): bigint {
  const product = word(left) * word(right);
  return word(product) ^ (product >> 64n);
}

/** Mix the bits of a result. */
export function avalanche(value: bigint): bigint {
  const mixed = word((value ^ (value >> 37n)) * PRIME_MX1);
  return mixed ^ (mixed >> 32n);
}
