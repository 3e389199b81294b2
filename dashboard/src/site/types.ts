/**
 * What the page shows, as plain values: made in `site/` of the broker's messages, drawn by `views/`.
 *
 * Everything here is bounded, whatever strangers send: so many tiles, entries and points, the rest counted in `dropped`.
 * Strings come from strangers; views put them into text nodes and attributes alone.
 */
import type { ReadonlySignal } from "@preact/signals";
import type { Outcome, Stage, Timings } from "mqinfer-client";

export interface Connection {
  readonly status: "connecting" | "connected" | "lost" | "refused";
  /** Why it was refused or lost, for people; empty otherwise. */
  readonly reason: string;
  /** Whether a user name and password would help. */
  readonly needsLogin: boolean;
}

export interface ClassInfo {
  readonly name: string;
  readonly colour: readonly [number, number, number];
  /** Names of its objects' key points, and lines between them. */
  readonly keypoints?: readonly string[];
  readonly skeleton?: readonly (readonly [string, string])[];
}

/** A box in pixels of the model's picture, which the preview shows scaled. */
export interface Box {
  readonly left: number;
  readonly top: number;
  readonly right: number;
  readonly bottom: number;
  readonly score: number;
  readonly classIndex: number;
  /** Of its object over the frames, where it is followed. */
  readonly id?: number;
  /** x, y and score of each key point; absent where the model has none. */
  readonly keypoints?: readonly (readonly [number, number, number])[];
}

/** A byte for each pixel of a grid over the model's picture. */
export interface Area {
  readonly width: number;
  readonly height: number;
  /** Numbers of classes; with a scale, levels from 0 to 254. */
  readonly data: Uint8Array;
  /** Whether 255 stands for nothing. */
  readonly isPartial: boolean;
  /** The output, and the numbers that the levels 0 and 254 stand for; null where the bytes are classes. */
  readonly scale: { readonly name: string; readonly least: number; readonly greatest: number } | null;
}

/** One frame of a tile: picture and answer have the same sequence number, or one of them is null. */
export interface ShownFrame {
  readonly sequence: number | null;
  readonly captureTimeNs: bigint | null;
  /** By the page's own clock, milliseconds of `performance.now()`. */
  readonly receivedMs: number;
  /** Width and height of the model's picture, in which boxes are given. */
  readonly size: readonly [number, number] | null;
  readonly preview: ImageBitmap | null;
  readonly mask: Area | null;
  readonly boxes: readonly Box[];
  /** The best classes of a classifier, best first, such as `tabby cat 0.93`. */
  readonly labels: readonly string[];
  readonly outcome: Outcome;
  readonly error: { readonly code: string; readonly message: string } | null;
  readonly modelVersion: string;
  readonly modelHash: string;
  readonly worker: string;
  readonly stage: Stage;
  /** Error code of why the edge answered alone; empty otherwise. */
  readonly fallback: string;
  readonly timings: Timings;
}

/** One stream of one client to one model. */
export interface Tile {
  readonly key: string;
  readonly client: string;
  readonly source: string;
  readonly model: string;
  readonly frame: ReadonlySignal<ShownFrame | null>;
  /** Whether nothing has come for longer than the stream's own rhythm lets expect, or its client is gone. */
  readonly isStale: ReadonlySignal<boolean>;
  /** Why no results come, such as `no worker for seg`; empty where nothing is known to be wrong. */
  readonly cause: ReadonlySignal<string>;
  /** Results a second over the last seconds. */
  readonly rate: ReadonlySignal<number>;
  /** Sequence numbers that were left out so far. */
  readonly gaps: ReadonlySignal<number>;
  readonly classes: ReadonlySignal<readonly ClassInfo[]>;
  /** Nothing of a tile that is not visible is decoded. */
  setVisible(isVisible: boolean): void;
}

/** One line of the view of streams: what the edge states of it. */
export interface StreamRow {
  readonly key: string;
  readonly client: string;
  readonly status: "claiming" | "ready" | "stopped" | "lost";
  /** Why none of its frames gets a result although it is ready; empty where some do. */
  readonly trouble: string;
  readonly source: string;
  readonly model: string;
  readonly rate: number | null;
  readonly window: number | null;
  readonly queued: number | null;
  readonly inFlight: number | null;
  readonly outcomes: Readonly<Record<string, number>>;
  readonly dropped: Readonly<Record<string, number>>;
  readonly spooled: number | null;
  readonly previews: number | null;
}

export interface WorkerRow {
  readonly name: string;
  readonly status: "ready" | "draining" | "stopped" | "lost" | "crashed";
  readonly models: readonly string[];
  readonly device: string;
  readonly depth: number;
  readonly capacity: number;
  readonly serviceTimeUs: number;
  /** Results a second that this page has seen of it. */
  readonly rate: number;
  readonly counters: Readonly<Record<string, number>>;
  /** Start of the process, milliseconds since the epoch. */
  readonly startedMs: number | null;
}

/** A chart's points, one a second, oldest first, by seconds since the epoch; NaN where nothing was measured. */
export interface Series {
  readonly seconds: readonly number[];
  readonly values: Readonly<Record<string, readonly number[]>>;
}

export interface ModelRow {
  readonly name: string;
  readonly versions: readonly string[];
  readonly hash: string;
  readonly backend: string;
  readonly precision: string;
  readonly inputs: readonly string[];
  readonly outputs: readonly string[];
  readonly classes: readonly ClassInfo[];
  readonly labels: Readonly<Record<string, string>>;
  readonly traffic: Readonly<Record<string, number>>;
  readonly servedBy: readonly string[];
  readonly rate: number;
  readonly p50Ms: number | null;
  readonly p95Ms: number | null;
  readonly p99Ms: number | null;
  /** Results a second: the values `rate`. */
  readonly rates: Series;
  /** Milliseconds of each stage that replies state, the mean of each second: named as in `Timings`. */
  readonly stages: Series;
}

export interface LogEntry {
  readonly id: number;
  /** Milliseconds since the epoch; of several messages that of the last one. */
  readonly timeMs: number;
  readonly firstMs: number;
  readonly kind: "result" | "error" | "state" | "refused";
  readonly summary: string;
  /** How many it stands for: errors of the same kind, or a result and those that were left out before it. */
  readonly count: number;
  /** What a click opens, as JSON without tensors' bytes. */
  readonly detail: unknown;
  /** Read what a result says; null of what is no result, or is too long ago. */
  readonly answer: (() => readonly AnswerLine[]) | null;
}

/** One class, box or label of a result. */
export interface AnswerLine {
  readonly name: string;
  /** Share, score or place. */
  readonly value: string;
}

/** How many messages of a kind have come since the page was opened, and how many of them the log listed or counted. */
export interface LogCount {
  readonly came: number;
  readonly listed: number;
}

/** What to show; an empty string is everything. */
export interface Selection {
  readonly stream: string;
  readonly model: string;
  /** Name of the only class to draw. */
  readonly className: string;
  /** Whether objects are followed over the frames, and have ids. */
  readonly hasIds: boolean;
}

/** All that the page knows. Signals change at most four times a second, those of a tile's frame with each frame drawn. */
export interface Site {
  readonly connection: ReadonlySignal<Connection>;
  readonly tiles: ReadonlySignal<readonly Tile[]>;
  readonly streams: ReadonlySignal<readonly StreamRow[]>;
  readonly workers: ReadonlySignal<readonly WorkerRow[]>;
  readonly models: ReadonlySignal<readonly ModelRow[]>;
  /** Newest first. */
  readonly log: ReadonlySignal<readonly LogEntry[]>;
  readonly logCounts: ReadonlySignal<Readonly<Partial<Record<LogEntry["kind"], LogCount>>>>;
  /** What was left out, by reason: `too many streams`, `slow page`, `bad message`, … */
  readonly dropped: ReadonlySignal<Readonly<Record<string, number>>>;
  readonly isPaused: ReadonlySignal<boolean>;
  readonly selection: ReadonlySignal<Selection>;
  /** Pause, or go on: while paused only the workers change, and ages grow. */
  setPaused(isPaused: boolean): void;
  /** While paused: show a later frame of each tile, all captured at the same time. */
  step(): void;
  select(change: Partial<Selection>): void;
  /** Connect again with a user name and password. */
  login(user: string, password: string): void;
  close(): void;
}
