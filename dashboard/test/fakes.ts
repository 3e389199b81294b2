/** Stand-ins for the browser: a clock that tests move, decoders that mark what they decode, a link without a broker. */

import type { EncodedTensor, Link, LinkOptions, Message, Timings } from "mqinfer-client";
import type { Answer, Preview } from "../src/site/live/messages.js";
import type { Clock, Decoder, Platform } from "../src/site/platform.js";

export class FakeClock implements Clock {
  #nowMs = 1_000_000;
  #timers = new Set<{ atMs: number; readonly everyMs: number | null; readonly run: () => void }>();

  nowMs(): number {
    return this.#nowMs;
  }

  epochMs(): number {
    return 1_800_000_000_000 + this.#nowMs;
  }

  after(delayMs: number, run: () => void): () => void {
    return this.#add(delayMs, null, run);
  }

  every(intervalMs: number, run: () => void): () => void {
    return this.#add(intervalMs, intervalMs, run);
  }

  /** Timers that are not cancelled. */
  get timers(): number {
    return this.#timers.size;
  }

  /** Move on, and run what is due at its time. */
  advance(ms: number): void {
    const endMs = this.#nowMs + ms;
    for (;;) {
      const due = [...this.#timers].filter((each) => each.atMs <= endMs).sort((a, b) => a.atMs - b.atMs)[0];
      if (!due) break;
      this.#nowMs = Math.max(this.#nowMs, due.atMs);
      if (due.everyMs === null) this.#timers.delete(due);
      else due.atMs = this.#nowMs + due.everyMs; // browsers do not catch up
      due.run();
    }
    this.#nowMs = endMs;
  }

  /** Move on without running timers: the page was busy. */
  block(ms: number): void {
    this.#nowMs += ms;
  }

  #add(delayMs: number, everyMs: number | null, run: () => void): () => void {
    const timer = { atMs: this.#nowMs + delayMs, everyMs, run };
    this.#timers.add(timer);
    return () => this.#timers.delete(timer);
  }
}

/** A picture that knows which frame it is of, and whether it was closed. */
export class FakeBitmap {
  static open = 0;
  readonly width = 4;
  readonly height = 2;
  readonly mark: string;
  isClosed = false;

  constructor(mark: string) {
    this.mark = mark;
    FakeBitmap.open += 1;
  }

  close(): void {
    if (this.isClosed) throw new Error("a picture was closed twice");
    this.isClosed = true;
    FakeBitmap.open -= 1;
  }
}

export interface FakePlatform extends Platform {
  readonly clock: FakeClock;
  hidden: boolean;
  /** Calls of the decoders so far. */
  decoded: number;
  /** Options of each link that was opened. */
  readonly links: FakeLink[];
  /** What `openLink` rejects with. */
  refusal: Error | null;
  /** Part of the filters that the broker refuses. */
  unreadable: string | null;
}

/** Return a platform whose pictures and masks carry the text of their bytes as their mark. */
export function fakePlatform(decoder: Partial<Decoder> = {}): FakePlatform {
  const platform: FakePlatform = {
    clock: new FakeClock(),
    hidden: false,
    decoded: 0,
    links: [],
    refusal: null,
    unreadable: null,
    decoder: {
      decodeTensor(tensor, limits) {
        platform.decoded += 1;
        if (decoder.decodeTensor) return decoder.decodeTensor(tensor, limits);
        return { name: tensor.name, datatype: tensor.datatype, shape: tensor.shape, data: tensor.bytes };
      },
      async decodePicture(tensor, limits) {
        platform.decoded += 1;
        if (decoder.decodePicture) return decoder.decodePicture(tensor, limits);
        await Promise.resolve();
        return new FakeBitmap(textOf(tensor.bytes)) as unknown as ImageBitmap;
      },
    },
    isHidden: () => platform.hidden,
    resolve: (address) => `ws://page/${address}`,
    async openLink(options) {
      if (platform.refusal) throw platform.refusal;
      const link = new FakeLink(options, platform.unreadable);
      platform.links.push(link);
      options.onStatus?.({ status: "connected", reason: "", needsLogin: false });
      return link;
    },
  };
  return platform;
}

export class FakeLink implements Link {
  readonly maxPacketSize = 1 << 20;
  readonly filters: string[] = [];
  readonly options: LinkOptions;
  isClosed = false;
  #onMessage: ((message: Message) => void) | null = null;

  readonly #unreadable: string | null;

  constructor(options: LinkOptions, unreadable: string | null) {
    this.options = options;
    this.#unreadable = unreadable;
  }

  async subscribe(filter: string, _qos: 0 | 1, onMessage: (message: Message) => void): Promise<void> {
    if (this.#unreadable && filter.includes(this.#unreadable)) throw new Error("refused");
    this.filters.push(filter);
    this.#onMessage = onMessage;
  }

  async unsubscribe(): Promise<void> {}

  async publish(): Promise<number> {
    throw new Error("a dashboard publishes nothing");
  }

  async close(): Promise<void> {
    this.isClosed = true;
  }

  /** Bring a message to the page. */
  deliver(topic: string, payload: Uint8Array | string | object, more: Partial<Message> = {}): void {
    const bytes = payload instanceof Uint8Array ? payload : new TextEncoder().encode(textIn(payload));
    this.#onMessage?.({ topic, payload: bytes, retain: false, userProperties: {}, ...more });
  }
}

function textIn(payload: string | object): string {
  return typeof payload === "string" ? payload : JSON.stringify(payload);
}

/** Run everything that waits for promises alone. */
export async function settle(): Promise<void> {
  await new Promise((resolve) => setImmediate(resolve));
}

export function textOf(bytes: Uint8Array): string {
  return new TextDecoder().decode(bytes);
}

export const NO_TIMINGS: Timings = {
  clientQueue: 0,
  transmission: 0,
  serverQueue: 0,
  decode: 0,
  preprocess: 0,
  inference: 0,
  postprocess: 0,
  encode: 0,
};

export function tensor(name: string, bytes: Uint8Array, more: Partial<EncodedTensor> = {}): EncodedTensor {
  return { name, datatype: "UINT8", shape: [2, bytes.length / 2], encoding: "raw", parameters: {}, bytes, ...more };
}

/** Return a result of a frame whose mask carries a mark of eight characters. */
export function answer(sequence: number | null, mark: string, receivedMs: number, more: Partial<Answer> = {}): Answer {
  return {
    sequence,
    captureTimeNs: null,
    bytes: 1000,
    receivedMs,
    reply: {
      outcome: "ok",
      modelVersion: "1",
      modelHash: "sha256:0",
      worker: "w-1",
      stage: "worker",
      timings: NO_TIMINGS,
    },
    error: null,
    fallback: "",
    outputs: [tensor("mask", new TextEncoder().encode(mark))],
    ...more,
  };
}

/** Return a preview of a frame whose picture carries a mark. */
export function preview(sequence: number, mark: string, receivedMs: number, more: Partial<Preview> = {}): Preview {
  return {
    sequence,
    captureTimeNs: null,
    bytes: 500,
    receivedMs,
    picture: tensor("preview", new TextEncoder().encode(mark), { shape: [2, 4, 3], encoding: "jpeg" }),
    size: [8, 4],
    ...more,
  };
}

/** Return numbers from 0 to 1 that are the same in each run (mulberry32). */
export function randomNumbers(seed: number): () => number {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4_294_967_296;
  };
}
