/** JSON from strangers: states and cards. */

import { BadEnvelope, BadTopic, LimitExceeded } from "../errors.js";
import { asFields, type Fields, shown } from "./fields.js";
import { MAX_DEPTH } from "./msgpack_read.js";

const UTF8 = new TextDecoder("utf-8", { fatal: true });

/**
 * Return the fields of a JSON object; objects within become maps, in which no key has a meaning of its own.
 *
 * @param what - What it is, such as `worker state`; for messages.
 * @throws BadEnvelope: It is not JSON in UTF-8, or no object.
 * @throws LimitExceeded: It is longer than `limit` bytes.
 */
export function readJson(payload: Uint8Array, what: string, limit: number): Fields {
  if (payload.length > limit) {
    throw new LimitExceeded(`${what}: ${payload.length} bytes of JSON; at most ${limit} are accepted`);
  }
  return asFields(parsed(payload, what), what);
}

/**
 * Return the name that a message's topic and payload agree on: access rules bind the topic alone.
 *
 * @throws BadTopic: They don't agree.
 */
export function same(kind: string, inTopic: string, inPayload: string): string {
  if (inTopic === inPayload) return inTopic;
  throw new BadTopic(`the topic is that of ${kind} ${shown(inTopic)}, and the message names ${shown(inPayload)}`);
}

/** Return whether objects and arrays lie more than `MAX_DEPTH` deep within each other, before anything recurses into them. */
function isDeep(text: string): boolean {
  let depth = 0;
  for (const [mark] of text.matchAll(/"[^"\\]*(?:\\.[^"\\]*)*"?|[[{\]}]/gs)) {
    if (mark === "[" || mark === "{") depth++;
    else if (mark === "]" || mark === "}") depth--;
    if (depth > MAX_DEPTH) return true;
  }
  return false;
}

function parsed(payload: Uint8Array, what: string): unknown {
  try {
    const text = UTF8.decode(payload);
    if (isDeep(text)) throw new RangeError(`more than ${MAX_DEPTH} objects and arrays within each other`);
    return JSON.parse(text, (_key, value: unknown) =>
      typeof value === "object" && value !== null && !Array.isArray(value) ? new Map(Object.entries(value)) : value,
    );
  } catch (error) {
    throw new BadEnvelope(`${what}: it is not JSON`, { cause: error });
  }
}
