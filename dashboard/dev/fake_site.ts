/** A site of synthetic data that moves, to look at the views without a broker. Not part of the page that is shipped. */
import { signal } from "@preact/signals";
import type { Connection, LogEntry, ModelRow, Selection, Site, StreamRow, WorkerRow } from "../src/site/types.js";
import { fakeModels, fakeStreams, fakeWorkers } from "./fake_rows.js";
import { FakeTile } from "./fake_tile.js";

export interface FakeOptions {
  readonly tiles: number;
  readonly perSecond: number;
  readonly isHostile: boolean;
  readonly needsLogin: boolean;
}

const MOST_ENTRIES = 500;
export const HOSTILE = "<img src=x onerror=alert(1)><script>alert(2)</script>".repeat(6);

export function openFakeSite(options: FakeOptions): Site {
  const isPaused = signal(false);
  const selection = signal<Selection>({ stream: "", model: "", className: "", hasIds: false });
  const connection = signal<Connection>(firstConnection(options));
  const tiles = Array.from({ length: options.tiles }, (_, number) => new FakeTile(number, options.isHostile));
  const rows = new FakeRows(options);
  const start = performance.now();
  const seconds = () => (performance.now() - start) / 1000;
  const show = (tile: FakeTile) => {
    tile.next(seconds());
    rows.add(tile.logEntry());
  };
  const timers = [
    setInterval(() => !isPaused.peek() && tiles.forEach(show), 1000 / options.perSecond),
    setInterval(() => !isPaused.peek() && rows.update(Math.floor(seconds())), 250),
  ];
  return {
    ...rows,
    connection,
    tiles: signal(tiles),
    isPaused,
    selection,
    setPaused: (value) => {
      isPaused.value = value;
    },
    step: () => tiles.forEach(show),
    select: (change) => {
      selection.value = { ...selection.peek(), ...change };
    },
    login: (user) => {
      const isGood = user === "good";
      const reason = isGood ? "" : "The broker refused the login: bad user name or password.";
      connection.value = { status: isGood ? "connected" : "refused", reason, needsLogin: !isGood };
    },
    close: () => timers.forEach(clearInterval),
  };
}

/** What changes four times a second. */
class FakeRows {
  readonly log = signal<readonly LogEntry[]>([]);
  readonly logCounts = signal<Site["logCounts"]["value"]>({});
  readonly dropped = signal<Readonly<Record<string, number>>>({});
  readonly streams = signal<readonly StreamRow[]>([]);
  readonly workers = signal<readonly WorkerRow[]>([]);
  readonly models = signal<readonly ModelRow[]>([]);
  readonly #options: FakeOptions;
  #entries: LogEntry[] = [];

  constructor(options: FakeOptions) {
    this.#options = options;
    this.update(0);
  }

  add(entry: LogEntry): void {
    this.#entries.push(entry);
  }

  update(seconds: number): void {
    const { tiles, isHostile } = this.#options;
    this.#entries = this.#entries.slice(-MOST_ENTRIES);
    this.log.value = [...this.#entries].reverse();
    this.streams.value = fakeStreams(tiles, seconds, isHostile);
    this.workers.value = fakeWorkers(tiles, seconds, isHostile);
    this.models.value = fakeModels(tiles, seconds, isHostile);
    if (!tiles) return;
    this.dropped.value = { "slow page": 3 * seconds, "bad message": 2, "too many streams": seconds > 5 ? 12 : 0 };
  }
}

function firstConnection({ needsLogin, isHostile }: FakeOptions): Connection {
  if (needsLogin) return { status: "refused", reason: "The broker asks for a user name and a password.", needsLogin };
  if (isHostile) return { status: "lost", reason: HOSTILE, needsLogin };
  return { status: "connected", reason: "", needsLogin };
}
