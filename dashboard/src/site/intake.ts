/** Takes each message to where it belongs; what can't be used is counted by reason. */

import {
  type Address,
  CHECKSUM,
  checksum,
  decodeReply,
  type Message,
  type MqinferError,
  type Reply,
  readCard,
  readClientState,
  readWorkerState,
  Topics,
} from "mqinfer-client";
import { cut, type Drops, PREVIEW_LIMITS, RESULT_LIMITS, type Reason } from "./bounds.js";
import { readAnswer } from "./live/answer_lines.js";
import { answerOf, previewOf } from "./live/messages.js";
import type { Tiles } from "./live/tiles.js";
import type { Log, LoggedAnswer } from "./log.js";
import { Budget } from "./measuring/budget.js";
import type { Clock, Decoder, Platform } from "./platform.js";
import type { Clients, Settled } from "./rows/clients.js";
import type { Models } from "./rows/models.js";
import type { Workers } from "./rows/workers.js";

/** How many messages of each kind are read. */
export class Budgets {
  readonly results = new Budget();
  readonly previews = new Budget();
  /** The ends of many processes may come at once, and each is shown. */
  readonly states = new Budget(Number.POSITIVE_INFINITY);

  /** Note how late a timer of the page came. */
  late(byMs: number): void {
    for (const budget of [this.results, this.previews, this.states]) budget.late(byMs);
  }
}

/** What messages change. */
export interface Tables {
  readonly tiles: Tiles;
  readonly workers: Workers;
  readonly clients: Clients;
  readonly models: Models;
  readonly log: Log;
  readonly budgets: Budgets;
  readonly drops: Drops;
}

type Of<K extends Address["kind"]> = Extract<Address, { kind: K }>;

/** Errors of a reply after which the request is sent again: they are not the frame's result. */
const NOT_FINAL = new Set(["reference_lost", "corrupted"]);

/** A message that is not used, and why. */
class Refused extends Error {
  constructor(
    readonly reason: Reason,
    why: string,
  ) {
    super(why);
  }
}

export class Intake {
  readonly #topics: Topics;
  readonly #clock: Clock;
  readonly #decoder: Decoder;
  readonly #tables: Tables;
  /** Number of the current connection. */
  connection = 0;

  constructor(root: string, { clock, decoder }: Platform, tables: Tables) {
    this.#topics = new Topics(root);
    this.#clock = clock;
    this.#decoder = decoder;
    this.#tables = tables;
  }

  /** The filters to subscribe to: states first, so that streams and models are known when results come. */
  get filters(): readonly string[] {
    const { cards, workerStates, clientStates, previews, results } = this.#topics;
    return [cards, workerStates, clientStates, previews, results];
  }

  /** The one of them that the workers' states have. */
  get workerFilter(): string {
    return this.#topics.workerStates;
  }

  /** Take any message; never throws. */
  take(message: Message): void {
    try {
      this.#dispatch(message);
    } catch (error) {
      this.#refuse(message, reasonOf(error), error instanceof Error ? error.message : String(error));
    }
  }

  #dispatch(message: Message): void {
    if (message.topic.startsWith(`${this.#topics.root}/results/control/`)) return; // replies to operators
    const address = this.#topics.parse(message.topic);
    const isState = address.kind === "worker" || address.kind === "client" || address.kind === "card";
    if (isState && !this.#hasTimeFor(message)) return;
    switch (address.kind) {
      case "result":
        this.#result(address, message);
        break;
      case "preview":
        this.#preview(address, message);
        break;
      case "worker":
        this.#worker(address, message);
        break;
      case "client":
        this.#client(address, message);
        break;
      case "card":
        this.#card(address, message);
        break;
      default:
        throw new Refused("wrong topic", "this page does not read such messages");
    }
  }

  /** Return whether a state is to be read: each that the broker has kept, and of a flood a share. */
  #hasTimeFor({ topic, retain }: Message): boolean {
    if (retain || this.#tables.budgets.states.admit(topic, this.#clock.nowMs()) > 0) return true;
    this.#tables.drops.add("slow page");
    return false;
  }

  #result({ model, client }: Of<"result">, message: Message): void {
    const { budgets, drops, models, tiles } = this.#tables;
    if (message.retain) throw new Refused("retained", "results are never retained");
    if (message.payload.byteLength > RESULT_LIMITS.payloadBytes) {
      throw new Refused("too large", `${message.payload.byteLength} bytes`);
    }
    const weight = budgets.results.admit(client, this.#clock.nowMs());
    if (weight === 0) {
      drops.add("slow page");
      models.count(model, null);
      tiles.skipped(client, model);
      return;
    }
    if (isJson(message)) {
      drops.add("json result");
      models.count(model, null);
      return;
    }
    checkIntact(message);
    const reply = decodeReply(owned(message.payload), RESULT_LIMITS);
    if (reply.modelName !== model) {
      throw new Refused("wrong topic", `the result is of the model ${cut(reply.modelName)}`);
    }
    this.#answer(client, reply, message, weight);
  }

  #answer(client: string, reply: Reply, message: Message, weight: number): void {
    const { clients, models, tiles, workers } = this.#tables;
    const name = { client, source: reply.capture.source ?? "", model: reply.modelName };
    models.count(reply.modelName, reply.outcome === "ok" ? reply.timings : null);
    workers.count(reply.worker, weight);
    this.#logReply(client, reply, message.payload.byteLength);
    if (reply.outcome === "rejected" || NOT_FINAL.has(reply.error?.code ?? "")) return;
    clients.count(name, reply.outcome, weight, reply.error?.code);
    const nowMs = this.#clock.nowMs();
    tiles.of(name)?.addAnswer(answerOf(reply, message.payload.byteLength, nowMs));
  }

  #preview({ client }: Of<"preview">, message: Message): void {
    if (message.retain) throw new Refused("retained", "previews are never retained");
    const bytes = message.payload.byteLength;
    if (bytes > PREVIEW_LIMITS.payloadBytes) throw new Refused("too large", `${bytes} bytes`);
    if (this.#tables.budgets.previews.admit(client, this.#clock.nowMs()) === 0) {
      this.#tables.drops.add("slow page");
      return;
    }
    checkIntact(message);
    const reply = decodeReply(owned(message.payload), PREVIEW_LIMITS);
    const preview = previewOf(reply, bytes, this.#clock.nowMs());
    const name = { client, source: reply.capture.source ?? "", model: reply.modelName };
    this.#tables.tiles.of(name)?.addPreview(preview);
  }

  #worker({ worker }: Of<"worker">, { topic, payload }: Message): void {
    const state = readWorkerState(this.#topics, topic, payload);
    const status = this.#tables.workers.take(worker, state, this.connection);
    if (status) this.#tables.log.add("state", `worker ${worker}: ${status}`, () => state ?? { worker, removed: true });
  }

  #client({ client }: Of<"client">, { topic, payload, correlation }: Message): void {
    if (payload.byteLength === 0 && correlation) return; // a client's mark to itself
    const state = readClientState(this.#topics, topic, payload);
    const { clients, log, tiles } = this.#tables;
    const change = clients.take(client, state, this.connection);
    if (!change) return;
    for (const name of change.streams) tiles.expect(name);
    tiles.clientChanged(client, change.tiles);
    if (change.status) log.add("state", `client ${client}: ${change.status}`, () => state ?? { client, removed: true });
    for (const settled of change.settled) this.#logSettled(client, settled);
  }

  /** Log the frames that a client gave up: no result of theirs is published. */
  #logSettled(client: string, { source, model, code, count, isTotal }: Settled): void {
    const when = isTotal ? ", before this page saw it" : "";
    const summary = `${client} ${source} ${model}: ${code}: settled by the client${when}`;
    const detail = () => ({ client, source, model, code, frames: count, settled_by: "client" });
    this.#tables.log.add("error", summary, detail, { key: `${client}/${model}/${source}/${code}/client`, count });
  }

  #card({ model }: Of<"card">, { topic, payload }: Message): void {
    const card = readCard(this.#topics, topic, payload);
    const isNew = this.#tables.models.take(model, card, payload.byteLength, this.connection);
    this.#tables.tiles.modelChanged(model);
    if (isNew) {
      const what = card ? `version ${card.version}` : "removed";
      this.#tables.log.add("state", `model ${model}: ${what}`, () => card ?? { model, removed: true });
    }
  }

  #logReply(client: string, reply: Reply, bytes: number): void {
    const { sequence, source } = reply.capture;
    const { error, modelName: model, outcome } = reply;
    const frame = source === undefined ? client : `${client} ${source} ${sequence ?? ""}`.trim();
    const what = error ? `${error.code}: ${error.message}` : `${outcome} by ${reply.worker}`;
    const sender = `${client}/${model}/${source ?? ""}`;
    const isOk = outcome === "ok";
    this.#tables.log.add(isOk ? "result" : "error", `${frame} ${model}: ${what}`, () => ({ client, ...reply }), {
      ...{ sender, sequence },
      ...(isOk ? { answer: this.#answerIn(reply, bytes) } : { key: `${sender}/${error?.code ?? outcome}` }),
    });
  }

  #answerIn({ modelName, outputs }: Reply, bytes: number): LoggedAnswer {
    const { models } = this.#tables;
    return { bytes, read: () => readAnswer(outputs, models.classesOf(modelName), this.#decoder) };
  }

  #refuse(message: Message, reason: Reason, why: string): void {
    this.#tables.drops.add(reason);
    const { topic, payload, retain } = message;
    this.#tables.log.add("refused", `${reason}: ${cut(topic, 100)}: ${cut(why)}`, () => ({
      topic,
      bytes: payload.byteLength,
      retain,
      why,
    }));
  }
}

/** Return bytes that do not keep a much larger buffer in memory, such as a packet with many messages. */
function owned(payload: Uint8Array): Uint8Array {
  return payload.buffer.byteLength > 2 * payload.byteLength ? payload.slice() : payload;
}

function checkIntact({ payload, userProperties }: Message): void {
  const stated = Object.hasOwn(userProperties, CHECKSUM) ? userProperties[CHECKSUM] : undefined;
  if (stated !== undefined && stated !== checksum(payload)) throw new Refused("corrupted", "the checksum differs");
}

function isJson({ contentType, payload }: Message): boolean {
  return contentType === "application/json" || (contentType === undefined && payload[0] === 0x7b);
}

function reasonOf(error: unknown): Reason {
  if (error instanceof Refused) return error.reason;
  const code = (error as MqinferError).code;
  if (code === "bad_topic") return "wrong topic";
  return code === "limit_exceeded" ? "too large" : "bad message";
}
