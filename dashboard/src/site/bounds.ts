/** What bounds the page, whatever strangers send: sizes, and counters of what was left out. */

import { DEFAULT_LIMITS, type Limits } from "mqinfer-client";

export const MOST_TILES = 64;
/** Tiles of one client, so that none takes the place of all others. */
export const MOST_TILES_EACH = 32;
export const MOST_ROWS = 500;
/** Bytes that all tiles together hold of messages; each gets the same share. */
export const HELD_BYTES = 192 << 20;
/** Pixels of all masks that are shown. */
export const MASK_PIXELS = 256 << 20;
export const LONGEST_TEXT = 200;
const MOST_ENTRIES = 64;

/** Of results: far less than protocol and client allow, since a page shows pictures of one screen. */
export const RESULT_LIMITS: Limits = {
  ...DEFAULT_LIMITS,
  payloadBytes: 16 << 20,
  headerBytes: 32 << 10,
  tensors: 32,
  tensorBytes: 32 << 20,
  imagePixels: 16 << 20,
};

/** Of previews, which are at most 480 pixels wide. */
export const PREVIEW_LIMITS: Limits = {
  ...RESULT_LIMITS,
  payloadBytes: 256 << 10,
  headerBytes: 8 << 10,
  tensors: 1,
  tensorBytes: 4 << 20,
  imagePixels: 1 << 20,
};

/** Largest packet that the page asks the broker for. */
export const PACKET_BYTES = RESULT_LIMITS.payloadBytes + (64 << 10);

/** Why something was left out. */
export type Reason =
  | "bad message"
  | "bad picture"
  | "bad output"
  | "corrupted"
  | "json result"
  | "mask too large"
  | "newer frame"
  | "retained"
  | "slow page"
  | "too large"
  | "too many cards"
  | "too many clients"
  | "too many models"
  | "too many streams"
  | "too many workers"
  | "wrong topic";

/** Counters by reason. */
export class Drops {
  readonly #counts = new Map<Reason, number>();

  add(reason: Reason, count = 1): void {
    this.#counts.set(reason, (this.#counts.get(reason) ?? 0) + count);
  }

  read(): Readonly<Record<string, number>> {
    return Object.fromEntries(this.#counts);
  }
}

/** Return a text of at most 200 characters, with an ellipsis where it was cut. */
export function cut(text: string, most = LONGEST_TEXT): string {
  return text.length <= most ? text : `${text.slice(0, most - 1)}…`;
}

/** Return at most 64 entries of a record from a message, keys and texts cut; `__proto__` is a key like others. */
export function boundedRecord<T extends string | number>(
  entries: Readonly<Record<string, T>>,
): Readonly<Record<string, T>> {
  const kept = Object.entries(entries).slice(0, MOST_ENTRIES);
  return Object.fromEntries(
    kept.map(([key, value]) => [cut(key), typeof value === "string" ? (cut(value) as T) : value]),
  );
}
