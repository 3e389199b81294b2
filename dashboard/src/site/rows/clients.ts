/** The streams of edges and other clients, by their states; of those that state none, by their results. */

import type { ClientState, Outcome, StreamState } from "mqinfer-client";
import { boundedRecord, cut, type Drops, MOST_ROWS } from "../bounds.js";
import { type StreamName, streamKey } from "../live/messages.js";
import { SlidingRate } from "../measuring/rates.js";
import type { Clock } from "../platform.js";
import type { StreamRow } from "../types.js";
import { RowList, type RowSource, shownRate } from "./rows.js";

const MOST_STREAMS = 32;
const MOST_CODES = 64;
/** So many results in a row that are errors are no chance. */
const FAILURES = 2;
/** Results may be so far apart before a model without workers counts as the cause. */
const ANSWERED_MS = 5000;
/** Not an error: a newer frame took its place. */
const SUPERSEDED = "superseded";
/** A stream that is known by its results alone is shown as lost, and later forgotten, after so long without any. */
const SILENT_MS = 10_000;
const FORGOTTEN_MS = 300_000;

type Status = StreamRow["status"];

interface Entry {
  readonly status: Status;
  readonly boot: number;
  /** What its state says of its streams; empty if it says nothing. */
  readonly streams: readonly StreamRow[];
  /** Of each stream by its key what its frames end with; null where some of the last ones have results. */
  readonly failing: ReadonlyMap<string, string | null>;
  readonly stated: StreamRow;
  readonly connection: number;
}

interface Observed {
  readonly name: StreamName;
  readonly rate: SlidingRate;
  outcomes: Record<string, number>;
  /** Errors by code that its client has not stated yet. */
  readonly errors: Map<string, number>;
  /** Code of the errors since the last result, where there were several; else empty. */
  failing: string;
  failures: number;
  lastMs: number;
  lastOkMs: number;
}

/** Frames without a result that no worker has answered: their client gave them up. */
export interface Settled {
  readonly source: string;
  readonly model: string;
  readonly code: string;
  readonly count: number;
  /** Whether all since the client's start are counted: this is the first that is known of it. */
  readonly isTotal: boolean;
}

/** How a client's state has changed. */
export interface ClientChange {
  readonly status: Status | "removed" | null;
  /** What its tiles need to know. */
  readonly tiles: "there" | "restarted" | "gone";
  readonly settled: readonly Settled[];
  /** The streams that it states while it runs. */
  readonly streams: readonly StreamName[];
}

export class Clients {
  readonly #clock: Clock;
  readonly #drops: Drops;
  readonly #entries = new Map<string, Entry>();
  readonly #observed = new Map<string, Observed>();
  readonly #list = new RowList<StreamRow>();

  constructor(clock: Clock, drops: Drops) {
    this.#clock = clock;
    this.#drops = drops;
  }

  /** Take a state; undefined removes the client. Returns null if it changes nothing. */
  take(client: string, state: ClientState | undefined, connection: number): ClientChange | null {
    const known = this.#entries.get(client);
    if (state === undefined) return this.#remove(client);
    if (known && isOfAnother(state, known)) return null;
    if (!known && this.#entries.size >= MOST_ROWS) {
      this.#drops.add("too many clients");
      return null;
    }
    const isGone = state.status === "lost" || state.status === "stopped";
    const isNew = known !== undefined && known.boot !== state.boot;
    const streams = isGone ? [] : (state.streams ?? []).slice(0, MOST_STREAMS);
    const before = isNew ? [] : (known?.streams ?? []);
    this.#entries.set(client, entryOf(state, known, connection));
    return {
      status: known?.status === state.status && !isNew ? null : state.status,
      tiles: isGone ? "gone" : isNew ? "restarted" : "there",
      settled: streams.flatMap((stream) => this.#settled(client, stream, before, known === undefined)),
      streams: streams.map(({ source, model }) => ({ client, source, model })),
    };
  }

  /** Count results of a stream; `code` is that of their error. */
  count(name: StreamName, outcome: Outcome, results: number, code = ""): void {
    const key = streamKey(name);
    const nowMs = this.#clock.nowMs();
    let observed = this.#observed.get(key);
    if (!observed) {
      if (this.#observed.size >= MOST_ROWS && !this.#forgetOldest(nowMs)) return;
      observed = {
        ...{ name, rate: new SlidingRate(), outcomes: {}, errors: new Map(), failing: "", failures: 0 },
        ...{ lastMs: nowMs, lastOkMs: Number.NEGATIVE_INFINITY },
      };
      this.#observed.set(key, observed);
    }
    observed.rate.add(nowMs, results);
    observed.outcomes = { ...observed.outcomes, [outcome]: (observed.outcomes[outcome] ?? 0) + results };
    observed.lastMs = nowMs;
    const isOk = outcome === "ok";
    if (isOk) observed.lastOkMs = nowMs;
    observed.failures = isOk ? 0 : observed.failures + results;
    observed.failing = observed.failures < FAILURES ? "" : cut(code || outcome);
    const isCounted = !isOk && (observed.errors.has(code) || observed.errors.size < MOST_CODES);
    if (isCounted) observed.errors.set(code, (observed.errors.get(code) ?? 0) + results);
  }

  /** Remove those whose states did not come again after a new connection; returns their names. */
  forgetBefore(connection: number): string[] {
    const gone = [...this.#entries].filter(([, entry]) => entry.connection < connection).map(([client]) => client);
    for (const client of gone) this.#remove(client);
    return gone;
  }

  /** Return a row for each stream; `servers` are the workers of each model, null where they are not known. */
  rows(servers: Servers): readonly StreamRow[] {
    const nowMs = this.#clock.nowMs();
    const rows = new Map<string, RowSource<StreamRow>>();
    for (const { streams, failing } of this.#entries.values()) {
      for (const row of streams)
        rows.set(row.key, asSource(row, troubleOf(row, servers, failing.get(row.key) ?? null)));
    }
    const withResults = new Set<string>();
    for (const [key, observed] of this.#observed) {
      if (nowMs - observed.lastMs > FORGOTTEN_MS) {
        this.#observed.delete(key);
        continue;
      }
      withResults.add(observed.name.client);
      const entry = this.#entries.get(observed.name.client);
      if (!entry?.streams.length) rows.set(key, observedSource(key, observed, entry, nowMs, servers));
    }
    for (const [client, entry] of this.#entries) {
      if (entry.streams.length === 0 && !withResults.has(client))
        rows.set(entry.stated.key, asSource(entry.stated, ""));
    }
    const shown = [...rows.values()].sort((a, b) => (a.key < b.key ? -1 : 1));
    if (shown.length > MOST_ROWS) shown.length = MOST_ROWS;
    return this.#list.update(shown);
  }

  #remove(client: string): ClientChange | null {
    if (!this.#entries.delete(client)) return null;
    for (const [key, { name }] of this.#observed) if (name.client === client) this.#observed.delete(key);
    return { status: "removed", tiles: "gone", settled: [], streams: [] };
  }

  /** Return what a stream's state counts beyond the state before and the errors that workers sent. */
  #settled(client: string, stream: StreamState, before: readonly StreamRow[], isTotal: boolean): Settled[] {
    const key = streamKey({ client, source: stream.source, model: stream.model });
    const known = before.find((row) => row.key === key);
    const seen = this.#observed.get(key)?.errors;
    return Object.entries(boundedRecord(stream.dropped)).flatMap(([code, total]) => {
      const more = Math.max(0, total - countOf(known?.dropped, code));
      const sent = seen?.get(code) ?? 0;
      if (sent > 0) seen?.set(code, Math.max(0, sent - more));
      const count = more - sent;
      if (count <= 0 || code === SUPERSEDED) return [];
      return [{ source: cut(stream.source), model: cut(stream.model), code, count, isTotal }];
    });
  }

  #forgetOldest(nowMs: number): boolean {
    for (const [key, { lastMs }] of this.#observed) {
      if (nowMs - lastMs <= SILENT_MS) continue;
      this.#observed.delete(key);
      return true;
    }
    return false;
  }
}

type Counts = Readonly<Record<string, number>>;
type Servers = ReadonlyMap<string, readonly string[]> | null;

const NOTHING_STATED = {
  trouble: "",
  window: null,
  queued: null,
  inFlight: null,
  outcomes: {} as Readonly<Record<string, number>>,
  dropped: {} as Readonly<Record<string, number>>,
  spooled: null,
  previews: null,
};

function asSource(row: StreamRow, trouble: string): RowSource<StreamRow> {
  return { key: row.key, parts: [row, trouble], make: () => ({ ...row, trouble }) };
}

/** Return why a stream that is ready gets no results: that nobody serves its model explains what fails. */
function troubleOf(row: { status: Status; model: string }, servers: Servers, failing: string | null): string {
  if (row.status !== "ready" || failing === null) return "";
  if (servers && row.model && !servers.has(row.model)) return `no worker for ${cut(row.model, 80)}`;
  return failing && `the last frames failed: ${failing}`;
}

function countOf(counts: Counts | undefined, name: string): number {
  return counts && Object.hasOwn(counts, name) ? (counts[name] ?? 0) : 0;
}

/** Return what the frames since the state before end with: null if with results, as before where none has ended. */
function failingOf(row: StreamRow, before: StreamRow | undefined, known: string | null | undefined): string | null {
  const since = (counts: Counts, old: Counts | undefined, name: string) => countOf(counts, name) - countOf(old, name);
  if (since(row.outcomes, before?.outcomes, "ok") > 0) return before ? null : "";
  const codes = Object.keys(row.dropped).filter((code) => code !== SUPERSEDED);
  const counted = codes.map((code) => ({ code, count: since(row.dropped, before?.dropped, code) }));
  const most = counted.reduce((one, other) => (other.count > one.count ? other : one), { code: "", count: 0 });
  // One frame after results is not yet every frame.
  return most.count === 1 && known === null ? "" : most.code || (known ?? "");
}

/** Return the row of a stream whose client does not state it, by its results. */
function observedSource(
  key: string,
  { name, rate, outcomes, failing, lastMs, lastOkMs }: Observed,
  entry: Entry | undefined,
  nowMs: number,
  servers: Servers,
): RowSource<StreamRow> {
  const status = entry?.status ?? (nowMs - lastMs > SILENT_MS ? "lost" : "ready");
  const window = entry?.stated.window ?? null;
  const shown = shownRate(rate.read(nowMs));
  const isAnswered = !failing && nowMs - lastOkMs <= ANSWERED_MS;
  const trouble = troubleOf({ status, model: name.model }, servers, isAnswered ? null : failing);
  const make = (): StreamRow => ({
    ...NOTHING_STATED,
    key,
    client: name.client,
    status,
    trouble,
    source: cut(name.source),
    model: name.model,
    rate: shown,
    window,
    outcomes,
  });
  return { key, parts: [status, trouble, window, shown, outcomes], make };
}

/** Return whether a state is that of another process than the one that is shown. */
function isOfAnother(state: ClientState, known: Entry): boolean {
  return state.status !== "ready" && known.status === "ready" && state.boot !== known.boot;
}

function entryOf(state: ClientState, known: Entry | undefined, connection: number): Entry {
  const { client, status, boot } = state;
  // A will holds no streams: those that were stated last stay, with the new status.
  const isEnd = status === "lost" || status === "stopped";
  const before = known?.boot === boot ? known : undefined;
  const kept = isEnd ? (before?.streams ?? []) : [];
  const own = state.streams?.slice(0, MOST_STREAMS).map((each) => rowOf(client, status, each));
  const streams = own ?? kept.map((row) => ({ ...row, status }));
  const failing = streams.map((row): [string, string | null] => {
    const old = before?.streams.find((each) => each.key === row.key);
    return [row.key, failingOf(row, old, before?.failing.get(row.key))];
  });
  const stated: StreamRow = {
    ...NOTHING_STATED,
    key: `${client}/`,
    client,
    status,
    source: cut(state.source),
    model: cut(state.model),
    rate: null,
    window: state.window || null,
  };
  return { status, boot, streams, failing: new Map(failing), stated, connection };
}

function rowOf(client: string, status: Status, stream: StreamState): StreamRow {
  return {
    key: streamKey({ client, source: stream.source, model: stream.model }),
    client,
    status,
    trouble: "",
    source: cut(stream.source),
    model: cut(stream.model),
    rate: stream.rate,
    window: stream.window,
    queued: stream.queued,
    inFlight: stream.inFlight,
    outcomes: boundedRecord(stream.outcomes),
    dropped: boundedRecord(stream.dropped),
    spooled: stream.spooled,
    previews: stream.previews,
  };
}
