/** The streams of edges and other clients, by their states; of those that state none, by their results. */

import type { ClientState, Outcome, StreamState } from "mqinfer-client";
import { boundedRecord, cut, type Drops, MOST_ROWS } from "../bounds.js";
import { type StreamName, streamKey } from "../live/messages.js";
import { SlidingRate } from "../measuring/rates.js";
import type { Clock } from "../platform.js";
import type { StreamRow } from "../types.js";
import { RowList, type RowSource, shownRate } from "./rows.js";

const MOST_STREAMS = 32;
/** A stream that is known by its results alone is shown as lost, and later forgotten, after so long without any. */
const SILENT_MS = 10_000;
const FORGOTTEN_MS = 300_000;

type Status = StreamRow["status"];

interface Entry {
  readonly status: Status;
  readonly boot: number;
  /** What its state says of its streams; empty if it says nothing. */
  readonly streams: readonly StreamRow[];
  readonly stated: StreamRow;
  readonly connection: number;
}

interface Observed {
  readonly name: StreamName;
  readonly rate: SlidingRate;
  outcomes: Record<string, number>;
  lastMs: number;
}

/** How a client's state has changed. */
export interface ClientChange {
  readonly status: Status | "removed" | null;
  /** What its tiles need to know. */
  readonly tiles: "there" | "restarted" | "gone";
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
    this.#entries.set(client, entryOf(state, known, connection));
    const isGone = state.status === "lost" || state.status === "stopped";
    const isNew = known !== undefined && known.boot !== state.boot;
    return {
      status: known?.status === state.status && !isNew ? null : state.status,
      tiles: isGone ? "gone" : isNew ? "restarted" : "there",
    };
  }

  /** Count results of a stream. */
  count(name: StreamName, outcome: Outcome, results: number): void {
    const key = streamKey(name);
    const nowMs = this.#clock.nowMs();
    let observed = this.#observed.get(key);
    if (!observed) {
      if (this.#observed.size >= MOST_ROWS && !this.#forgetOldest(nowMs)) return;
      observed = { name, rate: new SlidingRate(), outcomes: {}, lastMs: nowMs };
      this.#observed.set(key, observed);
    }
    observed.rate.add(nowMs, results);
    observed.outcomes = { ...observed.outcomes, [outcome]: (observed.outcomes[outcome] ?? 0) + results };
    observed.lastMs = nowMs;
  }

  /** Remove those whose states did not come again after a new connection; returns their names. */
  forgetBefore(connection: number): string[] {
    const gone = [...this.#entries].filter(([, entry]) => entry.connection < connection).map(([client]) => client);
    for (const client of gone) this.#remove(client);
    return gone;
  }

  rows(): readonly StreamRow[] {
    const nowMs = this.#clock.nowMs();
    const rows = new Map<string, RowSource<StreamRow>>();
    for (const entry of this.#entries.values()) for (const row of entry.streams) rows.set(row.key, asSource(row));
    const withResults = new Set<string>();
    for (const [key, observed] of this.#observed) {
      if (nowMs - observed.lastMs > FORGOTTEN_MS) {
        this.#observed.delete(key);
        continue;
      }
      withResults.add(observed.name.client);
      const entry = this.#entries.get(observed.name.client);
      if (!entry?.streams.length) rows.set(key, observedSource(key, observed, entry, nowMs));
    }
    for (const [client, entry] of this.#entries) {
      if (entry.streams.length === 0 && !withResults.has(client)) rows.set(entry.stated.key, asSource(entry.stated));
    }
    const shown = [...rows.values()].sort((a, b) => (a.key < b.key ? -1 : 1));
    if (shown.length > MOST_ROWS) shown.length = MOST_ROWS;
    return this.#list.update(shown);
  }

  #remove(client: string): ClientChange | null {
    if (!this.#entries.delete(client)) return null;
    for (const [key, { name }] of this.#observed) if (name.client === client) this.#observed.delete(key);
    return { status: "removed", tiles: "gone" };
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

const NOTHING_STATED = {
  window: null,
  queued: null,
  inFlight: null,
  outcomes: {} as Readonly<Record<string, number>>,
  dropped: {} as Readonly<Record<string, number>>,
  spooled: null,
  previews: null,
};

function asSource(row: StreamRow): RowSource<StreamRow> {
  return { key: row.key, parts: [row], make: () => row };
}

/** Return the row of a stream whose client does not state it, by its results. */
function observedSource(
  key: string,
  { name, rate, outcomes, lastMs }: Observed,
  entry: Entry | undefined,
  nowMs: number,
): RowSource<StreamRow> {
  const status = entry?.status ?? (nowMs - lastMs > SILENT_MS ? "lost" : "ready");
  const window = entry?.stated.window ?? null;
  const shown = shownRate(rate.read(nowMs));
  const make = (): StreamRow => ({
    ...NOTHING_STATED,
    key,
    client: name.client,
    status,
    source: cut(name.source),
    model: name.model,
    rate: shown,
    window,
    outcomes,
  });
  return { key, parts: [status, window, shown, outcomes], make };
}

/** Return whether a state is that of another process than the one that is shown. */
function isOfAnother(state: ClientState, known: Entry): boolean {
  return state.status !== "ready" && known.status === "ready" && state.boot !== known.boot;
}

function entryOf(state: ClientState, known: Entry | undefined, connection: number): Entry {
  const { client, status, boot } = state;
  // A will holds no streams: those that were stated last stay, with the new status.
  const isEnd = status === "lost" || status === "stopped";
  const kept = isEnd && known?.boot === boot ? known.streams : [];
  const streams = state.streams?.slice(0, MOST_STREAMS).map((each) => rowOf(client, status, each));
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
  return { status, boot, streams: streams ?? kept.map((row) => ({ ...row, status })), stated, connection };
}

function rowOf(client: string, status: Status, stream: StreamState): StreamRow {
  return {
    key: streamKey({ client, source: stream.source, model: stream.model }),
    client,
    status,
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
