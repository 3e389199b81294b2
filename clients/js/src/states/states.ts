/** The states of workers and clients, retained messages in JSON; the will of each turns its state into `lost`. */

import { BadEnvelope, BadTopic } from "../errors.js";
import { type Fields, shown } from "../fields/fields.js";
import { readJson, same } from "../fields/json.js";
import { MAX_STATE_BYTES } from "../limits.js";
import { type Address, isName, type Topics } from "../topics.js";

/** A model version that a worker serves. */
export interface ServedModel {
  readonly name: string;
  readonly version: string;
  /** Whether it serves the requests that name no version. */
  readonly isDefault: boolean;
  /** As a canary: per cent of the requests without a version that go to it. */
  readonly share: number;
  readonly precision: string;
  readonly backend: string;
  readonly device: string;
}

export interface WorkerState {
  readonly worker: string;
  readonly status: "ready" | "draining" | "stopped" | "lost" | "crashed";
  /** Start of the process, microseconds since 1970. */
  readonly boot: number;
  readonly models: readonly ServedModel[];
  readonly capacity: number;
  /** Requests that it has accepted and not answered. */
  readonly depth: number;
  readonly serviceTimeUs: number;
  /** What it has counted since its start, by name. */
  readonly counters: Readonly<Record<string, number>>;
  /** Of one that crashed: the requests that it worked on. */
  readonly running: readonly string[];
}

/** The requests of a client to one model that have no outcome. */
export interface PendingRequests {
  readonly model: string;
  readonly queued: number;
  readonly inFlight: number;
  readonly oldestMs: number;
}

/** What an edge states of one stream; what it does not state is 0 or empty. */
export interface StreamState {
  readonly source: string;
  readonly model: string;
  /** Frames read a second over the last interval. */
  readonly rate: number;
  readonly window: number;
  readonly queued: number;
  readonly inFlight: number;
  /** Since the start, by outcome. */
  readonly outcomes: Readonly<Record<string, number>>;
  /** Since the start, by reason. */
  readonly dropped: Readonly<Record<string, number>>;
  readonly spooled: number;
  readonly previews: number;
  readonly previewsDropped: number;
}

export interface ClientState {
  readonly client: string;
  readonly status: "claiming" | "ready" | "stopped" | "lost";
  /** Start of the process, microseconds since 1970. */
  readonly boot: number;
  readonly source: string;
  readonly model: string;
  readonly window: number;
  /** By model; absent of a client that does not state it. */
  readonly pending?: readonly PendingRequests[];
  /** By stream, at most 32; absent of a client that does not state them. */
  readonly streams?: readonly StreamState[];
}

const WORKER_STATUS: readonly WorkerState["status"][] = ["ready", "draining", "stopped", "lost", "crashed"];
const CLIENT_STATUS: readonly ClientState["status"][] = ["claiming", "ready", "stopped", "lost"];
const MAX_STREAMS = 32;

/**
 * Return the state of the worker that a topic names; undefined where an empty payload removes it.
 *
 * @throws BadTopic: It is no topic of a worker's state, or the state names another worker.
 * @throws BadEnvelope: It is no JSON, or a field is missing or wrong.
 * @throws LimitExceeded: It is longer than 64 KiB.
 */
export function readWorkerState(topics: Topics, topic: string, payload: Uint8Array): WorkerState | undefined {
  const name = namedBy(topics.parse(topic), "worker");
  if (payload.length === 0) return undefined;
  const state = readJson(payload, "worker state", MAX_STATE_BYTES);
  const running = state.list("running") ?? [];
  return {
    worker: same("worker", name, state.text("worker")),
    status: state.choice("status", WORKER_STATUS),
    boot: state.count("boot"),
    models: state.maps("models").map(readServed),
    capacity: state.count("capacity", 0),
    depth: state.count("depth", 0),
    serviceTimeUs: state.count("service_time_us", 0),
    counters: counts(state, "counters"),
    running: running.filter((id): id is string => typeof id === "string" && isName("request", id)),
  };
}

/** Return the state of the client that a topic names; as `readWorkerState`. */
export function readClientState(topics: Topics, topic: string, payload: Uint8Array): ClientState | undefined {
  const name = namedBy(topics.parse(topic), "client");
  if (payload.length === 0) return undefined;
  const state = readJson(payload, "client state", MAX_STATE_BYTES);
  return {
    client: same("client", name, state.text("client")),
    status: state.choice("status", CLIENT_STATUS),
    boot: state.count("boot"),
    source: state.text("source", ""),
    model: state.text("model", ""),
    window: state.count("window", 0),
    ...(state.has("pending") && { pending: state.maps("pending").map(readPending) }),
    ...(state.has("streams") && { streams: state.maps("streams").slice(0, MAX_STREAMS).map(readStream) }),
  };
}

function namedBy(address: Address, kind: "worker" | "client"): string {
  if (kind === "worker" && address.kind === "worker") return address.worker;
  if (kind === "client" && address.kind === "client") return address.client;
  throw new BadTopic(`this is not the topic of a ${kind}'s state`);
}

function readServed(model: Fields): ServedModel {
  return {
    name: modelName(model.text("name")),
    version: model.text("version", ""),
    isDefault: model.flag("default", true),
    share: model.count("share", 0),
    precision: model.text("precision", ""),
    backend: model.text("backend", ""),
    device: model.text("device", ""),
  };
}

function modelName(name: string): string {
  if (isName("model", name)) return name;
  throw new BadEnvelope(`${shown(name)} can't be the name of a model`);
}

function readPending(pending: Fields): PendingRequests {
  return {
    model: modelName(pending.text("model")),
    queued: pending.count("queued", 0),
    inFlight: pending.count("in_flight", 0),
    oldestMs: pending.count("oldest_ms", 0),
  };
}

function readStream(stream: Fields): StreamState {
  return {
    source: stream.text("source", ""),
    model: stream.text("model", ""),
    rate: stream.number("rate", 0),
    window: stream.count("window", 0),
    queued: stream.count("queued", 0),
    inFlight: stream.count("in_flight", 0),
    outcomes: counts(stream, "outcomes"),
    dropped: counts(stream, "dropped"),
    spooled: stream.count("spooled", 0),
    previews: stream.count("previews", 0),
    previewsDropped: stream.count("previews_dropped", 0),
  };
}

function counts(state: Fields, key: string): Readonly<Record<string, number>> {
  return state.record(key, (fields, name) => fields.count(name));
}
