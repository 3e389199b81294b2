/** Messages in the neutral words of tests/golden/golden.json, to compare with it; runs in node and in browsers. */

import {
  type Capture,
  decodePicture,
  decodePixels,
  decodeReply,
  decodeRequest,
  decodeTensor,
  type EncodedTensor,
  MqinferError,
  type Reply,
  type Request,
  type Tensor,
} from "../src/index.js";

/** A tensor of golden.json. */
export interface GoldenTensor {
  readonly name: string;
  readonly datatype: string;
  readonly shape: readonly number[];
  readonly encoding: string;
  readonly parameters: Record<string, unknown>;
  readonly values?: readonly unknown[];
  readonly run_lengths?: readonly (readonly [unknown, number])[];
  readonly first?: readonly unknown[];
  readonly sha256?: string;
  readonly tolerance?: number;
  readonly raw?: string;
}

/** An entry of golden.json. */
export interface GoldenEntry {
  readonly file: string;
  readonly kind: string;
  readonly content_type: string;
  readonly xxh3: string;
  readonly fields: Record<string, unknown>;
  readonly tensors?: readonly GoldenTensor[];
}

/** An entry of broken.json. */
export interface BrokenEntry {
  readonly name: string;
  readonly kind: "request" | "reply";
  readonly code: string;
  readonly payload?: string;
  readonly base?: string;
  readonly edits?: readonly (readonly [number, string])[];
  readonly length?: number;
}

/** Encodings that `decodePicture` and `decodePixels` decode. */
export const PICTURES: readonly string[] = ["jpeg", "png"];

/** Return the bytes of base64. */
export function fromBase64(text: string): Uint8Array {
  return Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
}

/** Return the payload of a broken message; `base` is the golden file that it is made of. */
export function payloadOf(entry: BrokenEntry, base: Uint8Array): Uint8Array {
  if (entry.payload !== undefined) return fromBase64(entry.payload);
  const edited = new Uint8Array(base);
  for (const [offset, hex] of entry.edits ?? []) {
    edited.set(
      Uint8Array.from(hex.match(/../g) ?? [], (pair) => Number.parseInt(pair, 16)),
      offset,
    );
  }
  const payload = new Uint8Array(entry.length ?? edited.length);
  payload.set(edited.subarray(0, payload.length));
  return payload;
}

/** Decode a message and all of its tensors; return the code of the error, or `ok`. */
export async function codeOf(kind: "request" | "reply", payload: Uint8Array): Promise<string> {
  try {
    const tensors = kind === "request" ? decodeRequest(payload).inputs : decodeReply(payload).outputs;
    for (const tensor of tensors) {
      if (!PICTURES.includes(tensor.encoding)) decodeTensor(tensor);
      else if (typeof createImageBitmap !== "function") await decodePixels(tensor);
      else (await decodePicture(tensor)).close();
    }
    return "ok";
  } catch (error) {
    if (error instanceof MqinferError) return error.code;
    throw error;
  }
}

/** Return the fields of a request as golden.json has them. */
export function requestFields(request: Request): Record<string, unknown> {
  return stated({
    id: request.id,
    model_name: request.modelName,
    model_version: request.modelVersion,
    outputs: request.outputs?.map((output) => ({ ...output, classification: output.classification ?? 0 })),
    timeout: request.timeoutUs,
    priority: request.priority ?? 0,
    attempt: request.attempt ?? 1,
    response_topic: request.responseTopic,
    capture: captureFields(request.capture),
    parameters: { ...request.parameters },
  });
}

/** Return the fields of a reply as golden.json has them. */
export function replyFields(reply: Reply): Record<string, unknown> {
  return stated({
    id: reply.id,
    model_name: reply.modelName,
    model_version: reply.modelVersion,
    outcome: reply.outcome,
    error: reply.error,
    model_hash: reply.modelHash,
    worker: reply.worker,
    stage: reply.stage,
    timings: numbers(reply.timings),
    load: numbers(reply.load ?? {}),
    attempt: reply.attempt,
    capture: captureFields(reply.capture),
    parameters: { ...reply.parameters },
  });
}

/** Return what golden.json says of an encoded tensor, but its values. */
export function tensorFields(tensor: EncodedTensor | GoldenTensor): Record<string, unknown> {
  const { name, datatype, shape, encoding, parameters } = tensor;
  return { name, datatype, shape: [...shape], encoding, parameters: { ...parameters } };
}

/** Return the values that an entry lists, and those of a decoded tensor in the same form. */
export async function bothValues(entry: GoldenTensor, tensor: Tensor): Promise<[unknown, unknown]> {
  const values = Array.from(tensor.data as ArrayLike<unknown>, (value) => neutral(value, tensor.datatype));
  if (entry.values) return [entry.values, values];
  if (entry.run_lengths) return [entry.run_lengths, runLengths(values)];
  const data = tensor.data as Float32Array<ArrayBuffer>;
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", data));
  const hex = [...digest].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  return [
    [entry.first, entry.sha256],
    [values.slice(0, entry.first?.length), hex],
  ];
}

function neutral(value: unknown, datatype: string): unknown {
  if (value instanceof Uint8Array) return btoa(String.fromCharCode(...value));
  if (datatype === "BOOL") return value === 1;
  if (typeof value === "number" && !Number.isFinite(value)) return String(value);
  return typeof value === "bigint" ? String(value) : value;
}

function runLengths(values: readonly unknown[]): [unknown, number][] {
  const runs: [unknown, number][] = [];
  for (const value of values) {
    const last = runs.at(-1);
    if (last !== undefined && last[0] === value) last[1] += 1;
    else runs.push([value, 1]);
  }
  return runs;
}

function captureFields(capture: Capture | undefined): Record<string, unknown> {
  return stated({
    source: capture?.source,
    sequence: capture?.sequence,
    capture_time_ns: capture?.captureTimeNs?.toString(),
    frame_id: capture?.frameId,
  });
}

/** Return fields by their names on the wire, without those that are 0. */
function numbers(fields: object): Record<string, unknown> {
  const named = Object.entries(fields).map(([name, value]) => [
    name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`),
    value,
  ]);
  return Object.fromEntries(named.filter(([, value]) => value !== 0));
}

function stated(fields: Record<string, unknown>): Record<string, unknown> {
  const isEmpty = (value: unknown) =>
    value === undefined ||
    value === "" ||
    (typeof value === "object" && value !== null && Object.keys(value).length === 0);
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => !isEmpty(value)));
}
