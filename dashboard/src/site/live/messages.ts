/** Results and previews as a tile keeps them: the header's fields that are shown, and tensors that are not decoded. */

import { BadTensor, type EncodedTensor, type Reply } from "mqinfer-client";
import { cut } from "../bounds.js";
import type { Half } from "./pairing.js";

/** What objects around a payload take, roughly. */
const OVERHEAD_BYTES = 4096;

/** Which stream a message belongs to. */
export interface StreamName {
  readonly client: string;
  readonly source: string;
  readonly model: string;
}

/** A result whose tensors are not decoded. */
export interface Answer extends Half {
  readonly reply: Pick<Reply, "outcome" | "modelVersion" | "modelHash" | "worker" | "stage" | "timings">;
  readonly error: { readonly code: string; readonly message: string } | null;
  readonly fallback: string;
  readonly outputs: readonly EncodedTensor[];
}

/** A preview that is not decoded. */
export interface Preview extends Half {
  readonly picture: EncodedTensor;
  /** Width and height of the model's picture, of which it is a scaled copy. */
  readonly size: readonly [number, number];
}

/** Return the key of a stream's tile; neither client nor model has a slash in its name. */
export function streamKey(name: StreamName): string {
  return `${name.client}/${name.model}/${name.source}`;
}

/** Return what a tile keeps of a result; `bytes` are those of its payload. */
export function answerOf(reply: Reply, bytes: number, receivedMs: number): Answer {
  const { outcome, modelVersion, modelHash, worker, stage, timings } = reply;
  const fallback = reply.parameters.fallback;
  return {
    sequence: sequenceOf(reply),
    captureTimeNs: reply.capture.captureTimeNs ?? null,
    bytes: bytes + OVERHEAD_BYTES,
    receivedMs,
    reply: { outcome, modelVersion: cut(modelVersion), modelHash: cut(modelHash), worker: cut(worker), stage, timings },
    error: reply.error ? { code: cut(reply.error.code), message: cut(reply.error.message, 1000) } : null,
    fallback: typeof fallback === "string" ? cut(fallback) : "",
    outputs: outcome === "ok" ? reply.outputs : [],
  };
}

/**
 * Return what a tile keeps of a preview.
 *
 * @throws BadTensor: It is not one picture of three channels.
 */
export function previewOf(reply: Reply, bytes: number, receivedMs: number): Preview {
  const [picture] = reply.outputs;
  const { picture_width: width, picture_height: height } = reply.parameters;
  const isPicture = picture?.name === "preview" && picture.datatype === "UINT8" && picture.shape.length === 3;
  if (!isPicture || reply.outputs.length !== 1) throw new BadTensor("a preview must be one picture of shape [h, w, 3]");
  if (!isSide(width) || !isSide(height)) {
    throw new BadTensor("a preview must state picture_width and picture_height, each 1 to 65536");
  }
  return {
    sequence: sequenceOf(reply),
    captureTimeNs: reply.capture.captureTimeNs ?? null,
    bytes: bytes + OVERHEAD_BYTES,
    receivedMs,
    picture,
    size: [width, height],
  };
}

function sequenceOf(reply: Reply): number | null {
  const sequence = reply.capture.sequence;
  return sequence !== undefined && Number.isSafeInteger(sequence) && sequence >= 0 ? sequence : null;
}

function isSide(value: unknown): value is number {
  return typeof value === "number" && Number.isInteger(value) && value >= 1 && value <= 65536;
}
