/** Plain values to MessagePack, each in its smallest form: the very bytes that mqinfer's own clients send. */

import { BadEnvelope, LimitExceeded } from "../errors.js";
import { DEFAULT_LIMITS } from "../limits.js";

/** What a header may hold; the order of a Map's keys is the order in the bytes. */
export type Packable = boolean | number | bigint | string | readonly Packable[] | ReadonlyMap<string, Packable>;

const FIRST_SIZE = 512;
const UTF8 = new TextEncoder();
const SURROGATE = /\p{Surrogate}/u;

/**
 * Return the bytes of a value. A number without a fraction travels as an integer where it has at most 64 bits; any other
 * is a float of 64 bits.
 *
 * @param path - Where the value stands, for messages.
 * @throws BadEnvelope: A value is of no type that headers have, beyond 64 bits, or text that is not Unicode.
 * @throws LimitExceeded: A string is longer than receivers accept.
 */
export function writeMessagePack(value: Packable, path: string): Uint8Array {
  const writer = new Writer();
  writer.value(value, path);
  return writer.bytes();
}

class Writer {
  private buffer = new Uint8Array(FIRST_SIZE);
  private view = new DataView(this.buffer.buffer);
  private at = 0;

  bytes(): Uint8Array {
    return this.buffer.subarray(0, this.at);
  }

  value(value: Packable, path: string): void {
    if (typeof value === "string") this.text(value, path);
    else if (typeof value === "boolean") this.byte(value ? 0xc3 : 0xc2);
    else if (typeof value === "bigint") this.integer(value, path);
    else if (typeof value === "number") this.number(value, path);
    else if (Array.isArray(value)) this.array(value, path);
    else if (value instanceof Map) this.map(value, path);
    else throw unpackable(path, `it is ${value === null ? "null" : typeof value}`);
  }

  private number(value: number, path: string): void {
    const fits = Number.isInteger(value) && value >= -(2 ** 63) && value < 2 ** 64;
    if (fits && !Object.is(value, -0)) this.integer(BigInt(value), path);
    else this.put(0xcb, 8, (view, at) => view.setFloat64(at, value));
  }

  private integer(value: bigint, path: string): void {
    if (value >= 1n << 64n || value < -(1n << 63n)) throw unpackable(path, "it has more than 64 bits");
    if (value >= 1n << 32n) this.put(0xcf, 8, (view, at) => view.setBigUint64(at, value));
    else if (value < -0x80000000n) this.put(0xd3, 8, (view, at) => view.setBigInt64(at, value));
    else if (value >= 0x80n) this.length(Number(value), 0xcc, 0xcd, 0xce);
    else if (value >= -0x20n) this.byte(Number(value) & 0xff);
    else this.negative(Number(value));
  }

  private negative(value: number): void {
    if (value >= -0x80) this.put(0xd0, 1, (view, at) => view.setInt8(at, value));
    else if (value >= -0x8000) this.put(0xd1, 2, (view, at) => view.setInt16(at, value));
    else this.put(0xd2, 4, (view, at) => view.setInt32(at, value));
  }

  private text(value: string, path: string): void {
    if (SURROGATE.test(value)) throw unpackable(path, "it is not Unicode");
    const encoded = UTF8.encode(value);
    if (encoded.length > DEFAULT_LIMITS.stringBytes) throw tooLong(path, encoded.length);
    if (encoded.length < 0x20) this.byte(0xa0 | encoded.length);
    else this.length(encoded.length, 0xd9, 0xda, 0xdb);
    const at = this.room(encoded.length);
    this.buffer.set(encoded, at);
  }

  private array(values: readonly Packable[], path: string): void {
    if (values.length < 0x10) this.byte(0x90 | values.length);
    else this.length(values.length, undefined, 0xdc, 0xdd);
    for (const [place, value] of values.entries()) this.value(value, `${path}[${place}]`);
  }

  private map(values: ReadonlyMap<string, Packable>, path: string): void {
    if (values.size < 0x10) this.byte(0x80 | values.size);
    else this.length(values.size, undefined, 0xde, 0xdf);
    for (const [key, value] of values) {
      this.text(key, path);
      this.value(value, `${path}.${key}`);
    }
  }

  /** Write a number of at most 32 bits behind the byte that states its width. */
  private length(value: number, one: number | undefined, two: number, four: number): void {
    if (one !== undefined && value < 0x100) this.put(one, 1, (view, at) => view.setUint8(at, value));
    else if (value < 0x10000) this.put(two, 2, (view, at) => view.setUint16(at, value));
    else this.put(four, 4, (view, at) => view.setUint32(at, value));
  }

  private put(head: number, width: number, write: (view: DataView, at: number) => void): void {
    this.byte(head);
    const at = this.room(width);
    write(this.view, at);
  }

  private byte(value: number): void {
    const at = this.room(1);
    this.buffer[at] = value;
  }

  private room(count: number): number {
    const at = this.at;
    this.at += count;
    if (this.at > this.buffer.length) {
      const larger = new Uint8Array(2 * this.at);
      larger.set(this.buffer);
      this.buffer = larger;
      this.view = new DataView(larger.buffer);
    }
    return at;
  }
}

function unpackable(path: string, why: string): BadEnvelope {
  return new BadEnvelope(
    `${JSON.stringify(path.slice(0, 80))} can't be packed: ${why}; use booleans, numbers and strings`,
  );
}

function tooLong(path: string, size: number): LimitExceeded {
  const most = DEFAULT_LIMITS.stringBytes;
  return new LimitExceeded(`${JSON.stringify(path.slice(0, 80))} has ${size} bytes; at most ${most} are accepted`);
}
