/** Model cards: the metadata of a model, which its workers publish retained, as JSON. */

import { DATATYPES } from "../codecs/datatypes.js";
import { BadEnvelope, BadTensor, BadTopic, LimitExceeded } from "../errors.js";
import { asInteger, Fields } from "../fields/fields.js";
import { readJson, same } from "../fields/json.js";
import { DEFAULT_LIMITS, MAX_CARD_BYTES } from "../limits.js";
import type { Topics } from "../topics.js";
import type { Datatype } from "../types.js";

/** Name, datatype and shape of a model's input or output; -1 where any size will do. */
export interface TensorSpec {
  readonly name: string;
  readonly datatype: Datatype;
  readonly shape: readonly number[];
}

/** A class of a classifier, a detector or a mask, and the RGB colour to draw it in. */
export interface ClassInfo {
  readonly name: string;
  readonly colour: readonly [number, number, number];
  /** Names of its objects' key points, in their order; absent for COCO's, where there are 17. */
  readonly keypoints?: readonly string[];
  /** Lines between key points, each by two of these names. */
  readonly skeleton?: readonly (readonly [string, string])[];
}

/** How a picture becomes an input: the model gets `(pixel * scale - mean) / std`. */
export interface ImageContract {
  readonly input: string;
  readonly width?: number;
  readonly height?: number;
  readonly colour: "rgb" | "bgr" | "mono" | "depth";
  readonly layout: "NHWC" | "NCHW" | "NHW";
  readonly scale: number;
  readonly mean: readonly number[];
  readonly std: readonly number[];
  readonly resize: "stretch" | "letterbox" | "crop";
  /** Grey level of a letterbox's margins. */
  readonly fill: number;
}

export interface ModelCard {
  readonly name: string;
  /** The version that this card describes. */
  readonly version: string;
  readonly versions: readonly string[];
  readonly platform: string;
  readonly inputs: readonly TensorSpec[];
  readonly outputs: readonly TensorSpec[];
  /** 0 where the model has no batch axis. */
  readonly maxBatchSize: number;
  readonly encodings: readonly string[];
  readonly image?: ImageContract;
  /** Where it takes several pictures, the contracts of all. */
  readonly images: readonly ImageContract[];
  readonly classes: readonly ClassInfo[];
  readonly modelHash: string;
  readonly precision: string;
  readonly backend: string;
  readonly device: string;
  /** Versions by label: `stable`, `canary`. */
  readonly labels: Readonly<Record<string, string>>;
  /** Per cent of the requests without a version, by version. */
  readonly traffic: Readonly<Record<string, number>>;
}

const COLOURS: readonly ImageContract["colour"][] = ["rgb", "bgr", "mono", "depth"];
const LAYOUTS: readonly ImageContract["layout"][] = ["NHWC", "NCHW", "NHW"];
const RESIZES: readonly ImageContract["resize"][] = ["stretch", "letterbox", "crop"];
const GREY = 114;
const LEVELS = 256n;

/**
 * Return the card of the model that a topic names; undefined where an empty payload removes it.
 *
 * @throws BadTopic: It is no topic of a card, or the card names another model.
 * @throws BadEnvelope: It is no JSON, or a field is missing or wrong.
 * @throws BadTensor: A datatype does not exist.
 * @throws LimitExceeded: It is longer than 1 MiB, or asks for larger pictures than receivers accept.
 */
export function readCard(topics: Topics, topic: string, payload: Uint8Array): ModelCard | undefined {
  const address = topics.parse(topic);
  if (address.kind !== "card") throw new BadTopic("this is not the topic of a model card");
  if (payload.length === 0) return undefined;
  const card = readJson(payload, "model card", MAX_CARD_BYTES);
  const versions = texts(card, "versions");
  return {
    name: same("model", address.model, card.text("name")),
    platform: card.text("platform"),
    versions,
    inputs: card.maps("inputs").map(readSpec),
    outputs: card.maps("outputs").map(readSpec),
    ...readParameters(card.map("parameters") ?? new Fields(new Map(), "model card"), versions.at(-1) ?? ""),
  };
}

function readParameters(
  known: Fields,
  newest: string,
): Omit<ModelCard, "name" | "platform" | "versions" | "inputs" | "outputs"> {
  const encodings = texts(known, "encodings");
  const image = known.map("image");
  return {
    version: known.has("version") ? known.text("version") : newest,
    maxBatchSize: known.count("max_batch_size", 0),
    encodings: encodings.length > 0 ? encodings : ["raw"],
    ...(image && { image: readImage(image) }),
    images: known.maps("images").map(readImage),
    classes: known.maps("classes").map(readClass),
    modelHash: known.text("model_hash", ""),
    precision: known.text("precision", "fp32"),
    backend: known.text("backend", ""),
    device: known.text("device", "cpu"),
    labels: known.record("labels", (labels, name) => labels.text(name)),
    traffic: known.record("traffic", (traffic, name) => traffic.count(name)),
  };
}

function readSpec(spec: Fields): TensorSpec {
  return {
    name: spec.text("name"),
    datatype: spec.choice("datatype", DATATYPES, undefined, BadTensor),
    shape: integers(spec, "shape", -1n),
  };
}

function readImage(image: Fields): ImageContract {
  const width = image.has("width") ? image.count("width", undefined, 1) : undefined;
  const height = image.has("height") ? image.count("height", undefined, 1) : undefined;
  if ((width ?? 1) * (height ?? 1) > DEFAULT_LIMITS.imagePixels) {
    throw new LimitExceeded(`model card: pictures of ${width}x${height} pixels are more than receivers accept`);
  }
  return {
    input: image.text("input"),
    ...(width !== undefined && { width }),
    ...(height !== undefined && { height }),
    colour: image.choice("colour", COLOURS, "rgb"),
    layout: image.choice("layout", LAYOUTS, "NHWC"),
    scale: image.number("scale", 1),
    mean: numbers(image, "mean", 0),
    std: numbers(image, "std", 1),
    resize: image.choice("resize", RESIZES, "stretch"),
    fill: image.count("fill", GREY),
  };
}

function readClass(entry: Fields): ClassInfo {
  const [red, green, blue, ...others] = integers(entry, "colour", 0n);
  const isColour = red !== undefined && green !== undefined && blue !== undefined && others.length === 0;
  if (!isColour || Math.max(red, green, blue) >= LEVELS) throw new BadEnvelope("model card: a colour is [r, g, b]");
  const keypoints = texts(entry, "keypoints");
  const lines = entry.list("skeleton") ?? [];
  if (!lines.every(isLine)) throw new BadEnvelope("model card: a line of a skeleton is two names");
  return {
    ...{ name: entry.text("name"), colour: [red, green, blue] },
    ...(keypoints.length > 0 && { keypoints }),
    ...(lines.length > 0 && { skeleton: lines }),
  };
}

function isLine(line: unknown): line is readonly [string, string] {
  return Array.isArray(line) && line.length === 2 && line.every((name) => typeof name === "string");
}

function texts(fields: Fields, key: string): readonly string[] {
  const found = fields.list(key) ?? [];
  if (found.every((text): text is string => typeof text === "string")) return found;
  throw new BadEnvelope(`model card: every entry of ${key} must be a string`);
}

function integers(fields: Fields, key: string, least: bigint): readonly number[] {
  return (fields.list(key) ?? []).map((value) => {
    const found = asInteger(value, least);
    if (found === undefined) throw new BadEnvelope(`model card: every entry of ${key} must be an integer`);
    return Number(found);
  });
}

function numbers(fields: Fields, key: string, otherwise: number): readonly number[] {
  const found = fields.list(key) ?? [otherwise];
  if (found.length > 0 && found.every((value): value is number => typeof value === "number")) return found;
  throw new BadEnvelope(`model card: ${key} must be numbers`);
}
