/**
 * `application/vnd.mqinfer.v1`: requests and replies as bytes, and back. Tensors are views of the payload, not copies.
 *
 *     0   "MQI1"
 *     4   header length, uint32, little-endian
 *     8   header: one MessagePack map
 *         zeros up to a multiple of 64, counted from the start of the payload
 *         the first tensor's bytes, zeros up to a multiple of 64, the second tensor's bytes, …
 *
 * docs/reference/protocol.md, section 4, is the full specification.
 */

import { BadEnvelope, BadTensor, LimitExceeded } from "./errors.js";
import { type Fields, shown } from "./fields/fields.js";
import { type Packable, writeMessagePack } from "./fields/msgpack_write.js";
import { type Description, openHeader, readReply, readRequest, readTensors } from "./header.js";
import { replyHeader, requestHeader } from "./header_write.js";
import { DEFAULT_LIMITS } from "./limits.js";
import type { EncodedTensor, Limits, Reply, Request } from "./types.js";

/** The content type of every message that these functions read and write. */
export const CONTENT_TYPE = "application/vnd.mqinfer.v1";

const MAGIC = 0x3149514d;
const HEAD_BYTES = 8;
const ALIGNMENT = 64;

/**
 * Return the payload of a request.
 *
 * @throws BadEnvelope: A field or parameter can't be packed, or a parameter takes the name of a field.
 * @throws LimitExceeded: The header is longer than receivers accept.
 */
export function encodeRequest(request: Request): Uint8Array {
  return framed(requestHeader(request), request.inputs, "request");
}

/** Return the payload of a reply; the fields that it lacks are at their defaults. Errors as for `encodeRequest`. */
export function encodeReply(reply: Partial<Reply> & Pick<Reply, "id" | "modelName">): Uint8Array {
  return framed(replyHeader(reply), reply.outputs ?? [], "reply");
}

/**
 * Decode a request; its tensors are views of the payload.
 *
 * @throws BadEnvelope: The payload is not of this content type.
 * @throws BadTensor: A tensor's name, datatype, shape or size is wrong.
 * @throws LimitExceeded: Something is larger than `limits`.
 */
export function decodeRequest(payload: Uint8Array, limits: Limits = DEFAULT_LIMITS): Request {
  const bytes = plain(payload);
  const [header, start] = open(bytes, "request", limits);
  const request = readRequest(header);
  return { ...request, inputs: tensors(bytes, readTensors(header, "inputs", limits), start) };
}

/** Decode a reply; errors as for `decodeRequest`. */
export function decodeReply(payload: Uint8Array, limits: Limits = DEFAULT_LIMITS): Reply {
  const bytes = plain(payload);
  const [header, start] = open(bytes, "reply", limits);
  const reply = readReply(header);
  return { ...reply, outputs: tensors(bytes, readTensors(header, "outputs", limits), start) };
}

function framed(header: ReadonlyMap<string, Packable>, carried: readonly EncodedTensor[], what: string): Uint8Array {
  const packed = writeMessagePack(header, what);
  if (packed.length > DEFAULT_LIMITS.headerBytes) {
    throw new LimitExceeded(`header of ${packed.length} bytes; at most ${DEFAULT_LIMITS.headerBytes} are accepted`);
  }
  const start = padded(HEAD_BYTES + packed.length);
  const payload = new Uint8Array(carried.reduce((sum, { bytes }) => sum + padded(bytes.length), start));
  const view = new DataView(payload.buffer);
  view.setUint32(0, MAGIC, true);
  view.setUint32(4, packed.length, true);
  payload.set(packed, HEAD_BYTES);
  let at = start;
  for (const { bytes } of carried) {
    payload.set(bytes, at);
    at += padded(bytes.length);
  }
  return payload;
}

/** Return a length, rounded up to where the next part begins. */
function padded(length: number): number {
  return Math.ceil(length / ALIGNMENT) * ALIGNMENT;
}

/** Return the same bytes as a plain array: some methods of node's Buffer, and of its copies, do other things. */
function plain(payload: Uint8Array): Uint8Array {
  return new Uint8Array(payload.buffer, payload.byteOffset, payload.length);
}

/** Return the fields of the header, and where the tensors begin. */
function open(payload: Uint8Array, what: string, limits: Limits): [Fields, number] {
  const size = payload.length;
  if (size > limits.payloadBytes) {
    throw new LimitExceeded(`payload of ${size} bytes; at most ${limits.payloadBytes} are accepted`);
  }
  const view = new DataView(payload.buffer, payload.byteOffset, size);
  if (size < HEAD_BYTES || view.getUint32(0, true) !== MAGIC) {
    throw new BadEnvelope(`payload of ${size} bytes does not begin with MQI1, so it is not ${CONTENT_TYPE}`);
  }
  const length = view.getUint32(4, true);
  const end = HEAD_BYTES + length;
  if (end > size) throw new BadEnvelope(`header of ${length} bytes does not fit into a payload of ${size} bytes`);
  if (length > limits.headerBytes) {
    throw new LimitExceeded(`header of ${length} bytes; at most ${limits.headerBytes} are accepted`);
  }
  return [openHeader(payload.subarray(HEAD_BYTES, end), what, limits), padded(end)];
}

function tensors(payload: Uint8Array, described: readonly Description[], start: number): readonly EncodedTensor[] {
  let at = start;
  const found = described.map(({ size, ...rest }): EncodedTensor => {
    if (at + size > payload.length) {
      throw new BadTensor(
        `tensor ${shown(rest.name)}: ${size} bytes from ${at} on don't fit into a payload of ${payload.length} bytes`,
      );
    }
    const bytes = payload.subarray(at, at + size);
    at = padded(at + size);
    return { ...rest, bytes };
  });
  if (at === payload.length) return found;
  throw new BadEnvelope(
    `payload has ${payload.length} bytes, but its header and tensors, padded to ${ALIGNMENT}, take ${at}`,
  );
}
