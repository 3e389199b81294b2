/**
 * One connection to a broker, from CONNECT until it is lost; never a second one.
 *
 * mqtt.js sends again after a reconnect what was not acknowledged, and keeps what is published meanwhile. Both are this
 * package's own business, with a deadline and a limit. So each connection gets a client of mqtt.js of its own, which does not
 * reconnect and ends with it.
 */

import mqtt, { type IClientOptions, type IConnackPacket, type IPublishPacket, type MqttClient } from "mqtt";
import { LinkError, type MqinferError, NotAuthorized, NotConnected } from "../errors.js";
import { Liveness } from "./liveness.js";
import { type Outgoing, propertiesOf } from "./packets.js";

/** Seconds; the broker ends a connection after 1.5 times as long without a packet. Browsers wake hidden pages once a minute. */
const KEEP_ALIVE_S = 60;
const CONNECT_TIMEOUT_MS = 10_000;
const TICK_MS = 1000;
/** How long an end waits for acknowledgements of what was published before. */
const END_MS = 1000;

/** Reason codes of CONNACK after which another attempt with the same options can't succeed. */
const FINAL = new Set([0x01, 0x02, 0x04, 0x05, 0x81, 0x82, 0x84, 0x85, 0x86, 0x87, 0x8a, 0x8c]);
/** Those of them that another login may change; 4 and 5 are those of MQTT 3.1.1. */
const LOGIN = new Set([0x04, 0x05, 0x86, 0x87, 0x8c]);

/** What the broker stated when it accepted the connection. */
export interface Accepted {
  /** Largest packet, in bytes. */
  readonly maxPacketSize: number;
  /** Publications that may be unacknowledged. */
  readonly receiveMaximum: number;
}

/** Why a connection ended. */
export interface End {
  readonly reason: string;
  /** Whether the broker refused it for good. */
  readonly final: boolean;
  readonly needsLogin: boolean;
}

export interface SessionEvents {
  onUp(accepted: Accepted): void;
  onMessage(packet: IPublishPacket): void;
  /** Once, unless `end` was called. */
  onDown(end: End): void;
}

export class Session {
  readonly #client: MqttClient;
  readonly #events: SessionEvents;
  readonly #unacknowledged = new Set<(error: MqinferError) => void>();
  readonly #timer: ReturnType<typeof setInterval>;
  #liveness = new Liveness(performance.now());
  #receiveMaximum = 0xffff;
  #identifies = true;
  #ended = false;
  #up = false;
  #code = 0;
  #reason = "";

  /**
   * Begin to connect.
   *
   * @param url Without a login.
   * @param options What differs between links.
   * @param events Receives what happens.
   */
  constructor(url: string, options: IClientOptions, events: SessionEvents) {
    this.#events = events;
    this.#client = mqtt.connect(url, { ...FIXED, ...options });
    this.#timer = setInterval(() => this.#tick(), TICK_MS);
    this.#noDelay();
    this.#listen();
  }

  /** Publish with QoS 1; resolves to the reason code of the PUBACK. */
  publish(message: Outgoing): Promise<number> {
    if (!this.#client.connected)
      return Promise.reject(new NotConnected("not connected to the broker; nothing was sent"));
    if (this.#unacknowledged.size >= this.#receiveMaximum) {
      const most = this.#receiveMaximum;
      return Promise.reject(
        new NotConnected(`${most} messages await the broker's acknowledgement, its Receive Maximum`),
      );
    }
    const payload = message.payload as Buffer; // so mqtt.js calls what is any array of bytes to it
    return this.#acknowledged((done) =>
      this.#client.publish(message.topic, payload, { qos: 1, properties: propertiesOf(message) }, (error) =>
        // mqtt.js hands over what was published, not the PUBACK, and no error for a code below 0x80.
        done(error && this.#code < 0x80 ? error : undefined, this.#code),
      ),
    );
  }

  /** Subscribe; resolves once the broker has answered, and rejects where it refuses. */
  async subscribe(filter: string, qos: 0 | 1, identifier: number): Promise<void> {
    const options = this.#identifies ? { qos, properties: { subscriptionIdentifier: identifier } } : { qos };
    const code = await this.#acknowledged((done) =>
      this.#client.subscribe(filter, options, (error, _granted, packet) => {
        const code = packet?.granted[0];
        done(typeof code === "number" ? undefined : error, typeof code === "number" ? code : 0);
      }),
    );
    if (code < 0x80) return;
    throw new NotAuthorized(`the broker refused the subscription ${filter} (reason code 0x${code.toString(16)})`);
  }

  async unsubscribe(filter: string): Promise<void> {
    await this.#acknowledged((done) => this.#client.unsubscribe(filter, (error) => done(error, 0)));
  }

  /** Disconnect, after what was published has been acknowledged or a second; reports nothing more. */
  async end(): Promise<void> {
    if (this.#ended) return;
    const closed = this.#client.connected
      ? new Promise<void>((resolve) => this.#client.end(false, () => resolve()))
      : Promise.resolve();
    let timer: ReturnType<typeof setTimeout> | undefined;
    await Promise.race([closed, new Promise<void>((resolve) => (timer = setTimeout(resolve, END_MS)))]);
    clearTimeout(timer);
    this.#stop("the connection was closed");
  }

  /** Run a command that the broker answers; its callback may come never, so the end of the connection ends it too. */
  #acknowledged(command: (done: (error: unknown, code: number) => void) => void): Promise<number> {
    return new Promise((resolve, reject) => {
      this.#unacknowledged.add(reject);
      this.#liveness.sent(performance.now(), true);
      command((error, code) => {
        if (!this.#unacknowledged.delete(reject)) return;
        this.#liveness.answered(performance.now(), this.#unacknowledged.size);
        if (error) reject(new LinkError(`the broker did not take a packet: ${text(error)}`));
        else resolve(code);
      });
    });
  }

  #listen(): void {
    const client = this.#client;
    client.stream.on("data", () => this.#liveness.received(performance.now()));
    client.on("connect", (connack) => this.#onConnect(connack));
    client.on("packetsend", () => this.#liveness.sent(performance.now(), false));
    client.on("packetreceive", (packet) => {
      if (packet.cmd === "puback") this.#code = packet.reasonCode ?? 0;
      else if (packet.cmd === "pingresp") this.#liveness.answered(performance.now(), this.#unacknowledged.size);
    });
    client.on("message", (_topic, _payload, packet) => this.#events.onMessage(packet));
    client.on("disconnect", (packet) => {
      this.#reason = `the broker closed the connection (reason code 0x${(packet.reasonCode ?? 0).toString(16)})`;
    });
    client.on("error", (error) => this.#onError(error));
    client.on("close", () => this.#onClose());
  }

  #onConnect(connack: IConnackPacket): void {
    const stated = connack.properties ?? {};
    this.#receiveMaximum = stated.receiveMaximum ?? 0xffff;
    this.#identifies = stated.subscriptionIdentifiersAvailable !== false;
    const keepAlive = stated.serverKeepAlive ? stated.serverKeepAlive * 1000 : KEEP_ALIVE_S * 1000;
    this.#liveness = new Liveness(performance.now(), keepAlive);
    this.#up = true;
    this.#events.onUp({
      maxPacketSize: stated.maximumPacketSize ?? Number.POSITIVE_INFINITY,
      receiveMaximum: this.#receiveMaximum,
    });
  }

  #onError(error: Error & { code?: unknown }): void {
    if (this.#ended) return;
    this.#reason ||= text(error);
    if (this.#up || typeof error.code !== "number") return;
    const { code } = error;
    this.#down({ reason: this.#reason, final: FINAL.has(code), needsLogin: LOGIN.has(code) });
  }

  #onClose(): void {
    if (!this.#ended)
      this.#down({ reason: this.#reason || "the connection was closed", final: false, needsLogin: false });
  }

  #down(end: End): void {
    this.#stop(end.reason);
    this.#events.onDown(end);
  }

  /** End everything at once; a second call does nothing. */
  #stop(reason: string): void {
    if (this.#ended) return;
    this.#ended = true;
    clearInterval(this.#timer);
    for (const reject of this.#unacknowledged) reject(new NotConnected(`no acknowledgement: ${reason}`));
    this.#unacknowledged.clear();
    this.#client.removeAllListeners("message");
    this.#client.removeAllListeners("connect");
    this.#client.end(true);
    this.#client.stream.destroy();
  }

  #tick(): void {
    if (!this.#up || this.#ended) return;
    const now = performance.now();
    const verdict = this.#liveness.tick(now, this.#unsent());
    if (verdict === "ping") {
      this.#liveness.sent(now, true);
      this.#client.sendPing();
    } else if (verdict === "dead") {
      this.#down({ reason: "the broker does not answer", final: false, needsLogin: false });
    }
  }

  /** Return how many bytes wait in this process: those of the stream, and those of a browser's WebSocket. */
  #unsent(): number {
    const stream = this.#client.stream as { writableLength?: number; socket?: { bufferedAmount?: number } };
    return (stream.writableLength ?? 0) + (stream.socket?.bufferedAmount ?? 0);
  }

  /** Send each packet at once: else an acknowledgement waits for the next one. WebSockets do so by themselves. */
  #noDelay(): void {
    const stream = this.#client.stream as { setNoDelay?: (on: boolean) => void };
    stream.setNoDelay?.(true);
  }
}

/** What all connections have in common. */
const FIXED: IClientOptions = {
  protocolVersion: 5,
  clean: true,
  keepalive: KEEP_ALIVE_S,
  connectTimeout: CONNECT_TIMEOUT_MS,
  reconnectPeriod: 0,
  resubscribe: false,
  queueQoSZero: false,
  /** A table of 65,536 buffers is not worth its memory in a page. */
  writeCache: false,
  /** Timers of mqtt.js never fire: `Liveness` decides. Its own ones need a worker that a page's rules may forbid. */
  timerVariant: { set: () => 0, clear: () => undefined },
  /** A browser's socket that has half a megabyte to send is asked again after this many milliseconds; 1000 without it. */
  browserBufferTimeout: 10,
  log: () => undefined,
};

function text(error: unknown): string {
  const found = error instanceof Error ? error.message || error.name : String(error);
  const code = (error as { code?: unknown } | undefined)?.code;
  return found || (typeof code === "string" ? code : "it failed without a reason");
}
