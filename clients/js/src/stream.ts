/** Live frames to one model: each one that is put in has exactly one outcome, and they come out in the order of putting. */

import { noOutcomes, outcomeOf } from "./dispatcher.js";
import { Cancelled, ConfigError, Expired, MqinferError, Rejected, Superseded } from "./errors.js";
import { checkOptions } from "./fields/nearest.js";
import { type InferOptions, type Inputs, type Result, STREAM_OPTIONS } from "./requests/messages.js";
import { type Policy, StreamWindow } from "./requests/window.js";
import type { Capture, Outcome, Request } from "./types.js";

/** Outcomes of a `latest` stream that may wait for their reader; most of them are superseded frames, which are small. */
const MOST_UNREAD = 1_024;
const WINDOW = 8;

/** Why a frame is superseded. */
export const NEWER_FRAME = "a newer frame of the stream came first";

/** As for `infer`; `timeoutMs` is that of each frame, from when it is sent. */
export interface StreamOptions extends Omit<InferOptions, "signal"> {
  /**
   * `latest` (default): a frame that comes while the window is full takes the place of the one queued before, which ends as
   * `superseded`. `all`: `put` waits for room.
   */
  readonly policy?: Policy;
  /** Upper bound of the frames in flight (8); how many there are follows from the delay of the replies. */
  readonly window?: number;
}

/** What became of one frame: `result` where the outcome is `ok`, else `error`. */
export interface FrameResult {
  readonly outcome: Outcome;
  readonly capture: Capture;
  readonly result?: Result;
  readonly error?: MqinferError;
}

/** What a stream needs of its client. */
export interface Sender {
  /** Why nothing is accepted any more; undefined while all is well. */
  failure(): MqinferError | undefined;
  request(inputs: Inputs, options: InferOptions): Request;
  /** Send a request; its outcome comes once. Throws MqinferError where it is not accepted. */
  send(request: Request, timeoutMs: number, settle: (found: Result | MqinferError) => void): void;
  cancel(id: string, why: Cancelled): void;
  /** Supersede the first of these requests, oldest first, that no worker works on. */
  supersede(ids: readonly string[]): void;
}

/** A frame that was put in and not yet read; its request, with the inputs, is there until it has its outcome. */
interface Frame {
  readonly capture: Capture;
  request: Request | undefined;
  isSent: boolean;
  result: FrameResult | undefined;
}

/**
 * Frames in, `put`, and results out, `for await (const { outcome, capture, result } of stream)`. The loop ends once the stream is
 * closed and all is read; leaving it cancels what is pending.
 */
export class Stream implements AsyncIterable<FrameResult> {
  readonly #sender: Sender;
  readonly #options: InferOptions;
  readonly #timeoutMs: number;
  readonly #waits: boolean;
  readonly #most: number;
  readonly #window: StreamWindow<Frame>;
  readonly #onEnd: (stream: Stream) => void;
  readonly #outcomes = noOutcomes();
  readonly #frames: Frame[] = [];
  readonly #callers = new Set<() => void>();
  #number = 0;
  #isClosed = false;
  #isCancelled = false;

  /**
   * @internal `Client.stream` makes one.
   * @throws ConfigError: The policy is unknown, a number is out of range, or there is no such option.
   */
  constructor(sender: Sender, options: StreamOptions, timeoutMs: number, onEnd: (stream: Stream) => void) {
    checkOptions(options, STREAM_OPTIONS);
    const { policy = "latest", window = WINDOW, timeoutMs: _, ...ofEach } = options;
    if (policy !== "latest" && policy !== "all")
      throw new ConfigError(`policy ${JSON.stringify(policy)} does not exist; expected "latest" or "all"`);
    if (!(window >= 1)) throw new ConfigError(`a window of ${window} frames is not possible; expected 1 or more`);
    this.#sender = sender;
    this.#options = ofEach;
    this.#timeoutMs = timeoutMs;
    this.#waits = policy === "all";
    this.#most = this.#waits ? 2 * window : MOST_UNREAD;
    this.#window = new StreamWindow(policy, window, ofEach.priority ?? 0);
    this.#onEnd = onEnd;
    sender.request({}, ofEach); // so that a wrong option is an error here and not with each frame
  }

  /**
   * Send a frame, or queue it. With `all` this waits while there is no room; with `latest` it never waits.
   *
   * @param inputs As for `infer`; leave the arrays unchanged until the result is there.
   * @param capture Where the frame came from; its result repeats it. Without a sequence number it gets its number in the stream.
   * @throws MqinferError: The request can't be made, or the stream is closed (`Cancelled`).
   * @throws Expired: With `all`, there was no room within the timeout.
   * @throws Rejected: With `latest`, nobody reads: 1,024 outcomes are unread.
   */
  async put(inputs: Inputs, capture: Capture = {}): Promise<void> {
    const request = this.#sender.request(inputs, { ...this.#options, ...capture });
    const hasRoom = () => this.#isClosed || this.#frames.length < this.#most;
    const end = performance.now() + this.#timeoutMs;
    while (this.#waits && !hasRoom()) await this.#until(hasRoom, end); // another put may have been faster
    if (this.#isClosed) throw this.#sender.failure() ?? new Cancelled("the stream is closed; open another one");
    if (!hasRoom()) throw new Rejected(`${this.#most} outcomes are unread; iterate over the stream meanwhile`);
    this.#put({ ...request, capture: { sequence: this.#number, ...request.capture } });
  }

  /** Return how many frames ended with each outcome. */
  outcomes(): Readonly<Record<Outcome, number>> {
    return { ...this.#outcomes };
  }

  /** Accept no more frames; the loop ends after the last one's result. */
  close(): void {
    if (this.#isClosed) return;
    this.#isClosed = true;
    this.#onEnd(this);
    this.#notify();
  }

  [Symbol.asyncIterator](): AsyncIterator<FrameResult> {
    return {
      next: async () => {
        const isReady = () => (this.#frames[0] ? this.#frames[0].result !== undefined : this.#isClosed);
        while (!isReady()) await this.#until(isReady);
        return this.#read();
      },
      return: async () => {
        this.#isCancelled = true;
        this.close();
        for (const id of this.#unanswered()) this.#sender.cancel(id, new Cancelled("the stream was left"));
        return { done: true, value: undefined };
      },
    };
  }

  #put(request: Request): void {
    const frame: Frame = { request, capture: request.capture ?? {}, isSent: false, result: undefined };
    this.#number += 1;
    this.#frames.push(frame);
    const lost = this.#window.put(frame);
    if (lost) this.#end(lost, new Superseded(NEWER_FRAME));
    this.#send(this.#window.take());
    if (this.#window.wantsRoom) this.#sender.supersede(this.#unanswered());
  }

  #read(): IteratorResult<FrameResult> {
    const frame = this.#frames.shift();
    if (frame?.result === undefined) {
      const failure = this.#sender.failure();
      if (failure && !(failure instanceof Cancelled)) throw failure;
      return { done: true, value: undefined };
    }
    if (frame.result.outcome === "ok") this.#window.leave();
    this.#send(this.#window.take());
    this.#notify();
    return { done: false, value: frame.result };
  }

  #send(frames: Frame[]): void {
    for (let frame = frames.shift(); frame !== undefined; frame = frames.shift()) {
      const each = frame;
      try {
        if (this.#isCancelled) throw new Cancelled("the stream was left before the frame was sent");
        each.isSent = true;
        this.#sender.send(each.request as Request, this.#timeoutMs, (found) => this.#send(this.#conclude(each, found)));
      } catch (error) {
        if (!(error instanceof MqinferError)) throw error;
        frames.push(...this.#conclude(each, error));
      }
    }
  }

  /** Set the outcome of a frame in flight, and return the frames that enter the window in its place. */
  #conclude(frame: Frame, found: Result | MqinferError): Frame[] {
    const outcome = found instanceof MqinferError ? outcomeOf(found) : "ok";
    const timings = found instanceof MqinferError ? undefined : found.timings;
    this.#window.finish(outcome, timings, performance.now());
    this.#end(frame, found);
    return this.#window.take();
  }

  #end(frame: Frame, found: Result | MqinferError): void {
    const isError = found instanceof MqinferError;
    const outcome = isError ? outcomeOf(found) : "ok";
    frame.result = { outcome, capture: frame.capture, ...(isError ? { error: found } : { result: found }) };
    frame.request = undefined;
    this.#outcomes[outcome] += 1;
    this.#notify();
  }

  #unanswered(): string[] {
    const sent = this.#frames.filter((frame) => frame.isSent && frame.request !== undefined);
    return sent.map((frame) => (frame.request as Request).id);
  }

  /** Wait until something is so, and throw Expired where a time comes before. */
  async #until(isSo: () => boolean, end = Number.POSITIVE_INFINITY): Promise<void> {
    while (!isSo()) {
      const left = end - performance.now();
      if (left <= 0)
        throw new Expired(`the stream had no room within ${this.#timeoutMs / 1_000} s; iterate over it meanwhile`);
      await new Promise<void>((resolve) => {
        const timer = left < Number.POSITIVE_INFINITY ? setTimeout(resolve, left) : undefined;
        this.#callers.add(() => {
          clearTimeout(timer);
          resolve();
        });
      });
    }
  }

  #notify(): void {
    const callers = [...this.#callers];
    this.#callers.clear();
    for (const call of callers) call();
  }
}
