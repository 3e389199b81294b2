/** Limits that a decoder checks before it takes memory for what a message claims (docs/reference/protocol.md, section 11). */

import type { Limits } from "./types.js";

/** The limits that every receiver has unless it is configured otherwise. */
export const DEFAULT_LIMITS: Limits = {
  payloadBytes: 64 << 20,
  headerBytes: 64 << 10,
  tensors: 64,
  dimensions: 16,
  tensorBytes: 256 << 20,
  imagePixels: 64 << 20,
  stringBytes: 4096,
};

/** Largest state, in bytes. */
export const MAX_STATE_BYTES = 64 << 10;

/** Largest model card, in bytes. */
export const MAX_CARD_BYTES = 1 << 20;
