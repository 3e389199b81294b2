/** The header of a message as it is sent: fields in the order that mqinfer has, those at their default left out. */

import { BadEnvelope } from "./errors.js";
import { shown } from "./fields/fields.js";
import type { Packable } from "./fields/msgpack_write.js";
import { REPLY_FIELDS, REQUEST_FIELDS, TENSOR_FIELDS } from "./header.js";
import type { Capture, EncodedTensor, Parameters, Reply, Request, RequestedOutput, Timings } from "./types.js";

type Entries = Map<string, Packable>;

const TIMINGS: readonly (readonly [string, keyof Timings])[] = [
  ["server_queue", "serverQueue"],
  ["decode", "decode"],
  ["preprocess", "preprocess"],
  ["inference", "inference"],
  ["postprocess", "postprocess"],
  ["encode", "encode"],
];
const MAX_MESSAGE_BYTES = 4000;

/** Return the header of a request. */
export function requestHeader(request: Request): Entries {
  const header: Entries = new Map([
    ["id", request.id],
    ["model_name", request.modelName],
  ]);
  addUnless(header, "model_version", request.modelVersion, undefined);
  const parameters = further(request.parameters, REQUEST_FIELDS);
  addInteger(parameters, "timeout", request.timeoutUs, undefined);
  addInteger(parameters, "priority", request.priority, 0);
  addInteger(parameters, "attempt", request.attempt, 1);
  addUnless(parameters, "response_topic", request.responseTopic, undefined);
  addCapture(parameters, request.capture);
  if (parameters.size > 0) header.set("parameters", parameters);
  if (request.outputs?.length) header.set("outputs", request.outputs.map(requestedOutput));
  header.set("inputs", request.inputs.map(tensorEntry));
  return header;
}

/** Return the header of a reply; what it lacks is at its default. */
export function replyHeader(reply: Partial<Reply> & Pick<Reply, "id" | "modelName">): Entries {
  const header: Entries = new Map([
    ["id", reply.id],
    ["model_name", reply.modelName],
  ]);
  addUnless(header, "model_version", reply.modelVersion, "");
  addUnless(header, "outcome", reply.outcome, "ok");
  addUnless(header, "model_hash", reply.modelHash, "");
  addUnless(header, "worker", reply.worker, "");
  addUnless(header, "stage", reply.stage, "worker");
  if (reply.timings) addTimings(header, reply.timings);
  if (reply.load) addLoad(header, reply.load);
  if (reply.error) header.set("error", new Map(Object.entries(errorFields(reply.error))));
  const parameters = further(reply.parameters, REPLY_FIELDS);
  addInteger(parameters, "attempt", reply.attempt, 1);
  addCapture(parameters, reply.capture);
  if (parameters.size > 0) header.set("parameters", parameters);
  header.set("outputs", (reply.outputs ?? []).map(tensorEntry));
  return header;
}

function addUnless(entries: Entries, key: string, value: string | undefined, usual: string | undefined): void {
  if (value !== undefined && value !== usual) entries.set(key, value);
}

function addInteger(entries: Entries, key: string, value: number | undefined, usual: number | undefined): void {
  if (value === undefined || value === usual) return;
  if (!Number.isInteger(value)) throw new BadEnvelope(`${key} is ${value}; it must be an integer`);
  entries.set(key, value);
}

function further(parameters: Parameters | undefined, reserved: ReadonlySet<string>): Entries {
  const entries = new Map<string, Packable>(Object.entries(parameters ?? {}));
  for (const key of entries.keys()) {
    if (reserved.has(key)) throw new BadEnvelope(`parameter ${shown(key)} is a field; set the field instead`);
  }
  return entries;
}

function addCapture(entries: Entries, capture: Capture | undefined): void {
  addUnless(entries, "source", capture?.source, "");
  addInteger(entries, "sequence", capture?.sequence, undefined);
  if (capture?.captureTimeNs !== undefined) entries.set("capture_time_ns", capture.captureTimeNs);
  addUnless(entries, "frame_id", capture?.frameId, "");
}

function requestedOutput(output: RequestedOutput): Entries {
  const parameters: Entries = new Map();
  addUnless(parameters, "encoding", output.encoding, "");
  addInteger(parameters, "classification", output.classification, 0);
  const entry: Entries = new Map([["name", output.name]]);
  return parameters.size > 0 ? entry.set("parameters", parameters) : entry;
}

function tensorEntry(tensor: EncodedTensor): Entries {
  const parameters: Entries = new Map([["binary_data_size", tensor.bytes.length]]);
  addUnless(parameters, "encoding", tensor.encoding, "raw");
  for (const [key, value] of further(tensor.parameters, TENSOR_FIELDS)) parameters.set(key, value);
  return new Map<string, Packable>([
    ["name", tensor.name],
    ["datatype", tensor.datatype],
    ["shape", tensor.shape],
    ["parameters", parameters],
  ]);
}

function addTimings(header: Entries, timings: Timings): void {
  const entries: Entries = new Map(TIMINGS.map(([key, field]) => [key, timings[field]]));
  addInteger(entries, "client_queue", timings.clientQueue, 0);
  addInteger(entries, "transmission", timings.transmission, 0);
  if ([...entries.values()].some((value) => value !== 0)) header.set("timings", entries);
}

function addLoad(header: Entries, load: NonNullable<Reply["load"]>): void {
  if (!load.depth && !load.serviceTimeUs && !load.window) return;
  const entries: Entries = new Map([
    ["depth", load.depth],
    ["service_time_us", load.serviceTimeUs],
  ]);
  addInteger(entries, "window", load.window, 0);
  header.set("load", entries);
}

/** Return an error whose message every receiver takes: at most 4000 bytes, cut between two characters. */
function errorFields(error: NonNullable<Reply["error"]>): { code: string; message: string } {
  const bytes = new TextEncoder().encode(error.message).subarray(0, MAX_MESSAGE_BYTES);
  const text = new TextDecoder("utf-8", { ignoreBOM: true }).decode(bytes, { stream: true });
  return { code: error.code, message: text };
}
