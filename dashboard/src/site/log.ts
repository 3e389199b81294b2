/** The last messages that are worth reading, bounded by kind, so that none pushes out the others. */

import { cut } from "./bounds.js";
import { Budget } from "./measuring/budget.js";
import type { Clock } from "./platform.js";
import type { AnswerLine, LogCount, LogEntry } from "./types.js";

type Kind = LogEntry["kind"];

/** How many lines of a kind are kept, and how many are taken in a quarter of a second. */
const KINDS: Readonly<Record<Kind, { readonly kept: number; readonly aSlot: number }>> = {
  result: { kept: 200, aSlot: 5 },
  error: { kept: 200, aSlot: Number.POSITIVE_INFINITY },
  state: { kept: 200, aSlot: Number.POSITIVE_INFINITY },
  refused: { kept: 50, aSlot: 1 },
};
/** Errors of one stream with one code are one line, until none has come for so long. */
const SAME_MS = 10_000;
/** Frames that such a line names, the last ones. */
const MOST_FRAMES = 32;
/** Bytes of the outputs that opened lines show; the oldest are forgotten first. */
const ANSWER_BYTES = 32 << 20;
const MOST_DEPTH = 6;
const MOST_ITEMS = 32;
const MOST_VALUES = 400;

/** A result's outputs, which are read when its line is opened. */
export interface LoggedAnswer {
  readonly bytes: number;
  read(): readonly AnswerLine[];
}

/** What is added beside the text of a line. */
export interface LogFacts {
  /** Lines of one sender are sampled together. */
  readonly sender?: string;
  /** Lines of a kind with the same key, one soon after the other, are one. */
  readonly key?: string;
  readonly sequence?: number | undefined;
  /** How many it stands for; 1 if omitted. */
  readonly count?: number;
  readonly answer?: LoggedAnswer | undefined;
}

interface Line {
  readonly id: number;
  readonly kind: Kind;
  readonly key: string;
  readonly detail: unknown;
  readonly firstMs: number;
  readonly frames: number[];
  answer: LoggedAnswer | null;
  /** Grows with each change: the line with the largest is the newest. */
  order: number;
  lastMs: number;
  count: number;
  summary: string;
  /** Null where it has changed since it was read. */
  entry: LogEntry | null;
}

export class Log {
  readonly #clock: Clock;
  readonly #lines = new Map<Kind, Line[]>();
  readonly #budgets = new Map<Kind, Budget>();
  readonly #counts = new Map<Kind, { came: number; listed: number }>();
  #shown: readonly LogEntry[] = [];
  #shownCounts: Readonly<Partial<Record<Kind, LogCount>>> = {};
  #isChanged = false;
  #lastOrder = 0;
  #answerBytes = 0;

  constructor(clock: Clock) {
    this.#clock = clock;
    for (const [kind, { aSlot }] of Object.entries(KINDS)) {
      if (Number.isFinite(aSlot)) this.#budgets.set(kind as Kind, new Budget(1, aSlot));
    }
  }

  /**
   * Add a line, or count it in the one before that has its key; results and refused messages are sampled.
   *
   * `detail` is made only for lines that are new.
   */
  add(kind: Kind, summary: string, detail: () => unknown, facts: LogFacts = {}): void {
    const stands = this.#budgets.get(kind)?.admit(facts.sender ?? "", this.#clock.nowMs()) ?? 1;
    const own = facts.count ?? 1;
    const counts = this.#counts.get(kind) ?? { came: 0, listed: 0 };
    this.#counts.set(kind, counts);
    counts.came += own;
    this.#isChanged = true;
    if (stands === 0) return;
    counts.listed += own;
    const lines = this.#lines.get(kind) ?? [];
    this.#lines.set(kind, lines);
    const line = this.#known(lines, facts.key) ?? this.#make(lines, kind, detail(), facts);
    line.count += own + stands - 1;
    line.summary = cut(summary);
    line.lastMs = this.#clock.epochMs();
    line.order = ++this.#lastOrder;
    line.entry = null;
    if (facts.sequence !== undefined) line.frames.push(facts.sequence);
    if (line.frames.length > MOST_FRAMES) line.frames.shift();
  }

  /** Return the lines, newest first; the same array while nothing is added. */
  read(): readonly LogEntry[] {
    this.#publish();
    return this.#shown;
  }

  /** Return how many of each kind have come, and how many of them were listed. */
  counts(): Readonly<Partial<Record<Kind, LogCount>>> {
    this.#publish();
    return this.#shownCounts;
  }

  #known(lines: readonly Line[], key: string | undefined): Line | undefined {
    const oldestMs = this.#clock.epochMs() - SAME_MS;
    return key === undefined ? undefined : lines.find((line) => line.key === key && line.lastMs >= oldestMs);
  }

  #make(lines: Line[], kind: Kind, detail: unknown, facts: LogFacts): Line {
    const firstMs = this.#clock.epochMs();
    const line: Line = {
      id: this.#lastOrder + 1,
      ...{ kind, key: facts.key ?? "", detail: plain(detail), firstMs, frames: [], order: 0 },
      ...{ answer: facts.answer ?? null, lastMs: firstMs, count: 0, summary: "", entry: null },
    };
    lines.push(line);
    if (lines.length > KINDS[kind].kept) this.#forgetOldest(lines);
    this.#keepAnswer(line.answer);
    return line;
  }

  #forgetOldest(lines: Line[]): void {
    const oldest = lines.reduce((one, other) => (other.order < one.order && other.order > 0 ? other : one));
    this.#answerBytes -= oldest.answer?.bytes ?? 0;
    lines.splice(lines.indexOf(oldest), 1);
  }

  /** Count an answer's bytes; the oldest lines lose theirs where all together are too many. */
  #keepAnswer(answer: LoggedAnswer | null): void {
    this.#answerBytes += answer?.bytes ?? 0;
    for (const line of this.#lines.get("result") ?? []) {
      if (this.#answerBytes <= ANSWER_BYTES) return;
      this.#answerBytes -= line.answer?.bytes ?? 0;
      line.answer = null;
      line.entry = null;
    }
  }

  #publish(): void {
    if (!this.#isChanged) return;
    this.#isChanged = false;
    const lines = [...this.#lines.values()].flat().sort((a, b) => b.order - a.order);
    this.#shown = lines.map((line) => {
      line.entry ??= entryOf(line);
      return line.entry;
    });
    this.#shownCounts = Object.fromEntries([...this.#counts].map(([kind, counts]) => [kind, { ...counts }]));
  }
}

function entryOf(line: Line): LogEntry {
  const { id, kind, summary, count, firstMs, lastMs, detail, frames, answer } = line;
  const isMerged = line.key !== "" && count > 1;
  return {
    ...{ id, timeMs: lastMs, firstMs, kind, summary, count },
    detail: isMerged ? { count, frames: [...frames], first: detail } : detail,
    answer: answer && (() => answer.read()),
  };
}

/** Return a value as JSON may have it: bytes as their number, texts cut, at most 400 values six levels deep. */
export function plain(value: unknown): unknown {
  let left = MOST_VALUES;
  const copy = (each: unknown, depth: number): unknown => {
    left -= 1;
    if (left < 0 || depth > MOST_DEPTH) return "…";
    if (each === null || typeof each === "boolean") return each;
    if (typeof each === "number") return Number.isFinite(each) ? each : String(each);
    if (typeof each === "string") return cut(each);
    if (typeof each === "bigint") return String(each);
    if (ArrayBuffer.isView(each)) return `${each.byteLength} bytes`;
    if (Array.isArray(each)) return each.slice(0, MOST_ITEMS).map((item) => copy(item, depth + 1));
    if (typeof each !== "object") return undefined;
    const entries = Object.entries(each).filter(([, item]) => item !== undefined);
    return Object.fromEntries(entries.slice(0, MOST_ITEMS).map(([key, item]) => [cut(key), copy(item, depth + 1)]));
  };
  return copy(value, 0);
}
