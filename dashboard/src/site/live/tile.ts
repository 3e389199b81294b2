/** One tile: pairs a stream's results with its previews, and decodes the newest pair while it is visible. */

import { type Signal, signal } from "@preact/signals";
import { cut, type Drops } from "../bounds.js";
import { Rhythm, SlidingRate } from "../measuring/rates.js";
import type { Platform } from "../platform.js";
import type { ClassInfo, ShownFrame, Tile } from "../types.js";
import { decodeFrame } from "./frame.js";
import { type Answer, type Preview, type StreamName, streamKey } from "./messages.js";
import { Pairing } from "./pairing.js";
import { SequenceTracker } from "./sequence.js";
import { Tracks } from "./tracks.js";
import type { Turns } from "./turns.js";

/** Results wait for their previews, unless for so long, or so many intervals, none has come or belonged to a result. */
const PREVIEW_PATIENCE_MS = 3000;
const PREVIEW_INTERVALS = 2.5;
const STALE_MS = 2000;
const STALE_INTERVALS = 5;
/** Frames that are kept for steps while the page is paused. */
const MOST_HELD = 64;

/** What all tiles share. */
export interface TileContext {
  readonly platform: Platform;
  readonly turns: Turns;
  readonly drops: Drops;
  /** Bytes of messages that one tile may hold, and pixels of its mask: fewer, the more tiles there are. */
  heldBytes(): number;
  maskPixels(): number;
  /** Size of a model's picture by its card. */
  pictureSize(model: string): readonly [number, number] | null;
  /** Whether objects are followed over the frames. */
  hasIds(): boolean;
}

interface Entry {
  readonly answer: Answer;
  readonly preview: Preview | null;
  readonly run: number;
}

export class LiveTile implements Tile {
  readonly key: string;
  readonly client: string;
  readonly source: string;
  readonly model: string;
  readonly frame: Signal<ShownFrame | null> = signal(null);
  readonly isStale = signal(false);
  readonly cause = signal("");
  readonly rate = signal(0);
  readonly gaps = signal(0);
  readonly classes: Signal<readonly ClassInfo[]>;
  readonly #context: TileContext;
  readonly #pairing = new Pairing<Preview, Answer>();
  readonly #sequence = new SequenceTracker();
  readonly #rhythm = new Rhythm();
  readonly #previews = new Rhythm();
  readonly #results = new SlidingRate();
  readonly #bornMs: number;
  readonly #tracks = new Tracks();
  readonly #turn = () => this.#decodeNext();
  #next: Entry | null = null;
  /** While paused: the frames that came, in their order. */
  #held: Entry[] = [];
  /** The newest frame that was offered. */
  #newest: { run: number; sequence: number } | null = null;
  /** When a pair was complete, or the previews began. */
  #lastPairMs = Number.NEGATIVE_INFINITY;
  #isVisible = false;
  #isPaused = false;
  #isStepping = false;
  #isDecoding = false;
  #isGone = false;
  #isClosed = false;

  constructor(name: StreamName, classes: readonly ClassInfo[], context: TileContext) {
    this.key = streamKey(name);
    this.client = name.client;
    this.source = cut(name.source);
    this.model = name.model;
    this.classes = signal(classes);
    this.#context = context;
    this.#bornMs = context.platform.clock.nowMs();
  }

  /** When its last result came; before the first, when it was made. */
  get lastMs(): number {
    return Number.isNaN(this.#rhythm.lastMs) ? this.#bornMs : this.#rhythm.lastMs;
  }

  addAnswer(answer: Answer): void {
    const nowMs = answer.receivedMs;
    this.#results.add(nowMs);
    this.#rhythm.add(nowMs);
    if (answer.sequence === null) {
      this.#offer({ answer, preview: null, run: this.#sequence.run });
      return;
    }
    const { run } = this.#sequence;
    this.#sequence.add(answer.sequence, nowMs);
    if (run !== this.#sequence.run) this.#pairing.clear();
    if (!this.#waitsForPreviews(nowMs)) {
      this.#offer({ answer, preview: null, run: this.#sequence.run });
      return;
    }
    const pair = this.#pairing.addResult(answer, this.#context.heldBytes());
    if (pair) this.#offerPair(pair.result, pair.preview, nowMs);
  }

  addPreview(preview: Preview): void {
    const nowMs = preview.receivedMs;
    if (!this.#isRecent(this.#previews.lastMs, nowMs)) this.#lastPairMs = nowMs;
    this.#previews.add(nowMs);
    const pair = this.#pairing.addPreview(preview, this.#context.heldBytes());
    if (pair) this.#offerPair(pair.result, pair.preview, nowMs);
  }

  /** Results came that were not read, so many of them its own: what is missing now is no gap. */
  skipped(nowMs: number, count: number): void {
    this.#results.add(nowMs, count);
    this.#sequence.forget();
  }

  /** Its client is there, in its first process or in a new one, or it is gone. */
  clientChanged(change: "there" | "restarted" | "gone"): void {
    this.#isGone = change === "gone";
    if (change !== "restarted") return;
    this.#sequence.restart();
    this.#pairing.clear();
  }

  setVisible(isVisible: boolean): void {
    this.#isVisible = isVisible;
    this.#ask();
  }

  setPaused(isPaused: boolean): void {
    this.#next = this.#held.pop() ?? this.#next;
    this.#held = [];
    this.#isPaused = isPaused;
    this.#isStepping = false;
    if (isPaused && this.#next) this.#hold(this.#next);
    if (isPaused) this.#next = null;
    this.#ask();
  }

  /** Whether it sets how far a step goes. */
  get isVisible(): boolean {
    return this.#isVisible;
  }

  /** While paused: when the frame was captured that the next step shows at the earliest; null where that is not known. */
  get nextStamp(): bigint | null {
    return this.#held[0]?.answer.captureTimeNs ?? null;
  }

  /** While paused: show a later frame, the one captured closest to a time; null for the next one. */
  step(stamp: bigint | null): void {
    if (!this.#isPaused) return;
    const place = stamp === null ? 0 : closest(this.#held, stamp);
    this.#next = this.#held.splice(0, place + 1).at(-1) ?? this.#next;
    this.#isStepping = true;
    this.#ask();
  }

  /** Update what changes with time; `trouble`: why its stream gets no results, if anything is known. */
  tick(nowMs: number, trouble: string): void {
    if (this.#isPaused) return;
    this.cause.value = trouble || (this.#isGone ? "its client is gone" : "");
    const patienceMs = Math.max(STALE_MS, STALE_INTERVALS * this.#rhythm.intervalMs);
    this.isStale.value = this.#isGone || nowMs - this.lastMs > patienceMs;
    this.rate.value = Math.round(this.#results.read(nowMs) * 10) / 10;
    this.gaps.value = this.#sequence.gaps;
    this.#ask();
  }

  close(): void {
    this.#isClosed = true;
    this.#next = null;
    this.#held = [];
    this.#pairing.clear();
    this.#show(null);
  }

  #waitsForPreviews(nowMs: number): boolean {
    return this.#isRecent(this.#previews.lastMs, nowMs) && this.#isRecent(this.#lastPairMs, nowMs);
  }

  #isRecent(timeMs: number, nowMs: number): boolean {
    return nowMs - timeMs <= Math.max(PREVIEW_PATIENCE_MS, PREVIEW_INTERVALS * this.#previews.intervalMs);
  }

  #offerPair(answer: Answer, preview: Preview, nowMs: number): void {
    this.#lastPairMs = nowMs;
    this.#offer({ answer, preview, run: this.#sequence.run });
  }

  /** Take a frame as the next one to show, unless a newer one is there. */
  #offer(entry: Entry): void {
    const sequence = entry.answer.sequence ?? Number.POSITIVE_INFINITY;
    const newest = this.#newest;
    const isOld = newest !== null && entry.run === newest.run && sequence <= newest.sequence;
    if (entry.answer.sequence !== null && isOld) {
      this.#context.drops.add("newer frame");
      return;
    }
    if (this.#next && this.#canDecode()) this.#context.drops.add("newer frame");
    this.#newest = entry.answer.sequence === null ? newest : { run: entry.run, sequence };
    const isAwaited = !this.#isPaused || (this.#isStepping && !this.#next && !this.#isDecoding);
    if (isAwaited) this.#next = entry;
    else this.#hold(entry);
    this.#ask();
  }

  /** Keep a frame for a step: the first ones after the pause, to which a person steps, and the newest one. */
  #hold(entry: Entry): void {
    const bytes = this.#held.reduce((sum, each) => sum + bytesOf(each), bytesOf(entry));
    if (this.#held.length >= MOST_HELD || bytes > this.#context.heldBytes()) this.#held.pop();
    this.#held.push(entry);
  }

  #canDecode(): boolean {
    const isShown = this.#isVisible && !this.#context.platform.isHidden();
    return isShown && !this.#isClosed && (!this.#isPaused || this.#isStepping);
  }

  #ask(): void {
    if (this.#next && !this.#isDecoding && this.#canDecode()) this.#context.turns.ask(this.#turn);
  }

  async #decodeNext(): Promise<void> {
    const entry = this.#next;
    if (!entry || this.#isDecoding || !this.#canDecode()) return;
    this.#next = null;
    this.#isDecoding = true;
    const { platform, drops } = this.#context;
    const frame = await decodeFrame(entry.answer, entry.preview, {
      decoder: platform.decoder,
      drops,
      classes: this.classes.peek(),
      size: this.#context.pictureSize(this.model),
      maskPixels: this.#context.maskPixels(),
    });
    this.#isDecoding = false;
    if (this.#canDecode()) {
      this.#isStepping = false;
      this.#show(this.#context.hasIds() ? this.#followed(frame) : frame);
    } else {
      frame.preview?.close();
      if (this.#isPaused) this.#held.unshift(entry);
      else if (!this.#isClosed) this.#next ??= entry;
    }
    this.#ask();
  }

  /** Return a frame with ids of its objects, unless the model gave its own. */
  #followed(frame: ShownFrame): ShownFrame {
    if (frame.outcome !== "ok" || frame.boxes.some(({ id }) => id !== undefined)) return frame;
    const nowS = frame.captureTimeNs === null ? frame.receivedMs / 1e3 : Number(frame.captureTimeNs) / 1e9;
    return { ...frame, boxes: this.#tracks.follow(nowS, frame.boxes) };
  }

  /** Show a frame; the picture of the one before is given back to the browser. */
  #show(frame: ShownFrame | null): void {
    const before = this.frame.peek();
    try {
      this.frame.value = frame;
    } finally {
      before?.preview?.close();
    }
  }
}

function bytesOf({ answer, preview }: Entry): number {
  return answer.bytes + (preview?.bytes ?? 0);
}

/** Return the place of the frame that was captured closest to a time; the first of those without a stamp. */
function closest(entries: readonly Entry[], stamp: bigint): number {
  const apart = entries.map(({ answer }) => {
    const difference = (answer.captureTimeNs ?? stamp) - stamp;
    return difference < 0n ? -difference : difference;
  });
  return apart.reduce((best, each, place) => (each < (apart[best] ?? 0n) ? place : best), 0);
}
