/** The page's data as signals: tables that messages fill, published four times a second. */

import { batch, type Signal, signal } from "@preact/signals";
import { Drops } from "./bounds.js";
import { BrokerConnection } from "./connection.js";
import { Budgets, Intake, type Tables } from "./intake.js";
import { Tiles } from "./live/tiles.js";
import { Log } from "./log.js";
import type { Platform } from "./platform.js";
import { Clients } from "./rows/clients.js";
import { Models } from "./rows/models.js";
import { Workers } from "./rows/workers.js";
import type { Connection, LogEntry, ModelRow, Selection, Site, StreamRow, WorkerRow } from "./types.js";

const TICK_MS = 250;
/** How long a new connection may take to bring the states that the broker has kept. */
const KEPT_STATES_MS = 5000;
/** A timer that is later shows that the machine slept, not that the page had too much to do. */
const ASLEEP_MS = 60_000;

/** What the server tells the page, in `config.json`. */
export interface SiteConfig {
  /** Root of all topics. */
  readonly root: string;
  /** Address of the broker's WebSocket; it may be relative to the page's. */
  readonly mqtt: string;
  /** Whether the user is asked for a name and password where the broker refuses. */
  readonly login: "none" | "mqtt" | "relay";
}

export class PageSite implements Site {
  readonly streams = signal<readonly StreamRow[]>([]);
  readonly workers = signal<readonly WorkerRow[]>([]);
  readonly models = signal<readonly ModelRow[]>([]);
  readonly log = signal<readonly LogEntry[]>([]);
  readonly logCounts: Signal<Site["logCounts"]["value"]> = signal({});
  readonly dropped = signal<Readonly<Record<string, number>>>({});
  readonly isPaused = signal(false);
  readonly selection = signal<Selection>({ stream: "", model: "", className: "", hasIds: false });
  readonly tiles: Site["tiles"];
  readonly connection: Site["connection"];
  readonly #platform: Platform;
  readonly #tables: Tables;
  readonly #intake: Intake;
  readonly #broker: BrokerConnection;
  readonly #endTicks: () => void;
  #endWait: (() => void) | null = null;
  #tickedMs: number;
  #wasHidden = false;

  constructor(config: SiteConfig, platform: Platform) {
    const { clock } = platform;
    const drops = new Drops();
    const models = new Models(clock, drops);
    this.#platform = platform;
    this.#tables = {
      drops,
      models,
      tiles: new Tiles(platform, drops, models, () => this.selection.peek().hasIds),
      workers: new Workers(clock, drops),
      clients: new Clients(clock, drops),
      log: new Log(clock),
      budgets: new Budgets(),
    };
    this.#intake = new Intake(config.root, platform, this.#tables);
    this.#broker = new BrokerConnection(platform, {
      address: config.mqtt,
      filters: this.#intake.filters,
      asksLogin: config.login === "mqtt",
      onMessage: (message) => this.#intake.take(message),
      onStatus: (status) => this.#onStatus(status),
    });
    this.tiles = this.#tables.tiles.shown;
    this.connection = this.#broker.state;
    this.#tickedMs = clock.nowMs();
    this.#endTicks = clock.every(TICK_MS, () => this.#tick());
    this.#broker.open();
  }

  setPaused(isPaused: boolean): void {
    this.isPaused.value = isPaused;
    this.#tables.tiles.setPaused(isPaused);
    if (!isPaused) this.#publish();
  }

  step(): void {
    if (!this.isPaused.peek()) return;
    batch(() => {
      this.#tables.tiles.step();
      this.#publish();
    });
  }

  select(change: Partial<Selection>): void {
    this.selection.value = { ...this.selection.peek(), ...change };
  }

  login(user: string, password: string): void {
    this.#broker.open({ user, password });
  }

  close(): void {
    this.#endTicks();
    this.#endWait?.();
    this.#broker.close();
    this.#tables.tiles.close();
  }

  #tick(): void {
    const nowMs = this.#platform.clock.nowMs();
    const lateMs = nowMs - this.#tickedMs - TICK_MS;
    this.#tickedMs = nowMs;
    const isHidden = this.#platform.isHidden();
    // Browsers slow the timers of hidden tabs down, which says nothing about the page.
    if (!isHidden && !this.#wasHidden && lateMs < ASLEEP_MS) this.#tables.budgets.late(lateMs);
    this.#wasHidden = isHidden;
    const { tiles, workers } = this.#tables;
    batch(() => {
      tiles.tick(nowMs, new Map(this.#streamRows().map(({ key, trouble }) => [key, trouble])));
      this.workers.value = workers.rows();
      if (!this.isPaused.peek()) this.#publish();
    });
  }

  #publish(): void {
    const { drops, log, models, workers } = this.#tables;
    this.streams.value = this.#streamRows();
    this.models.value = models.rows(workers.servers());
    this.log.value = log.read();
    this.logCounts.value = log.counts();
    const dropped = drops.read();
    if (JSON.stringify(dropped) !== JSON.stringify(this.dropped.peek())) this.dropped.value = dropped;
  }

  /** Return the streams' rows; where the broker hides the workers, nothing is said of who serves their models. */
  #streamRows(): readonly StreamRow[] {
    const { clients, workers } = this.#tables;
    return clients.rows(this.#broker.isRefused(this.#intake.workerFilter) ? null : workers.servers());
  }

  /** Number the connections: what the broker had kept, and does not bring again with the next one, is gone. */
  #onStatus(status: Connection["status"]): void {
    this.#endWait?.();
    this.#endWait = null;
    if (status !== "connected") {
      this.#intake.connection += 1;
      return;
    }
    const { connection } = this.#intake;
    this.#endWait = this.#platform.clock.after(KEPT_STATES_MS, () => {
      this.#tables.workers.forgetBefore(connection);
      this.#tables.models.forgetBefore(connection);
      for (const client of this.#tables.clients.forgetBefore(connection)) {
        this.#tables.tiles.clientChanged(client, "gone");
      }
    });
  }
}
