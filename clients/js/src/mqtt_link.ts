/** The link over mqtt.js: one connection after another, with the same subscriptions, until it is closed or refused. */

import type { IClientOptions, IPublishPacket } from "mqtt";
import { Backoff } from "./connection/backoff.js";
import { type Subscription, Subscriptions } from "./connection/filters.js";
import { messageOf, type Outgoing, packetSize, subscriptionsOf } from "./connection/packets.js";
import { type Accepted, type End, Session } from "./connection/session.js";
import { eachOf, Lookout } from "./connection/standby.js";
import {
  BrokerUnreachable,
  Cancelled,
  ConfigError,
  LinkError,
  MessageTooLarge,
  NotAuthorized,
  NotConnected,
} from "./errors.js";
import { DEFAULT_LIMITS } from "./limits.js";
import type { Link, LinkOptions, LinkStatus, Message } from "./link.js";
import { checkName } from "./topics.js";

/** Messages of QoS 1 that a broker may have sent without our acknowledgement: what may wait in this process. */
const RECEIVE_MAXIMUM = 64;
/** Of a message that receivers take, with room for topic and properties. Brokers drop larger ones without notice. */
const LARGEST_PACKET = DEFAULT_LIMITS.payloadBytes + 65_536;
const DEFAULT_PORTS: Readonly<Record<string, string>> = {
  "mqtt:": "1883",
  "mqtts:": "8883",
  "ws:": "80",
  "wss:": "443",
};
const IN_NODE =
  typeof (globalThis as { process?: { versions?: { node?: string } } }).process?.versions?.node === "string";

/**
 * Connect to a broker; the link then reconnects by itself.
 *
 * @returns The link, once it is connected.
 * @throws NotAuthorized: The broker refused the login. No further attempt is made.
 * @throws LinkError: The broker refused the connection for another reason that does not pass, such as its protocol version.
 * @throws BrokerUnreachable: There was no connection within `timeoutMs`.
 * @throws Cancelled: `signal` was aborted.
 * @throws ConfigError: The URL or the name is wrong.
 */
export async function openLink(options: LinkOptions): Promise<Link> {
  const link = new MqttLink(options);
  try {
    await opened(link, options);
  } catch (error) {
    await link.close();
    throw error;
  }
  return link;
}

async function opened(link: MqttLink, { timeoutMs, signal, url }: LinkOptions): Promise<void> {
  let timer: ReturnType<typeof setTimeout> | undefined;
  let abort: (() => void) | undefined;
  const interrupted = new Promise<never>((_, reject) => {
    abort = () => reject(new Cancelled("the connection was cancelled by the caller"));
    signal?.addEventListener("abort", abort);
    if (signal?.aborted) abort();
    if (timeoutMs === undefined || timeoutMs === Number.POSITIVE_INFINITY) return;
    timer = setTimeout(() => {
      const addresses = eachOf(url).map((each) => withoutLogin(each).url);
      reject(
        new BrokerUnreachable(
          `no connection to ${addresses.join(", ")} within ${timeoutMs / 1000} s: ${link.reason || "no answer"}`,
        ),
      );
    }, timeoutMs);
  });
  try {
    await Promise.race([link.first, interrupted]);
  } finally {
    clearTimeout(timer);
    if (abort) signal?.removeEventListener("abort", abort);
  }
}

/** The broker's answer to a subscription. */
interface Answer {
  readonly settle: () => void;
  readonly refusal?: Error;
}

class MqttLink implements Link {
  /** Settles with the first connection, or with a refusal. */
  readonly first: Promise<void>;
  /** Why there is no connection; empty while there is one. */
  reason = "";
  readonly #urls: readonly string[];
  readonly #options: IClientOptions;
  readonly #onStatus: (status: LinkStatus) => void;
  readonly #subscriptions = new Subscriptions();
  readonly #backoff = new Backoff();
  #max = LARGEST_PACKET;
  /** Place of the address in use: so many before it have failed in this round. */
  #place = 0;
  #lookout: Lookout | undefined;
  #session: Session | undefined;
  #connected = false;
  #closed = false;
  #upSince: number | undefined;
  #renewal: Promise<Answer[]> | undefined;
  #retry: ReturnType<typeof setTimeout> | undefined;
  #settle: { resolve: () => void; reject: (error: Error) => void } = { resolve: nothing, reject: nothing };

  constructor(options: LinkOptions) {
    const addresses = eachOf(options.url).map(withoutLogin);
    this.#urls = addresses.map(({ url }) => url);
    const { user, password } = addresses[0] ?? {};
    if ((options.user ?? user) === undefined && (options.password ?? password) !== undefined) {
      throw new ConfigError("a password needs the user that it is of; state both");
    }
    this.#onStatus = options.onStatus ?? nothing;
    this.#options = {
      clientId: `${checkName("client", options.name ?? "client")}~${randomHex(8)}`,
      properties: {
        sessionExpiryInterval: 0,
        maximumPacketSize: options.maxPacketSize ?? LARGEST_PACKET,
        receiveMaximum: RECEIVE_MAXIMUM,
      },
      ...defined({ username: options.user ?? user, password: options.password ?? password }),
      ...defined(options.tls ?? {}),
    };
    this.first = new Promise((resolve, reject) => {
      this.#settle = { resolve, reject };
    });
    this.first.catch(nothing);
    this.#report("connecting", "");
    this.#connect();
  }

  get maxPacketSize(): number {
    return this.#max;
  }

  subscribe(filter: string, qos: 0 | 1, onMessage: (message: Message) => void): Promise<void> {
    if (this.#closed) return Promise.reject(notConnected(this.reason));
    let settle: (refusal?: Error) => void = nothing;
    const answer = new Promise<void>((resolve, reject) => {
      settle = (refusal) => (refusal === undefined ? resolve() : reject(refusal));
    });
    const added = this.#subscriptions.add(filter, qos, onMessage, settle);
    answer.catch(() => this.#subscriptions.remove(filter, added));
    if (this.#session && this.#upSince !== undefined) void this.#subscribeNow(this.#session, added);
    return answer;
  }

  async unsubscribe(filter: string): Promise<void> {
    if (!this.#subscriptions.remove(filter) || !this.#connected) return;
    await this.#session?.unsubscribe(filter).catch(nothing); // a lost connection has no subscriptions
  }

  async publish(message: Outgoing): Promise<number> {
    const size = packetSize(message);
    if (size > this.#max) {
      throw new MessageTooLarge(
        `a message of ${size} bytes to ${message.topic}, and the broker takes ${this.#max}; encode it smaller, or raise ` +
          "max_packet_size in mosquitto.conf",
      );
    }
    if (!this.#session || !this.#connected) throw notConnected(this.reason);
    return this.#session.publish(message);
  }

  async close(): Promise<void> {
    if (this.#closed) return;
    this.#closed = true;
    this.#connected = false;
    clearTimeout(this.#retry);
    this.#lookout?.close();
    this.reason = "the link was closed";
    this.#settle.reject(new Cancelled(this.reason));
    for (const { settle } of this.#subscriptions.all()) settle(notConnected(this.reason));
    await this.#session?.end();
  }

  #connect(): void {
    const session = new Session(this.#urls[this.#place] as string, this.#options, {
      onUp: (accepted) => void this.#onUp(accepted),
      onMessage: (packet) => this.#deliver(packet),
      onDown: (end) => session === this.#session && this.#onDown(end), // not of one that was left for an earlier broker
    });
    this.#session = session;
  }

  /** Renew the subscriptions, and only then report the connection: a reply to what is published has to find its way. */
  async #onUp(accepted: Accepted): Promise<void> {
    const session = this.#session;
    this.#upSince = performance.now();
    this.#max = Math.min(accepted.maxPacketSize, LARGEST_PACKET);
    if (!session) return;
    const renewal = Promise.all(this.#subscriptions.all().map((each) => this.#ask(session, each)));
    this.#renewal = renewal;
    const answers = await renewal;
    if (this.#closed || session !== this.#session) return;
    this.#connected = true;
    this.reason = "";
    const standby = this.#watchEarlier();
    this.#report("connected", answers.find((answer) => answer.refusal)?.refusal?.message ?? standby);
    this.#settle.resolve();
    for (const answer of answers) answer.settle();
  }

  /** At a standby, go back as soon as an earlier address answers; return what there is to say of that. */
  #watchEarlier(): string {
    if (this.#place === 0) return "";
    const earlier = this.#urls.slice(0, this.#place);
    this.#lookout = new Lookout(earlier, this.#options, () => {
      void this.#session?.end();
      this.#onDown({ reason: "an earlier broker answers again", final: false, needsLogin: false });
    });
    return `at the standby ${this.#urls[this.#place]}; going back when ${earlier.join(" or ")} answers`;
  }

  /** Ask for a subscription; return what its first caller receives. After a loss the next connection asks again. */
  async #ask(session: Session, { filter, qos, identifier, settle }: Subscription): Promise<Answer> {
    try {
      await session.subscribe(filter, qos, identifier);
      return { settle };
    } catch (error) {
      if (!(error instanceof NotAuthorized)) return { settle: nothing };
      return { settle: () => settle(error), refusal: error };
    }
  }

  /** Subscribe on a connection that stands; the caller may publish as soon as it has the answer. */
  async #subscribeNow(session: Session, added: Subscription): Promise<void> {
    const answer = await this.#ask(session, added);
    await this.#renewal;
    answer.settle();
  }

  #onDown(end: End): void {
    if (this.#closed) return;
    this.#lookout?.close();
    const lasted = this.#upSince === undefined ? 0 : performance.now() - this.#upSince;
    const hasNext = this.#upSince === undefined && this.#place + 1 < this.#urls.length;
    const isFinal = end.final && this.#place === 0; // the first broker decides who may enter
    if (!isFinal) this.#place = hasNext ? this.#place + 1 : 0;
    this.#session = this.#upSince = undefined;
    this.#connected = false;
    this.reason = end.reason;
    if (isFinal) {
      this.#closed = true;
      const message = `the broker at ${this.#urls[0]} refused the connection: ${end.reason}`;
      const check = this.#options.username === undefined ? "it wants a user and a password" : "check user and password";
      const refusal = end.needsLogin ? new NotAuthorized(`${message}; ${check}`) : new LinkError(message);
      this.#settle.reject(refusal);
      for (const { settle } of this.#subscriptions.all()) settle(refusal);
      this.#report("refused", end.reason, end.needsLogin);
      return;
    }
    this.#retry = setTimeout(() => this.#connect(), hasNext ? 0 : this.#backoff.next(lasted, Math.random()));
    this.#report("lost", end.reason);
  }

  #deliver(packet: IPublishPacket): void {
    const message = messageOf(packet);
    for (const { onMessage } of this.#subscriptions.receivers(message.topic, subscriptionsOf(packet))) {
      shielded(() => onMessage(message));
    }
  }

  #report(status: LinkStatus["status"], reason: string, needsLogin = false): void {
    shielded(() => this.#onStatus({ status, reason, needsLogin }));
  }
}

function nothing(): void {}

function notConnected(reason: string): NotConnected {
  return new NotConnected(`not connected to the broker${reason && `: ${reason}`}; nothing was sent`);
}

/** Run the program's code: what it throws ends neither the connection nor the callbacks after it. */
function shielded(call: () => void): void {
  try {
    call();
  } catch (error) {
    console.error("mqinfer-client: the program's callback failed", error);
  }
}

/** Return the URL without a login, and that login. */
function withoutLogin(address: string): { url: string; user?: string; password?: string } {
  const shown = JSON.stringify(
    String(address)
      .replace(/\/\/[^/@]*@/, "//")
      .slice(0, 200),
  );
  let url: URL;
  try {
    url = new URL(address);
  } catch (error) {
    throw new ConfigError(`${shown} is not a URL; expected one such as wss://broker.example/mqtt`, { cause: error });
  }
  const known = IN_NODE ? ["mqtt:", "mqtts:", "ws:", "wss:"] : ["ws:", "wss:"];
  if (!known.includes(url.protocol) || url.hostname === "") {
    throw new ConfigError(`${shown} can't be connected to; expected ${known.join("//, ")}// and a host`);
  }
  const { username, password } = url;
  const path = url.protocol.startsWith("ws") ? `${url.pathname}${url.search}` : "";
  const port = url.port || DEFAULT_PORTS[url.protocol];
  return {
    url: `${url.protocol}//${url.hostname}:${port}${path}`,
    ...(username && { user: unescaped(username) }),
    ...(password && { password: unescaped(password) }),
  };
}

/** Undo escapes; a part of a URL with a `%` of its own stays as it is. */
function unescaped(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

function randomHex(bytes: number): string {
  return [...crypto.getRandomValues(new Uint8Array(bytes))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** Leave out what is undefined. */
function defined<T extends object>(fields: T): { [Field in keyof T]?: Exclude<T[Field], undefined> } {
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined)) as never;
}
