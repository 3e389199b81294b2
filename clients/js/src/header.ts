/** The header of a message, as a stranger sent it: its fields, checked one by one. */

import { checkShape, DATATYPES } from "./codecs/datatypes.js";
import { BadEnvelope, BadTensor, LimitExceeded } from "./errors.js";
import { asFields, asInteger, type Fields, shown } from "./fields/fields.js";
import { readMessagePack } from "./fields/msgpack_read.js";
import type {
  Capture,
  Datatype,
  Limits,
  Outcome,
  Parameters,
  Reply,
  Request,
  RequestedOutput,
  Stage,
  Timings,
} from "./types.js";

/** What the header says of one tensor. */
export interface Description {
  readonly name: string;
  readonly datatype: Datatype;
  readonly shape: readonly number[];
  /** `binary_data_size`: its bytes in the payload. */
  readonly size: number;
  readonly encoding: string;
  readonly parameters: Parameters;
}

const CAPTURE = ["source", "sequence", "capture_time_ns", "frame_id"];

/** Parameters of a request that are fields of `Request`. */
export const REQUEST_FIELDS: ReadonlySet<string> = new Set([
  ...CAPTURE,
  ...["timeout", "priority", "attempt", "response_topic"],
]);

/** Parameters of a reply that are fields of `Reply`, in one content type or the other. */
export const REPLY_FIELDS: ReadonlySet<string> = new Set([
  ...CAPTURE,
  ...["attempt", "outcome", "model_hash", "worker", "stage", "timings", "load", "error_code"],
]);

/** Parameters of a tensor that are fields of `EncodedTensor`. */
export const TENSOR_FIELDS: ReadonlySet<string> = new Set(["encoding", "binary_data_size"]);

/** All outcomes. */
export const OUTCOMES: readonly Outcome[] = ["ok", "error", "expired", "superseded", "rejected", "cancelled"];

const STAGES: readonly Stage[] = ["worker", "edge", "edge-reuse"];

/**
 * Read the bytes of a header.
 *
 * @param what - `request` or `reply`; for messages.
 * @throws BadEnvelope: They are no MessagePack map, or a string is longer than `limits`.
 */
export function openHeader(bytes: Uint8Array, what: string, limits: Limits): Fields {
  const header = readMessagePack(bytes);
  if (bytes.length > limits.stringBytes) checkStrings(header, limits.stringBytes);
  return asFields(header, what);
}

/** Return what a header says of its tensors. */
export function readTensors(header: Fields, key: "inputs" | "outputs", limits: Limits): readonly Description[] {
  const entries = header.maps(key);
  if (entries.length > limits.tensors) {
    throw new LimitExceeded(`${entries.length} ${key}; at most ${limits.tensors} are accepted`);
  }
  const found = entries.map((entry) => readTensor(entry, limits));
  if (new Set(found.map(({ name }) => name)).size !== found.length) {
    throw new BadTensor(`two ${key} have the same name; send each once`);
  }
  return found;
}

/** Return the fields of a request but its tensors. */
export function readRequest(header: Fields): Omit<Request, "inputs"> {
  const parameters = header.map("parameters");
  return {
    id: header.text("id"),
    modelName: header.text("model_name"),
    ...(header.has("model_version") && { modelVersion: header.text("model_version") }),
    ...(header.has("outputs") && { outputs: header.maps("outputs").map(readOutput) }),
    ...(parameters && readParameters(parameters)),
  };
}

/** Return the fields of a reply but its tensors. */
export function readReply(header: Fields): Omit<Reply, "outputs"> {
  const parameters = header.map("parameters");
  const error = header.map("error");
  const load = header.map("load");
  const stage = header.text("stage", "worker");
  return {
    id: header.text("id"),
    modelName: header.text("model_name", ""),
    modelVersion: header.text("model_version", ""),
    outcome: header.choice("outcome", OUTCOMES, "ok"),
    ...(error && { error: { code: error.text("code"), message: error.text("message", "") } }),
    modelHash: header.text("model_hash", ""),
    worker: header.text("worker", ""),
    stage: STAGES.find((known) => known === stage) ?? "worker",
    timings: readTimings(header.map("timings")),
    ...(load && {
      load: {
        depth: load.count("depth", 0),
        serviceTimeUs: load.count("service_time_us", 0),
        window: load.count("window", 0),
      },
    }),
    attempt: parameters?.count("attempt", 1, 1) ?? 1,
    capture: parameters ? readCapture(parameters) : {},
    parameters: parameters?.scalars(REPLY_FIELDS) ?? {},
  };
}

function readTensor(entry: Fields, limits: Limits): Description {
  const name = entry.text("name");
  const datatype = entry.choice("datatype", DATATYPES, undefined, BadTensor);
  const shape = (entry.list("shape", BadTensor) ?? missingShape(name)).map((side) => readSide(name, side));
  checkShape(name, datatype, shape, limits);
  const parameters = entry.map("parameters");
  if (parameters === undefined) throw new BadEnvelope(`tensor ${shown(name)}: 'binary_data_size' is missing`);
  return {
    name,
    datatype,
    shape,
    size: parameters.count("binary_data_size"),
    encoding: parameters.text("encoding", "raw"),
    parameters: parameters.scalars(TENSOR_FIELDS),
  };
}

function missingShape(name: string): never {
  throw new BadTensor(`tensor ${shown(name)}: 'shape' is missing`);
}

function readSide(name: string, side: unknown): number {
  const found = asInteger(side, 0n);
  if (found !== undefined) return Number(found);
  throw new BadTensor(`tensor ${shown(name)}: every entry of a shape must be an integer from 0 to 2**63 - 1`);
}

function readOutput(entry: Fields): RequestedOutput {
  const parameters = entry.map("parameters");
  const encoding = parameters?.text("encoding", "") ?? "";
  const classification = parameters?.count("classification", 0) ?? 0;
  return { name: entry.text("name"), ...(encoding && { encoding }), ...(classification && { classification }) };
}

function readParameters(parameters: Fields): Partial<Request> {
  const capture = readCapture(parameters);
  return {
    ...(parameters.has("timeout") && { timeoutUs: parameters.count("timeout") }),
    priority: parameters.count("priority", 0),
    attempt: parameters.count("attempt", 1, 1),
    ...(parameters.has("response_topic") && { responseTopic: parameters.text("response_topic") }),
    ...(Object.keys(capture).length > 0 && { capture }),
    parameters: parameters.scalars(REQUEST_FIELDS),
  };
}

function readCapture(parameters: Fields): Capture {
  const source = parameters.text("source", "");
  const frameId = parameters.text("frame_id", "");
  return {
    ...(source && { source }),
    ...(parameters.has("sequence") && { sequence: parameters.count("sequence") }),
    ...(parameters.has("capture_time_ns") && { captureTimeNs: parameters.integer("capture_time_ns") }),
    ...(frameId && { frameId }),
  };
}

function readTimings(timings: Fields | undefined): Timings {
  const part = (key: string) => timings?.count(key, 0) ?? 0;
  return {
    clientQueue: part("client_queue"),
    transmission: part("transmission"),
    serverQueue: part("server_queue"),
    decode: part("decode"),
    preprocess: part("preprocess"),
    inference: part("inference"),
    postprocess: part("postprocess"),
    encode: part("encode"),
  };
}

function checkStrings(header: unknown, most: number): void {
  const found = [header];
  for (const value of found) {
    // the list grows while it is walked
    if (value instanceof Map) found.push(...value.keys(), ...value.values());
    else if (Array.isArray(value)) for (const element of value) found.push(element);
    else if (typeof value === "string" && value.length * 3 > most && new TextEncoder().encode(value).length > most) {
      throw new BadEnvelope(`a string of more than ${most} bytes`);
    }
  }
}
