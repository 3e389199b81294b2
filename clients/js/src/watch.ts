/** The results of others: what workers reply to any client of a model, in a bounded buffer. */

import { CHECKSUM, checksum } from "./checksum.js";
import { decodeReply } from "./envelope.js";
import { ConfigError, Corrupted, MqinferError } from "./errors.js";
import { DEFAULT_LIMITS } from "./limits.js";
import type { Link, Message } from "./link.js";
import type { Topics } from "./topics.js";
import type { Limits, Reply } from "./types.js";

const BUFFER = 256;
/** Payloads that wait for the program, in bytes; the newest reply is kept however large it is. */
const BUFFER_BYTES = 64 << 20;

export interface WatchOptions {
  /** Replies that wait for the program (256), of 64 MiB at most; with one more the oldest is dropped. */
  readonly buffer?: number;
  readonly limits?: Limits;
}

/** A reply to some client. Its tensors are encoded: `decodeTensor` expands those that the program wants. */
export interface Watched {
  /** Who asked, by the topic. */
  readonly client: string;
  /** The request's id, by the topic. */
  readonly request: string;
  readonly reply: Reply;
}

export interface WatchCounters {
  readonly received: number;
  /** Dropped since the buffer was full. */
  readonly dropped: number;
  /** Payloads that could not be read, were damaged on the way, or are not what their topic says. */
  readonly malformed: number;
  /** Replies that the broker had kept: they are of an earlier time. */
  readonly retained: number;
}

/** Results as they come: `for await (const { client, reply } of watch)`. The loop ends with `close`. */
export interface Watch extends AsyncIterable<Watched> {
  counters(): WatchCounters;
  close(): Promise<void>;
}

/** All watches of one link: those of one model share a subscription. */
export class Watches {
  readonly #link: Link;
  readonly #topics: Topics;
  readonly #byFilter = new Map<string, Set<Buffered>>();

  constructor(link: Link, topics: Topics) {
    this.#link = link;
    this.#topics = topics;
  }

  /** Begin to receive the results of a model. */
  async open(model: string, { buffer = BUFFER, limits = DEFAULT_LIMITS }: WatchOptions): Promise<Watch> {
    if (!(buffer >= 1)) throw new ConfigError(`a buffer of ${buffer} results is not possible; expected 1 or more`);
    const filter = this.#topics.resultsOfModel(model);
    const watch: Buffered = new Buffered(buffer, limits, this.#topics, () => this.#close(filter, watch));
    const others = this.#byFilter.get(filter);
    const all = others ?? new Set();
    this.#byFilter.set(filter, all.add(watch));
    if (others !== undefined) return watch;
    try {
      await this.#link.subscribe(filter, 0, (message) => {
        for (const each of all) each.receive(message);
      });
    } catch (error) {
      this.#byFilter.delete(filter);
      for (const each of all) await each.close();
      throw error;
    }
    return watch;
  }

  async closeAll(): Promise<void> {
    for (const watches of [...this.#byFilter.values()]) for (const each of [...watches]) await each.close();
  }

  async #close(filter: string, watch: Buffered): Promise<void> {
    const all = this.#byFilter.get(filter);
    if (!all?.delete(watch) || all.size > 0) return;
    this.#byFilter.delete(filter);
    await this.#link.unsubscribe(filter);
  }
}

class Buffered implements Watch {
  readonly #waiting: Watched[] = [];
  readonly #size: number;
  readonly #limits: Limits;
  readonly #topics: Topics;
  readonly #unsubscribe: () => Promise<void>;
  #callers: ((next: IteratorResult<Watched>) => void)[] = [];
  #bytes = 0;
  #closed = false;
  #received = 0;
  #dropped = 0;
  #malformed = 0;
  #retained = 0;

  constructor(size: number, limits: Limits, topics: Topics, unsubscribe: () => Promise<void>) {
    this.#size = size;
    this.#limits = limits;
    this.#topics = topics;
    this.#unsubscribe = unsubscribe;
  }

  counters(): WatchCounters {
    return { received: this.#received, dropped: this.#dropped, malformed: this.#malformed, retained: this.#retained };
  }

  receive(message: Message): void {
    if (this.#closed) return;
    this.#received += 1;
    if (message.retain) {
      this.#retained += 1;
      return;
    }
    try {
      this.#put(this.#read(message));
    } catch (error) {
      if (!(error instanceof MqinferError)) throw error;
      this.#malformed += 1;
    }
  }

  async close(): Promise<void> {
    if (this.#closed) return;
    this.#closed = true;
    this.#waiting.length = 0;
    for (const call of this.#callers) call({ done: true, value: undefined });
    this.#callers = [];
    await this.#unsubscribe();
  }

  [Symbol.asyncIterator](): AsyncIterator<Watched> {
    return {
      next: () => this.#next(),
      return: async () => {
        await this.close();
        return { done: true, value: undefined };
      },
    };
  }

  #next(): Promise<IteratorResult<Watched>> {
    if (this.#closed) return Promise.resolve({ done: true, value: undefined });
    const value = this.#shift();
    if (value !== undefined) return Promise.resolve({ done: false, value });
    return new Promise((resolve) => this.#callers.push(resolve));
  }

  #put(watched: Watched): void {
    const caller = this.#callers.shift();
    if (caller !== undefined) {
      caller({ done: false, value: watched });
      return;
    }
    this.#waiting.push(watched);
    this.#bytes += sizeOf(watched);
    while (this.#waiting.length > this.#size || (this.#bytes > BUFFER_BYTES && this.#waiting.length > 1)) {
      this.#shift();
      this.#dropped += 1;
    }
  }

  #shift(): Watched | undefined {
    const first = this.#waiting.shift();
    if (first !== undefined) this.#bytes -= sizeOf(first);
    return first;
  }

  #read(message: Message): Watched {
    const stated = message.userProperties[CHECKSUM];
    if (stated !== undefined && stated !== checksum(message.payload)) {
      throw new Corrupted("the payload differs from its checksum");
    }
    const address = this.#topics.parse(message.topic);
    const reply = decodeReply(message.payload, this.#limits);
    if (address.kind !== "result" || address.model !== reply.modelName || address.request !== reply.id) {
      throw new MqinferError("the reply is not what its topic says");
    }
    return { client: address.client, request: address.request, reply };
  }
}

function sizeOf({ reply }: Watched): number {
  return reply.outputs.reduce((bytes, tensor) => bytes + tensor.bytes.length, 0);
}
