/** Compression to one LZ4 block, the fast way: each place is looked up once, and the first match is taken. */

const LEAST_MATCH = 4;
const LONG = 15;
const MAX_DISTANCE = 65535;
/** No match begins in the last 12 bytes or reaches into the last 5. */
const LAST_BEGIN = 12;
const LAST_LITERALS = 5;
const HASH_BITS = 14;
const HASH_PRIME = 0x9e3779b1;
/** After so many bytes (a power of two, as bits) without a match the search takes longer steps. */
const PATIENCE_BITS = 6;

/** Return one block that decompresses to `data`. */
export function compressBlock(data: Uint8Array): Uint8Array {
  const output = new Uint8Array(data.length + Math.floor(data.length / 255) + 16);
  const view = new DataView(data.buffer, data.byteOffset, data.length);
  const newest = new Int32Array(1 << HASH_BITS).fill(-1);
  const writer = new SequenceWriter(data, output);
  let [begin, at] = [0, 0];
  while (at <= data.length - LAST_BEGIN) {
    const word = view.getUint32(at, true);
    const slot = Math.imul(word, HASH_PRIME) >>> (32 - HASH_BITS);
    const before = newest[slot] as number;
    newest[slot] = at;
    if (before < 0 || at - before > MAX_DISTANCE || view.getUint32(before, true) !== word) {
      at += 1 + ((at - begin) >> PATIENCE_BITS);
      continue;
    }
    const length = matchLength(data, before, at);
    writer.sequence(begin, at, at - before, length);
    at += length;
    begin = at;
  }
  return writer.finish(begin);
}

function matchLength(data: Uint8Array, before: number, at: number): number {
  const most = data.length - LAST_LITERALS - at;
  let length = LEAST_MATCH;
  while (length < most && data[before + length] === data[at + length]) length++;
  return length;
}

class SequenceWriter {
  private to = 0;

  constructor(
    private readonly data: Uint8Array,
    private readonly output: Uint8Array,
  ) {}

  /** Write the literals from `begin` to `end`, and a match. */
  sequence(begin: number, end: number, distance: number, length: number): void {
    const more = length - LEAST_MATCH;
    this.literals(begin, end, Math.min(more, LONG));
    this.output[this.to++] = distance & 0xff;
    this.output[this.to++] = distance >> 8;
    if (more >= LONG) this.length(more - LONG);
  }

  /** Write the last literals, and return the block. */
  finish(begin: number): Uint8Array {
    this.literals(begin, this.data.length, 0);
    return this.output.slice(0, this.to);
  }

  private literals(begin: number, end: number, match: number): void {
    const count = end - begin;
    this.output[this.to++] = (Math.min(count, LONG) << 4) | match;
    if (count >= LONG) this.length(count - LONG);
    this.output.set(this.data.subarray(begin, end), this.to);
    this.to += count;
  }

  private length(rest: number): void {
    let left = rest;
    for (; left >= 255; left -= 255) this.output[this.to++] = 255;
    this.output[this.to++] = left;
  }
}
