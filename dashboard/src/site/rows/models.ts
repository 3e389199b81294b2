/** The models, by their cards and by the results that the page has seen. */

import type { ModelCard, TensorSpec, Timings } from "mqinfer-client";
import { boundedRecord, cut, type Drops, MOST_ROWS } from "../bounds.js";
import { Percentiles } from "../measuring/percentiles.js";
import { SlidingRate } from "../measuring/rates.js";
import { SecondsRing } from "../measuring/series.js";
import type { Clock } from "../platform.js";
import type { ClassInfo, ModelRow } from "../types.js";
import { RowList, shownRate } from "./rows.js";

/** Bytes of all cards that are kept. */
const CARD_BYTES = 32 << 20;
const MOST_KEYPOINTS = 256;
const MOST_CLASSES = 32_768;
const MOST_TENSORS = 64;
const MOST_VERSIONS = 100;
const CHARTS_MS = 1000;
/** Models with charts, each of which takes time once a second; one without results for so long gives its place away. */
const MOST_CHARTS = 128;
const SILENT_MS = 10_000;

/** The parts of a time that a reply states, in the order of a chart. */
export const STAGES = ["serverQueue", "decode", "preprocess", "inference", "postprocess", "encode"] as const;

interface Card {
  readonly facts: Pick<ModelRow, (typeof FACTS)[number]>;
  readonly size: readonly [number, number] | null;
  readonly bytes: number;
  readonly connection: number;
}

interface Traffic {
  lastMs: number;
  readonly rate: SlidingRate;
  readonly latency: Percentiles;
  readonly rates: SecondsRing;
  readonly stages: SecondsRing;
}

type Charts = Pick<ModelRow, "p50Ms" | "p95Ms" | "p99Ms" | "rates" | "stages">;

export class Models {
  readonly #clock: Clock;
  readonly #drops: Drops;
  readonly #cards = new Map<string, Card>();
  readonly #traffic = new Map<string, Traffic>();
  readonly #list = new RowList<ModelRow>();
  readonly #served = new Map<string, readonly string[]>();
  #charts = new Map<string, Charts>();
  #chartsMs = Number.NEGATIVE_INFINITY;
  #cardBytes = 0;

  constructor(clock: Clock, drops: Drops) {
    this.#clock = clock;
    this.#drops = drops;
  }

  /** Take a card; undefined removes it. Returns whether what it says of the model is new. */
  take(model: string, card: ModelCard | undefined, bytes: number, connection: number): boolean {
    const known = this.#cards.get(model);
    if (card && !known && this.#cards.size >= MOST_ROWS) {
      this.#drops.add("too many models");
      return false;
    }
    if (card && this.#cardBytes - (known?.bytes ?? 0) + bytes > CARD_BYTES) {
      this.#drops.add("too many cards");
      return false;
    }
    this.#cardBytes += (card ? bytes : 0) - (known?.bytes ?? 0);
    if (card) this.#cards.set(model, { facts: factsOf(card), size: sizeOf(card), bytes, connection });
    else this.#cards.delete(model);
    return (known?.facts.hash ?? "") !== cut(card?.modelHash ?? "");
  }

  /** Count a result; `timings` are those of one that was read and is `ok`. */
  count(model: string, timings: Timings | null): void {
    const traffic = this.#trafficOf(model);
    if (!traffic) return;
    const nowMs = this.#clock.nowMs();
    const epochMs = this.#clock.epochMs();
    traffic.rate.add(nowMs);
    traffic.rates.add(epochMs, [1]);
    const totalMs = timings ? Object.values(timings).reduce((sum, each) => sum + each, 0) / 1e6 : 0;
    if (!timings || totalMs === 0) return;
    traffic.latency.add(nowMs, totalMs);
    traffic.stages.add(
      epochMs,
      STAGES.map((stage) => timings[stage] / 1e6),
    );
  }

  classesOf(model: string): readonly ClassInfo[] {
    return this.#cards.get(model)?.facts.classes ?? [];
  }

  pictureSize(model: string): readonly [number, number] | null {
    return this.#cards.get(model)?.size ?? null;
  }

  /** Remove the cards that did not come again after a new connection. */
  forgetBefore(connection: number): void {
    for (const [model, card] of this.#cards) if (card.connection < connection) this.take(model, undefined, 0, 0);
  }

  /** Return the rows; charts and percentiles change once a second. */
  rows(servers: ReadonlyMap<string, readonly string[]>): readonly ModelRow[] {
    const nowMs = this.#clock.nowMs();
    if (nowMs - this.#chartsMs >= CHARTS_MS) {
      this.#chartsMs = nowMs;
      this.#charts = new Map([...this.#traffic].map(([model, traffic]) => [model, this.#chartsOf(traffic)]));
    }
    const names = new Set([...this.#cards.keys(), ...this.#traffic.keys()]);
    const sources = [...names].sort().map((key) => {
      const facts = this.#cards.get(key)?.facts;
      const charts = this.#charts.get(key) ?? NO_CHARTS;
      const servedBy = this.#servedBy(key, servers.get(key) ?? []);
      const rate = shownRate(this.#traffic.get(key)?.rate.read(nowMs) ?? 0);
      const make = (): ModelRow => ({ ...(facts ?? { ...NO_FACTS, name: key }), ...charts, servedBy, rate });
      return { key, parts: [facts, charts, servedBy, rate], make };
    });
    return this.#list.update(sources);
  }

  #chartsOf({ latency, rates, stages }: Traffic): Charts {
    const epochMs = this.#clock.epochMs();
    const [p50Ms = null, p95Ms = null, p99Ms = null] = latency.read(this.#clock.nowMs(), [0.5, 0.95, 0.99]);
    return { p50Ms, p95Ms, p99Ms, rates: rates.read(epochMs), stages: stages.read(epochMs) };
  }

  /** Return the same array while its names stay. */
  #servedBy(model: string, names: readonly string[]): readonly string[] {
    const sorted = [...names].sort();
    const known = this.#served.get(model) ?? [];
    if (sorted.join("/") === known.join("/")) return known;
    this.#served.set(model, sorted);
    return sorted;
  }

  #trafficOf(model: string): Traffic | null {
    const nowMs = this.#clock.nowMs();
    const known = this.#traffic.get(model);
    if (known) {
      known.lastMs = nowMs;
      return known;
    }
    if (this.#traffic.size >= MOST_CHARTS && !this.#makeRoom(nowMs)) {
      this.#drops.add("too many models");
      return null;
    }
    const traffic = {
      lastMs: nowMs,
      rate: new SlidingRate(),
      latency: new Percentiles(),
      rates: new SecondsRing(["rate"], "sum"),
      stages: new SecondsRing(STAGES, "mean"),
    };
    this.#traffic.set(model, traffic);
    return traffic;
  }

  /** Forget the charts of a model without results. */
  #makeRoom(nowMs: number): boolean {
    for (const [model, { lastMs }] of this.#traffic) {
      if (nowMs - lastMs > SILENT_MS) return this.#traffic.delete(model);
    }
    return false;
  }
}

const FACTS = [
  "name",
  "versions",
  "hash",
  "backend",
  "precision",
  "inputs",
  "outputs",
  "classes",
  "labels",
  "traffic",
] as const;
const NO_FACTS: Card["facts"] = {
  name: "",
  versions: [],
  hash: "",
  backend: "",
  precision: "",
  inputs: [],
  outputs: [],
  classes: [],
  labels: {},
  traffic: {},
};
const NO_SERIES = { seconds: [], values: {} };
const NO_CHARTS: Charts = { p50Ms: null, p95Ms: null, p99Ms: null, rates: NO_SERIES, stages: NO_SERIES };

/** Return a class with names of bounded length, and as many key points as a page draws. */
function classOf({ name, colour, keypoints, skeleton }: ClassInfo): ClassInfo {
  return {
    ...{ name: cut(name), colour },
    ...(keypoints && { keypoints: keypoints.slice(0, MOST_KEYPOINTS).map((each) => cut(each)) }),
    ...(skeleton && {
      skeleton: skeleton.slice(0, MOST_KEYPOINTS).map(([one, other]) => [cut(one), cut(other)] as const),
    }),
  };
}

function factsOf(card: ModelCard): Card["facts"] {
  return {
    name: card.name,
    versions: card.versions.slice(0, MOST_VERSIONS).map((each) => cut(each)),
    hash: cut(card.modelHash),
    backend: cut(card.backend),
    precision: cut(card.precision),
    inputs: card.inputs.slice(0, MOST_TENSORS).map(described),
    outputs: card.outputs.slice(0, MOST_TENSORS).map(described),
    classes: card.classes.slice(0, MOST_CLASSES).map(classOf),
    labels: boundedRecord(card.labels),
    traffic: boundedRecord(card.traffic),
  };
}

function described(spec: TensorSpec): string {
  return cut(`${spec.name} ${spec.datatype} [${spec.shape.slice(0, 16).join(", ")}]`);
}

function sizeOf(card: ModelCard): readonly [number, number] | null {
  const { width, height } = card.image ?? {};
  return width && height ? [width, height] : null;
}
