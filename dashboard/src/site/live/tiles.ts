/** All tiles: as many as the page shows, the others counted. */

import { signal } from "@preact/signals";
import { type Drops, HELD_BYTES, MASK_PIXELS, MOST_TILES, MOST_TILES_EACH } from "../bounds.js";
import type { Platform } from "../platform.js";
import type { ClassInfo, Tile } from "../types.js";
import { type StreamName, streamKey } from "./messages.js";
import { LiveTile, type TileContext } from "./tile.js";
import { Turns } from "./turns.js";

/** A tile without results for so long gives its place to a new stream; much later it goes by itself. */
const REPLACEABLE_MS = 15_000;
const FORGOTTEN_MS = 600_000;
/** Shares are those of at least so many tiles. */
const FEWEST_SHARES = 8;
/** Streams whose stamps are further apart are of different times, such as recordings of two days, and step alone. */
const SAME_TIME_NS = 10_000_000_000n;

/** What the tiles need to know of models. */
export interface ModelFacts {
  classesOf(model: string): readonly ClassInfo[];
  pictureSize(model: string): readonly [number, number] | null;
}

export class Tiles {
  readonly shown = signal<readonly Tile[]>([]);
  readonly #tiles = new Map<string, LiveTile>();
  readonly #platform: Platform;
  readonly #turns: Turns;
  readonly #context: TileContext;
  readonly #models: ModelFacts;
  #isPaused = false;
  #isChanged = false;

  constructor(platform: Platform, drops: Drops, models: ModelFacts, hasIds = () => false) {
    this.#platform = platform;
    this.#models = models;
    this.#turns = new Turns(platform.clock);
    this.#context = {
      platform,
      turns: this.#turns,
      drops,
      heldBytes: () => HELD_BYTES / 2 / this.#shares(), // once for halves of frames, once for those that wait for a step
      maskPixels: () => Math.min(16 << 20, MASK_PIXELS / this.#shares()),
      pictureSize: (model) => models.pictureSize(model),
      hasIds,
    };
  }

  /** Return the tile of a stream, a new one if there is room; null if there is none. */
  of(name: StreamName): LiveTile | null {
    const key = streamKey(name);
    const known = this.#tiles.get(key);
    if (known) return known;
    if (!this.#makeRoom(name.client)) {
      this.#context.drops.add("too many streams");
      return null;
    }
    const tile = new LiveTile(name, this.#models.classesOf(name.model), this.#context);
    tile.setPaused(this.#isPaused);
    this.#tiles.set(key, tile);
    this.#isChanged = true;
    return tile;
  }

  /** Make a tile for a stream whose results are to come, if there is room that no other holds. */
  expect(name: StreamName): void {
    const own = [...this.#tiles.values()].filter((tile) => tile.client === name.client);
    if (name.model && this.#tiles.size < MOST_TILES && own.length < MOST_TILES_EACH) this.of(name);
  }

  /** A result of a client to a model came that was not read: nobody knows of which stream, so each gets its share. */
  skipped(client: string, model: string): void {
    const possible = [...this.#tiles.values()].filter((tile) => tile.client === client && tile.model === model);
    for (const tile of possible) tile.skipped(this.#platform.clock.nowMs(), 1 / possible.length);
  }

  clientChanged(client: string, change: "there" | "restarted" | "gone"): void {
    for (const tile of this.#tiles.values()) if (tile.client === client) tile.clientChanged(change);
  }

  /** The card of a model has come. */
  modelChanged(model: string): void {
    for (const tile of this.#tiles.values()) {
      if (tile.model === model) tile.classes.value = this.#models.classesOf(model);
    }
  }

  setPaused(isPaused: boolean): void {
    this.#isPaused = isPaused;
    for (const tile of this.#tiles.values()) tile.setPaused(isPaused);
  }

  /** While paused: show a later frame of each tile, all of the same time: that of the one that goes furthest. */
  step(): void {
    this.publish();
    const tiles = [...this.#tiles.values()];
    const shown = tiles.filter((tile) => tile.isVisible).flatMap(({ nextStamp }) => nextStamp ?? []);
    const times = latestOf(shown);
    for (const tile of tiles) {
      const { nextStamp } = tile;
      tile.step(nextStamp === null ? null : (times.find((time) => nextStamp <= time) ?? null));
    }
  }

  /** Update what changes with time; `troubles`: why streams get no results, by their keys. */
  tick(nowMs: number, troubles: ReadonlyMap<string, string>): void {
    for (const [key, tile] of this.#tiles) {
      tile.tick(nowMs, troubles.get(key) ?? "");
      if (nowMs - tile.lastMs > FORGOTTEN_MS) this.#remove(key, tile);
    }
    if (!this.#isPaused) this.publish();
  }

  /** Show which tiles there are. */
  publish(): void {
    if (!this.#isChanged) return;
    this.#isChanged = false;
    this.shown.value = [...this.#tiles.values()].sort((a, b) => (a.key < b.key ? -1 : 1));
  }

  close(): void {
    this.#turns.close();
    for (const [key, tile] of this.#tiles) this.#remove(key, tile);
  }

  #shares(): number {
    return Math.max(FEWEST_SHARES, this.#tiles.size);
  }

  /** Return whether a client may have a new tile, in the place of one that has been silent for long if need be. */
  #makeRoom(client: string): boolean {
    const all = [...this.#tiles.values()];
    const own = all.filter((tile) => tile.client === client);
    const rivals = own.length >= MOST_TILES_EACH ? own : all.length >= MOST_TILES ? all : [];
    if (rivals.length === 0) return true;
    const oldest = rivals.reduce((one, other) => (other.lastMs < one.lastMs ? other : one));
    if (this.#platform.clock.nowMs() - oldest.lastMs < REPLACEABLE_MS) return false;
    this.#remove(oldest.key, oldest);
    return true;
  }

  #remove(key: string, tile: LiveTile): void {
    this.#tiles.delete(key);
    this.#isChanged = true;
    tile.close();
  }
}

/** Return the latest of stamps that belong to one time, rising; one for each time. */
function latestOf(stamps: readonly bigint[]): readonly bigint[] {
  const rising = [...stamps].sort((one, other) => (one < other ? -1 : 1));
  return rising.filter((stamp, place) => {
    const next = rising[place + 1];
    return next === undefined || next - stamp > SAME_TIME_NS;
  });
}
