/**
 * LZ4 blocks (https://github.com/lz4/lz4/blob/dev/doc/lz4_Block_format.md), without a stored size.
 *
 * Not left to a library: lz4js checks no bounds and runs as long as a block's lengths claim, gigabytes for a few bytes.
 */

import { BadEncoding } from "../errors.js";
import { shown } from "../fields/fields.js";

/** A block of n bytes decompresses to at most 255 n, since a length grows by 255 with each byte. */
const MAX_RATIO = 255;
const LEAST_MATCH = 4;
const LONG = 15;
/** A copy of fewer bytes costs less in a loop than in a call. */
const WORTH_CALL = 24;

/**
 * Decompress one block to exactly so many bytes; no more memory is taken.
 *
 * @param name - Of the tensor, for messages.
 * @param size - Bytes that it must decompress to; they have been checked against the limits.
 * @throws BadEncoding: It is corrupt, or decompresses to more or less.
 */
export function decompressBlock(name: string, block: Uint8Array, size: number): Uint8Array {
  if (size > block.length * MAX_RATIO || (block.length > 0 && size === 0)) {
    throw new BadEncoding(
      `tensor ${shown(name)}: ${block.length} bytes of LZ4 can't hold the ${size} that are declared`,
    );
  }
  const output = new Uint8Array(size);
  if (size > 0 && new Expansion(block, output).run() !== size) {
    throw new BadEncoding(
      `tensor ${shown(name)}: LZ4 block of ${block.length} bytes is corrupt, or does not hold the ${size} declared`,
    );
  }
  return output;
}

/** One block on its way into one output. */
class Expansion {
  private from = 0;
  private to = 0;

  constructor(
    private readonly block: Uint8Array,
    private readonly output: Uint8Array,
  ) {}

  /** Return how many bytes were written, or -1 where the block is corrupt or wants to write more. */
  run(): number {
    while (this.from < this.block.length) {
      const token = this.block[this.from++] as number;
      if (!this.literals(this.length(token >> 4))) return -1;
      if (this.from === this.block.length) return this.to;
      const distance = (this.block[this.from] as number) | ((this.block[this.from + 1] ?? 0) << 8);
      this.from += 2;
      if (!this.match(distance, this.length(token & LONG) + LEAST_MATCH)) return -1;
    }
    return -1; // a block ends with literals
  }

  private length(short: number): number {
    let length = short;
    if (short < LONG) return length;
    let more = MAX_RATIO;
    while (more === MAX_RATIO && this.from < this.block.length) {
      more = this.block[this.from++] as number;
      length += more;
    }
    return length;
  }

  private literals(count: number): boolean {
    const end = this.from + count;
    if (end > this.block.length || this.to + count > this.output.length) return false;
    if (count < WORTH_CALL) while (this.from < end) this.output[this.to++] = this.block[this.from++] as number;
    else {
      this.output.set(this.block.subarray(this.from, end), this.to);
      this.from = end;
      this.to += count;
    }
    return true;
  }

  /** Repeat what was written `distance` bytes before; what is repeated may reach into what it makes. */
  private match(distance: number, count: number): boolean {
    const { output, to } = this;
    if (distance === 0 || distance > to || to + count > output.length) return false;
    this.to = to + count;
    if (distance === 1 && count >= WORTH_CALL) output.fill(output[to - 1] as number, to, to + count);
    else if (distance >= count && count >= WORTH_CALL) output.copyWithin(to, to - distance, to - distance + count);
    else for (let at = to; at < to + count; at++) output[at] = output[at - distance] as number;
    return true;
  }
}
