/** The checksum that travels beside a payload: XXH3 with 64 bits. */

import { longHash } from "./xxh3/long.js";
import { LONG, shortHash } from "./xxh3/short.js";

/** Name of the MQTT user property. */
export const CHECKSUM = "xxh3";

/**
 * Return the XXH3-64 of a payload, 16 lower-case hex digits.
 *
 * It is plain JavaScript: a page that must not compile WebAssembly, since its Content-Security-Policy lacks
 * `'wasm-unsafe-eval'`, can verify payloads too.
 */
export function checksum(payload: Uint8Array): string {
  const found = payload.length > LONG ? longHash(payload) : shortHash(payload);
  return found.toString(16).padStart(16, "0");
}
