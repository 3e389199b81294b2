/** From a caller's arrays to what a client publishes, and from a reply to what the caller receives. */

import { CHECKSUM, checksum } from "../checksum.js";
import type { Outgoing } from "../connection/packets.js";
import { CONTENT_TYPE, encodeRequest } from "../envelope.js";
import { BadEncoding, BadTensor, ConfigError, ModelNotFound, MqinferError } from "../errors.js";
import { shown } from "../fields/fields.js";
import { checkOptions } from "../fields/nearest.js";
import type { ModelCard } from "../states/card.js";
import { checkTogether, decodeTensor, type EncodeOptions, encodeTensor } from "../tensors.js";
import { checkName, type Topics } from "../topics.js";
import type {
  Capture,
  EncodedTensor,
  Limits,
  Parameters,
  Reply,
  Request,
  RequestedOutput,
  Stage,
  Tensor,
  TensorData,
  Timings,
} from "../types.js";
import type { Entry } from "./entry.js";
import { serverTime } from "./timings.js";

type Elements = TensorData | readonly string[];

/** One input: an array of one axis, an array with its shape and encoding, or a tensor that is encoded already. */
export type Input = Elements | ({ readonly data: Elements } & EncodeOptions) | EncodedTensor;
export type Inputs = Readonly<Record<string, Input>>;

/** Optional properties of a request; `source`, `sequence`, … state where a frame came from. */
export interface InferOptions extends Capture {
  /** The result or the error comes no later; without it that of the client. */
  readonly timeoutMs?: number;
  /** Cancels the request, also at the worker that has it. */
  readonly signal?: AbortSignal;
  /** A number, or a label such as `stable`; without it the default version, or the canary for its share of the requests. */
  readonly version?: string | number;
  /** The outputs wanted; without it all. */
  readonly outputs?: readonly (string | RequestedOutput)[];
  /** Codec of the outputs, such as `raw`, `lz4` or `mask`; without it the worker's choice. */
  readonly outputEncoding?: string;
  /** 1 is the highest, 0 the model's default. */
  readonly priority?: number;
  readonly parameters?: Parameters;
}

/** The result of one request. */
export interface Result {
  readonly id: string;
  readonly modelName: string;
  readonly modelVersion: string;
  readonly modelHash: string;
  /** Arrays by name, without the pictures. */
  readonly outputs: Readonly<Record<string, Tensor>>;
  /** Pictures by name (encoding `jpeg` or `png`); `decodePicture` or, in node, `decodePixels` decodes them. */
  readonly pictures: Readonly<Record<string, EncodedTensor>>;
  readonly worker: string;
  readonly stage: Stage;
  /** With the client's part: `clientQueue`, and as `transmission` what the worker's stages don't explain. */
  readonly timings: Timings;
  readonly capture: Capture;
  /** How often the request was sent. */
  readonly attempts: number;
  readonly parameters: Parameters;
}

const MOST_TIMEOUT_MS = 1e9;
const CAPTURE = ["source", "sequence", "captureTimeNs", "frameId"] as const;
const SENDING = ["timeoutMs", "signal", "version", "outputs", "outputEncoding", "priority", "parameters"] as const;
const OPTIONS = [...SENDING, ...CAPTURE];
/** Of a stream: those of each request, but for the signal, and its own. */
export const STREAM_OPTIONS = [...OPTIONS.filter((option) => option !== "signal"), "policy", "window"];
const LABEL = /^[\p{L}_][\p{L}\p{N}_]*$/u;
const PICTURES = new Set(["jpeg", "png"]);

/** Return a timeout if it is possible. */
export function checkedTimeout(timeoutMs: number): number {
  if (timeoutMs > 0 && timeoutMs <= MOST_TIMEOUT_MS) return timeoutMs;
  throw new ConfigError(
    `a timeout of ${timeoutMs} ms is not possible; expected more than 0 and at most ${MOST_TIMEOUT_MS}`,
  );
}

/** Return a request without its time left and attempt, which each sending states anew. */
export function newRequest(
  model: string,
  inputs: Inputs,
  options: InferOptions,
  address: { readonly id: string; readonly responseTopic: string },
): Request {
  checkOptions(options, OPTIONS);
  const { version, outputs, outputEncoding, priority, parameters } = options;
  if (!inputs) throw new BadTensor(`a request to ${model} needs its inputs by name, such as { x: Float32Array.of(1) }`);
  const capture = Object.fromEntries(
    CAPTURE.filter((field) => options[field] !== undefined).map((field) => [field, options[field]]),
  );
  return {
    ...address,
    modelName: model,
    ...(version !== undefined && { modelVersion: checkName("version", String(version)) }),
    inputs: Object.entries(inputs).map(([name, input]) => encoded(name, input)),
    ...(outputs && { outputs: outputs.map((each) => (typeof each === "string" ? { name: each } : each)) }),
    ...(priority && { priority }),
    capture,
    parameters: { ...parameters, ...(outputEncoding && { output_encoding: outputEncoding }) },
  };
}

/** Return whether a version is a label, such as `stable`. */
export function isLabel(version: InferOptions["version"]): version is string {
  return typeof version === "string" && LABEL.test(version);
}

/**
 * Return the version of a model that has a label now.
 *
 * @throws ModelNotFound: None has it.
 */
export function labelledVersion({ name, labels }: ModelCard, label: string): string {
  const version = Object.hasOwn(labels, label) ? labels[label] : undefined;
  if (version !== undefined) return version;
  const known = Object.keys(labels).sort().join(", ") || "none";
  throw new ModelNotFound(
    `model ${shown(name)} has no version labelled ${shown(label)} (labels: ${known}); expected a number, or set a label ` +
      "with mqinfer models traffic",
  );
}

function encoded(name: string, input: Input): EncodedTensor {
  if (ArrayBuffer.isView(input) || Array.isArray(input)) return encodeTensor(name, input);
  if (typeof input !== "object" || input === null) return encodeTensor(name, input);
  if ("bytes" in input) return { ...input, name };
  const { data, ...options } = input as { data: Elements } & EncodeOptions;
  return encodeTensor(name, data, options);
}

/** Return the message of a request's next attempt. */
export function publication(request: Request, entry: Entry, client: string, topics: Topics): Outgoing {
  const leftMs = Math.max(0, entry.deadline - entry.sent);
  const payload = encodeRequest({ ...request, timeoutUs: Math.floor(leftMs * 1_000), attempt: entry.attempts });
  return {
    topic: entry.lane
      ? topics.lane(entry.lane.worker, entry.model, client)
      : topics.infer(entry.model, client, entry.version),
    payload,
    contentType: CONTENT_TYPE,
    responseTopic: entry.responseTopic,
    correlation: bytesOf(entry.id),
    expiry: Math.max(1, Math.ceil(leftMs / 1_000)),
    userProperties: { [CHECKSUM]: checksum(payload) },
  };
}

/** Return the message that makes workers skip a request. */
export function cancellation(
  entry: Entry,
  outcome: "cancelled" | "superseded",
  client: string,
  topics: Topics,
): Outgoing {
  const body = JSON.stringify({ ids: [entry.id], outcome });
  return { topic: topics.cancel(entry.model, client), payload: new TextEncoder().encode(body) };
}

/**
 * Return the result of a reply whose outcome is `ok`.
 *
 * @throws BadEncoding: A tensor can't be decoded.
 */
export function resultOf(reply: Reply, entry: Entry, capture: Capture, received: number, limits: Limits): Result {
  const outputs: Record<string, Tensor> = Object.create(null);
  const pictures: Record<string, EncodedTensor> = Object.create(null);
  try {
    checkTogether(reply.outputs, limits);
    for (const tensor of reply.outputs) {
      if (PICTURES.has(tensor.encoding)) pictures[tensor.name] = tensor;
      else outputs[tensor.name] = decodeTensor(tensor, limits);
    }
  } catch (error) {
    if (error instanceof MqinferError)
      throw new BadEncoding(`the reply can't be decoded: ${error.message}`, { cause: error });
    throw error;
  }
  const { id, modelName, modelVersion, modelHash, worker, stage, parameters } = reply;
  const timings = withClientPart(reply.timings, entry, received);
  const { attempts } = entry;
  return {
    id,
    modelName,
    modelVersion,
    modelHash,
    outputs,
    pictures,
    worker,
    stage,
    timings,
    capture,
    attempts,
    parameters,
  };
}

function withClientPart(timings: Timings, entry: Entry, received: number): Timings {
  return {
    ...timings,
    clientQueue: Math.round((entry.sent - entry.submitted) * 1e6),
    transmission: Math.max(0, Math.round((received - entry.sent) * 1e6) - serverTime(timings)),
  };
}

/** Return 16 random bytes as hex digits: only who has received a request can reply to it. */
export function newId(): string {
  return hexOf(crypto.getRandomValues(new Uint8Array(16)));
}

export function hexOf(bytes: Uint8Array): string {
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

function bytesOf(hex: string): Uint8Array {
  return Uint8Array.from({ length: hex.length / 2 }, (_, place) =>
    Number.parseInt(hex.slice(2 * place, 2 * place + 2), 16),
  );
}
