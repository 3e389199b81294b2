/**
 * MessagePack to plain values, for headers from strangers.
 *
 * It is not left to a library, because headers need what none of them does at once: no memory for a length that is only
 * claimed, a bound on nesting, duplicate keys noticed, floats told apart from integers, and maps that no key can poison.
 */

import { BadEnvelope } from "../errors.js";

/** A number that travelled as a float, so that 1.0 is not taken for the integer 1. */
export class Float {
  constructor(readonly value: number) {}
}

/** A value that no field of a header may have: binary, an extension type, or a map with keys that are no strings. */
export class Foreign {
  constructor(readonly what: string) {}
}

/** What a header is made of. Integers beyond 2^53 are bigints; maps keep the order of their keys. */
export type Value = null | boolean | number | bigint | string | Float | Foreign | Value[] | Map<string, Value>;

/** How many maps and arrays may lie within each other, the outermost included: in MessagePack and in JSON. */
export const MAX_DEPTH = 100;
const UTF8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

/**
 * Read exactly one value.
 *
 * @throws BadEnvelope: It is malformed, truncated or nested too deeply, something follows it, or a key comes twice.
 */
export function readMessagePack(bytes: Uint8Array): Value {
  const reader = new Reader(bytes);
  const value = reader.value(0);
  if (!reader.isAtEnd()) throw malformed("bytes follow the map");
  return value;
}

function checkDepth(depth: number): void {
  if (depth >= MAX_DEPTH) throw malformed(`more than ${MAX_DEPTH} maps and arrays within each other`);
}

function malformed(why: string): BadEnvelope {
  return new BadEnvelope(`the header is no MessagePack map: ${why}`);
}

class Reader {
  private at = 0;
  private readonly view: DataView;

  constructor(private readonly bytes: Uint8Array) {
    this.view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  }

  isAtEnd(): boolean {
    return this.at === this.bytes.length;
  }

  value(depth: number): Value {
    const head = this.view.getUint8(this.take(1));
    if (head < 0x80) return head;
    if (head >= 0xe0) return head - 0x100;
    if (head < 0x90) return this.map(head & 0x0f, depth);
    if (head < 0xa0) return this.array(head & 0x0f, depth);
    if (head < 0xc0) return this.text(head & 0x1f);
    if (head < 0xca) return this.simple(head);
    return head < 0xd4 ? this.number(head) : this.sized(head, depth);
  }

  /** Nil, booleans, binary and extension types with a length. */
  private simple(head: number): Value {
    if (head === 0xc0) return null;
    if (head === 0xc1) throw malformed("invalid byte 0xc1");
    if (head < 0xc4) return head === 0xc3;
    const isBinary = head < 0xc7;
    const width = 1 << (isBinary ? head - 0xc4 : head - 0xc7);
    this.take(this.unsigned(width) + (isBinary ? 0 : 1));
    return new Foreign(isBinary ? "binary" : "an extension type");
  }

  private number(head: number): Value {
    if (head === 0xca) return new Float(this.view.getFloat32(this.take(4)));
    if (head === 0xcb) return new Float(this.view.getFloat64(this.take(8)));
    if (head < 0xcf) return this.unsigned(1 << (head - 0xcc));
    if (head === 0xcf) return plain(this.view.getBigUint64(this.take(8)));
    if (head === 0xd0) return this.view.getInt8(this.take(1));
    if (head === 0xd1) return this.view.getInt16(this.take(2));
    if (head === 0xd2) return this.view.getInt32(this.take(4));
    return plain(this.view.getBigInt64(this.take(8)));
  }

  /** Extension types of fixed length; strings, arrays and maps with a length. */
  private sized(head: number, depth: number): Value {
    if (head < 0xd9) {
      this.take(1 + (1 << (head - 0xd4)));
      return new Foreign("an extension type");
    }
    if (head < 0xdc) return this.text(this.unsigned(1 << (head - 0xd9)));
    const length = this.unsigned(head & 1 ? 4 : 2);
    return head < 0xde ? this.array(length, depth) : this.map(length, depth);
  }

  private unsigned(width: number): number {
    const at = this.take(width);
    if (width === 1) return this.view.getUint8(at);
    return width === 2 ? this.view.getUint16(at) : this.view.getUint32(at);
  }

  private text(length: number): string {
    const at = this.take(length);
    try {
      return UTF8.decode(this.bytes.subarray(at, at + length));
    } catch (error) {
      throw new BadEnvelope("the header is no MessagePack map: a string is not UTF-8", { cause: error });
    }
  }

  /** The elements are appended one by one, so a length that is only claimed takes no memory. */
  private array(length: number, depth: number): Value[] {
    checkDepth(depth);
    const found: Value[] = [];
    for (let place = 0; place < length; place++) found.push(this.value(depth + 1));
    return found;
  }

  private map(length: number, depth: number): Value {
    checkDepth(depth);
    const found = new Map<string, Value>();
    let isForeign = false;
    for (let place = 0; place < length; place++) {
      const key = this.value(depth + 1);
      const value = this.value(depth + 1);
      if (typeof key !== "string") isForeign = true;
      else if (found.has(key)) throw malformed(`the key ${JSON.stringify(key.slice(0, 80))} comes twice`);
      else found.set(key, value);
    }
    return isForeign ? new Foreign("a map with keys that are no strings") : found;
  }

  private take(count: number): number {
    const at = this.at;
    if (at + count > this.bytes.length) throw malformed("truncated");
    this.at = at + count;
    return at;
  }
}

function plain(value: bigint): number | bigint {
  const number = Number(value);
  return Number.isSafeInteger(number) ? number : value;
}
