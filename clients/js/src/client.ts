/** Requests to models, and the results of others: the connection, one timer, and the table of what is pending. */

import { Cards } from "./cards.js";
import { CHECKSUM, checksum } from "./checksum.js";
import {
  type Counters,
  DEFAULT_PENDING,
  Dispatcher,
  type Ended,
  outcomeOf,
  type PendingOptions,
} from "./dispatcher.js";
import { decodeReply } from "./envelope.js";
import {
  Cancelled,
  errorFromCode,
  LinkError,
  ModelNotFound,
  MqinferError,
  NotAuthorized,
  NotConnected,
  Superseded,
} from "./errors.js";
import { shown } from "./fields/fields.js";
import { checkOptions } from "./fields/nearest.js";
import { DEFAULT_LIMITS } from "./limits.js";
import type { Link, LinkOptions, LinkStatus, Message } from "./link.js";
import { openLink } from "./mqtt_link.js";
import { type PictureResult, pictureResult } from "./pictures/result.js";
import { type Picture, pictureInputs } from "./pictures/sending.js";
import type { Entry } from "./requests/entry.js";
import {
  cancellation,
  checkedTimeout,
  hexOf,
  type InferOptions,
  type Inputs,
  isLabel,
  labelledVersion,
  newId,
  newRequest,
  publication,
  type Result,
  resultOf,
} from "./requests/messages.js";
import type { ModelCard } from "./states/card.js";
import { readWorkerState } from "./states/states.js";
import { NEWER_FRAME, type Sender, Stream, type StreamOptions } from "./stream.js";
import { checkName, isName, Topics } from "./topics.js";
import type { Limits, Reply, Request } from "./types.js";
import { type Watch, Watches, type WatchOptions } from "./watch.js";

const TIMEOUT_MS = 10_000;
const CONNECT_TIMEOUT_MS = 10_000;
const LINK_OPTIONS = ["user", "password", "maxPacketSize", "signal", "tls"] as const;
const PENDING_OPTIONS = ["window", "maxPending", "patienceMs", "settlingMs", "backoffMs"] as const;
const OWN_OPTIONS = ["name", "root", "timeoutMs", "connectTimeoutMs", "limits", "onStatus", "lanes"] as const;
/** Above this a browser's timer fires at once. */
const LONGEST_TIMER_MS = 2 ** 31 - 1;

/** How a client connects and sends; all optional. */
export interface ClientOptions extends Omit<LinkOptions, "url" | "timeoutMs">, Partial<PendingOptions> {
  /** The root of all topics of the site. */
  readonly root?: string;
  /** Of each request, unless the call states another one: the result or the error comes no later. */
  readonly timeoutMs?: number;
  /** How long `connect` waits for the broker. */
  readonly connectTimeoutMs?: number;
  /** Bounds of what a reply may contain. */
  readonly limits?: Limits;
  /** Whether the client chooses the worker of each request (true), or the broker deals them to the workers in turn. */
  readonly lanes?: boolean;
}

/** What became of all requests, and what came beside their replies. */
export interface ClientCounters extends Counters {
  /** Replies, and states of workers, that could not be read, or were damaged on the way. */
  readonly malformed: number;
  /** Replies that the broker had kept: they are of an earlier time. */
  readonly retained: number;
}

/** Receives the one outcome of a request. */
type Settle = (found: Result | MqinferError) => void;

interface Waiting {
  readonly request: Request;
  readonly settle: Settle;
}

/** A connection to a broker, for requests to any number of models. Make one for a page or a process and keep it. */
export class Client {
  /** The client's name in its topics. */
  readonly name: string;
  readonly #topics: Topics;
  readonly #dispatcher: Dispatcher;
  readonly #limits: Limits;
  readonly #timeoutMs: number;
  readonly #patienceMs: number;
  readonly #waiting = new Map<string, Waiting>();
  readonly #streams = new Set<Stream>();
  readonly #onStatus: ((status: LinkStatus) => void) | undefined;
  #link: Link | undefined;
  #watches: Watches | undefined;
  #cards: Cards | undefined;
  #connected = false;
  #failure: MqinferError | undefined;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #timerAt = Number.POSITIVE_INFINITY;
  #malformed = 0;
  #retained = 0;

  private constructor(options: ClientOptions, name: string) {
    this.name = name;
    this.#topics = new Topics(options.root);
    this.#dispatcher = new Dispatcher(given(options, PENDING_OPTIONS));
    this.#patienceMs = options.patienceMs ?? DEFAULT_PENDING.patienceMs;
    this.#limits = options.limits ?? DEFAULT_LIMITS;
    this.#timeoutMs = checkedTimeout(options.timeoutMs ?? TIMEOUT_MS);
    this.#onStatus = options.onStatus;
  }

  /**
   * Connect to a broker; the client then reconnects by itself, until it is closed.
   *
   * @param url `ws://`, `wss://` and, in node, `mqtt://` and `mqtts://`; the hosts of standbys behind commas.
   * @throws BrokerUnreachable: No broker answered within `connectTimeoutMs`.
   * @throws NotAuthorized: The broker refused the login, or the subscription to the results of this client's name.
   * @throws BadTopic: The name or the root breaks the naming rules.
   * @throws ConfigError: The URL or a timeout is wrong, or there is no such option.
   */
  static async connect(url: string, options: ClientOptions = {}): Promise<Client> {
    checkOptions(options, [...LINK_OPTIONS, ...PENDING_OPTIONS, ...OWN_OPTIONS]);
    const { user, name = user && isName("client", user) ? user : `js-${newId().slice(0, 12)}` } = options;
    const client = new Client(options, checkName("client", name));
    const forLink = given(options, LINK_OPTIONS);
    const timeoutMs = options.connectTimeoutMs ?? CONNECT_TIMEOUT_MS;
    const link = await openLink({ ...forLink, url, name, timeoutMs, onStatus: (status) => client.#onLink(status) });
    client.#link = link;
    client.#watches = new Watches(link, client.#topics);
    client.#cards = new Cards(link, client.#topics, client.#patienceMs, (...asked) => client.#withoutCard(...asked));
    try {
      await link.subscribe(client.#topics.resultsOfClient(name), 1, (message) => client.#onReply(message));
    } catch (error) {
      await link.close();
      if (!(error instanceof NotAuthorized)) throw error;
      throw new NotAuthorized(
        `${error.message}; where access rules apply, the client's name must be that of its login`,
      );
    }
    if (options.lanes ?? true) await client.#followWorkers(link);
    return client;
  }

  /** Whether a request would be sent now. */
  get connected(): boolean {
    return this.#connected;
  }

  /**
   * Send arrays to a model, and return its result.
   *
   * Until its deadline a request is sent again where a worker is lost, busy or silent, the connection was lost, or a message
   * was damaged. So a model may run a request more than once; there is one result. A version that is a label waits for the model's
   * card before, as long.
   *
   * @throws MqinferError: The class says what to do: `InvalidRequest` and below, `ModelNotFound`, `ModelFailed`, `NoWorker`,
   *   `Expired`, `Rejected`, `Cancelled`, `MessageTooLarge`, `NotAuthorized`.
   */
  async infer(model: string, inputs: Inputs, options: InferOptions = {}): Promise<Result> {
    if (this.#failure) throw this.#failure;
    if (options.signal?.aborted) throw new Cancelled("cancelled by the caller");
    const timeoutMs = checkedTimeout(options.timeoutMs ?? this.#timeoutMs);
    if (isLabel(options.version)) return this.infer(model, inputs, await this.#numbered(model, options));
    const request = this.#request(model, inputs, options);
    return new Promise((resolve, reject) => {
      const abort = () => this.#cancel(request.id, new Cancelled("cancelled by the caller"));
      this.#submit(request, timeoutMs, (found) => {
        options.signal?.removeEventListener("abort", abort);
        if (found instanceof MqinferError) reject(found);
        else resolve(found);
      });
      options.signal?.addEventListener("abort", abort);
    });
  }

  /**
   * Open a stream of live frames to a model; their results come in the order of the frames.
   *
   * @param options A version that is a label stands for the version that has it now.
   * @throws ConfigError: The policy is unknown, a number is out of range, or there is no such option.
   */
  async stream(model: string, options: StreamOptions = {}): Promise<Stream> {
    if (this.#failure) throw this.#failure;
    const timeoutMs = checkedTimeout(options.timeoutMs ?? this.#timeoutMs);
    const sender: Sender = {
      failure: () => this.#failure,
      request: (inputs, ofEach) => this.#request(model, inputs, ofEach),
      send: (...sent) => this.#submit(...sent),
      cancel: (...ended) => this.#cancel(...ended),
      supersede: (ids) => this.#supersede(ids),
    };
    const numbered = isLabel(options.version) ? await this.#numbered(model, options) : options;
    const stream = new Stream(sender, numbered, timeoutMs, (ended) => this.#streams.delete(ended));
    this.#streams.add(stream);
    return stream;
  }

  /**
   * Send a picture, and return what the model found in it, in the picture's own pixels.
   *
   * @param picture One, or for a model with several `[[image]]` as many in their order, of which the first one counts.
   *   A file travels as it is.
   * @param options As for `infer`, with outputs in `lz4`; the first request to a model waits for its card before, as long.
   * @throws ModelNotFound: No worker has published the model's card.
   * @throws BadTensor: The model takes no pictures or another number of them, or something is none.
   * @throws BadEncoding: It is of a kind that does not travel, such as one with transparency, and nothing here decodes it.
   * @throws MqinferError: As for `infer`.
   */
  async inferPicture(
    model: string,
    picture: Picture | readonly Picture[],
    options: InferOptions = {},
  ): Promise<PictureResult> {
    const card = await this.card(model, options);
    const { inputs, placement } = await pictureInputs(card, picture);
    // Without loss, and a mask becomes some KiB: a megabyte takes some brokers' websockets ten seconds.
    const result = await this.infer(model, inputs, { outputEncoding: "lz4", ...options });
    return pictureResult(result, placement, card.classes);
  }

  /**
   * Return a model's card: its inputs, outputs and classes.
   *
   * @throws ModelNotFound: No worker has published one within `timeoutMs`, or within `patienceMs` where no worker serves it and
   *   one serves a model whose name is nearly the same; the message lists the models.
   * @throws NotConnected: The broker was away for so long.
   */
  async card(model: string, options: Pick<InferOptions, "timeoutMs" | "signal"> = {}): Promise<ModelCard> {
    if (this.#failure || !this.#cards) throw this.#failure ?? new NotConnected("not connected yet");
    if (options.signal?.aborted) throw new Cancelled("cancelled by the caller");
    return this.#cards.get(model, checkedTimeout(options.timeoutMs ?? this.#timeoutMs), options.signal);
  }

  /**
   * Receive the results of others: what workers reply to any client of a model.
   *
   * @param model One model.
   * @throws NotAuthorized: The broker refused the subscription.
   */
  async watch(model: string, options: WatchOptions = {}): Promise<Watch> {
    if (this.#failure || !this.#watches) throw this.#failure ?? new NotConnected("not connected yet");
    return this.#watches.open(model, { limits: this.#limits, ...options });
  }

  counters(): ClientCounters {
    return { ...this.#dispatcher.counters(), malformed: this.#malformed, retained: this.#retained };
  }

  /** End what is pending as `cancelled`, end all watches, and disconnect. */
  async close(): Promise<void> {
    this.#fail(new Cancelled("the client was closed"));
    await this.#watches?.closeAll();
    await this.#link?.close();
  }

  /** Return the error of a question for a card that has not come, or undefined where it may wait on. */
  #withoutCard(model: string, waitedMs: number, isOver: boolean): MqinferError | undefined {
    if (!isOver && !(this.#connected && this.#dispatcher.isMistyped(model))) return undefined;
    const where = `in ${Number((waitedMs / 1_000).toFixed(1))} s`;
    if (!this.#connected)
      return new NotConnected(`no connection to the broker ${where}: no card of model ${shown(model)}`);
    return new ModelNotFound(
      `no worker has published a card of model ${shown(model)} ${where}; check its name${this.#dispatcher.insteadOf(model)}`,
    );
  }

  #onLink(status: LinkStatus): void {
    this.#connected = status.status === "connected";
    if (status.status === "connected") this.#dispatcher.connected(performance.now());
    else if (status.status === "lost") this.#dispatcher.disconnected();
    else if (status.status === "refused") this.#fail(refusal(status));
    this.#pump();
    this.#onStatus?.(status);
  }

  /** Carry out what follows from the events and the time, and set the timer. */
  #pump(): void {
    const now = performance.now();
    const { send, ended } = this.#dispatcher.take(now, this.#connected);
    for (const each of ended) this.#hand(each);
    for (const entry of send) void this.#publish(entry);
    this.#setTimer(now);
  }

  #setTimer(now: number): void {
    const at = this.#dispatcher.wakeAt;
    if (at === this.#timerAt) return;
    clearTimeout(this.#timer);
    this.#timerAt = at;
    if (at === Number.POSITIVE_INFINITY) return;
    this.#timer = setTimeout(
      () => {
        this.#timerAt = Number.POSITIVE_INFINITY;
        this.#pump();
      },
      Math.min(Math.max(0, at - now), LONGEST_TIMER_MS),
    );
  }

  async #publish(entry: Entry): Promise<void> {
    const attempt = entry.attempts;
    const waiting = this.#waiting.get(entry.id);
    if (waiting === undefined || this.#link === undefined) return;
    try {
      const code = await this.#link.publish(publication(waiting.request, entry, this.name, this.#topics));
      this.#dispatcher.acked(entry, attempt, code, performance.now());
    } catch (error) {
      const known = error instanceof MqinferError ? error : new MqinferError(`the request can't be sent: ${error}`);
      this.#dispatcher.unsent(entry, attempt, known, performance.now());
    }
    this.#pump();
  }

  /** Subscribe to the workers' states; without the right to read them, requests go over the models' channels. */
  async #followWorkers(link: Link): Promise<void> {
    try {
      await link.subscribe(this.#topics.workerStates, 1, (message) => this.#onWorker(message));
    } catch (error) {
      if (!(error instanceof NotAuthorized)) throw error;
    }
  }

  #onWorker({ topic, payload }: Message): void {
    try {
      const address = this.#topics.parse(topic);
      if (address.kind !== "worker") return;
      const state = readWorkerState(this.#topics, topic, payload);
      this.#dispatcher.update(address.worker, state, performance.now());
    } catch (error) {
      if (!(error instanceof MqinferError)) throw error;
      this.#malformed += 1;
    }
    this.#pump();
  }

  #onReply(message: Message): void {
    if (message.retain) {
      this.#retained += 1;
      return;
    }
    const stated = message.userProperties[CHECKSUM];
    if (stated !== undefined && stated !== checksum(message.payload)) {
      this.#malformed += 1;
      if (message.correlation) this.#dispatcher.corrupted(hexOf(message.correlation));
    } else {
      this.#onChecked(message);
    }
    this.#pump();
  }

  #onChecked(message: Message): void {
    let reply: Reply;
    try {
      reply = decodeReply(message.payload, this.#limits);
    } catch (error) {
      if (!(error instanceof MqinferError)) throw error;
      this.#malformed += 1;
      return;
    }
    const received = performance.now();
    const entry = this.#dispatcher.replied(reply, message.topic, received);
    if (entry === undefined) return;
    const waiting = this.#take(entry);
    try {
      if (reply.outcome !== "ok") throw failureOf(reply);
      const result = resultOf(reply, entry, waiting?.request.capture ?? {}, received, this.#limits);
      this.#dispatcher.settled("ok");
      waiting?.settle(result);
    } catch (error) {
      const known = error instanceof MqinferError ? error : new MqinferError(`the reply can't be decoded: ${error}`);
      this.#dispatcher.settled(reply.outcome === "ok" ? outcomeOf(known) : reply.outcome);
      waiting?.settle(known);
    }
  }

  /** Return options with the version that has the label which they name. */
  async #numbered<Options extends InferOptions>(model: string, options: Options): Promise<Options> {
    const { version, ...others } = options;
    return { ...others, version: labelledVersion(await this.card(model, options), String(version)) } as Options;
  }

  #request(model: string, inputs: Inputs, options: InferOptions): Request {
    const id = newId();
    return newRequest(model, inputs, options, { id, responseTopic: this.#topics.result(model, this.name, id) });
  }

  #submit(request: Request, timeoutMs: number, settle: Settle): void {
    if (this.#failure) throw this.#failure;
    const { id, modelName: model, modelVersion: version, responseTopic = "" } = request;
    this.#dispatcher.add({ id, model, version, responseTopic }, performance.now(), timeoutMs);
    this.#waiting.set(id, { request, settle });
    this.#pump();
  }

  #cancel(id: string, why: Cancelled | Superseded): void {
    const outcome = why instanceof Superseded ? "superseded" : "cancelled";
    const entry = this.#dispatcher.cancel(id, outcome);
    if (entry === undefined) return;
    this.#take(entry)?.settle(why);
    if (entry.attempts > 0) {
      // Without a connection no worker answers it either.
      this.#link?.publish(cancellation(entry, outcome, this.name, this.#topics)).catch(() => undefined);
    }
    this.#pump();
  }

  /** Supersede the first of a stream's requests, oldest first, that no worker works on. */
  #supersede(ids: readonly string[]): void {
    const found = this.#dispatcher.replaceable(ids, performance.now(), this.#connected);
    if (found !== undefined) this.#cancel(found, new Superseded(NEWER_FRAME));
  }

  #fail(error: MqinferError): void {
    this.#failure ??= error;
    for (const stream of this.#streams) stream.close();
    this.#cards?.close(error);
    for (const each of this.#dispatcher.drain(new Cancelled(error.message))) this.#hand(each);
    clearTimeout(this.#timer);
    this.#timerAt = Number.POSITIVE_INFINITY;
  }

  #hand({ entry, error }: Ended): void {
    this.#take(entry)?.settle(error);
  }

  /** Return who waits for a request that has left the table, once. */
  #take(entry: Entry): Waiting | undefined {
    const waiting = this.#waiting.get(entry.id);
    this.#waiting.delete(entry.id);
    return waiting;
  }
}

function refusal({ reason, needsLogin }: LinkStatus): MqinferError {
  return needsLogin
    ? new NotAuthorized(`the broker refused the login: ${reason}`)
    : new LinkError(`the broker refused the connection: ${reason}`);
}

function failureOf(reply: Reply): MqinferError {
  const { code = reply.outcome, message = `the request ended as ${reply.outcome}` } = reply.error ?? {};
  return errorFromCode(code, message);
}

/** Return those of the fields that are set. */
function given<T extends object, Field extends keyof T>(from: T, fields: readonly Field[]): Pick<T, Field> {
  return Object.fromEntries(
    fields.filter((field) => from[field] !== undefined).map((field) => [field, from[field]]),
  ) as Pick<T, Field>;
}
