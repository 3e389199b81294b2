import { signal } from "@preact/signals";
import type { ClassInfo, LogEntry, ShownFrame, Tile } from "../src/site/types.js";
import { HOSTILE } from "./fake_site.js";
import { CLASSES, drawScene, HEIGHT, WIDTH } from "./scene.js";

const SOURCES = ["/camera/front/image_raw", "/camera/rear", "/camera/left", "street.mp4", "/gate", "/roof/ptz"];

/** Of six tiles: two of masks, one of boxes, one of a classifier, one that goes stale, one with errors. */
export class FakeTile implements Tile {
  readonly key: string;
  readonly client: string;
  readonly source: string;
  readonly model: string;
  readonly frame = signal<ShownFrame | null>(null);
  readonly isStale = signal(false);
  readonly cause = signal("");
  readonly rate = signal(0);
  readonly gaps = signal(0);
  readonly classes = signal<readonly ClassInfo[]>([]);
  readonly #number: number;
  readonly #isHostile: boolean;
  #sequence = 1200;
  #isVisible = false;

  constructor(number: number, isHostile: boolean) {
    const kind = number % 6;
    this.#number = number;
    this.#isHostile = isHostile;
    this.client = isHostile ? HOSTILE : `car-${1 + Math.floor(number / 3)}`;
    this.source = isHostile ? HOSTILE : (SOURCES[kind] ?? "") + (number > 5 ? ` ${number}` : "");
    const models = [
      "drive_segmentation",
      "drive_segmentation",
      "yolo_street",
      "mobilenet_v3",
      "drive_segmentation",
      "yolo_street",
    ];
    this.model = isHostile ? HOSTILE : (models[kind] ?? "");
    this.key = `${this.client}/${number}/${this.model}`;
    if (kind !== 3) this.classes.value = isHostile ? [{ name: HOSTILE, colour: [1, 2, 3] }] : CLASSES;
  }

  setVisible(isVisible: boolean): void {
    this.#isVisible = isVisible;
  }

  next(moment: number): void {
    const kind = this.#number % 6;
    if (kind === 4 && moment > 3) {
      this.isStale.value = true;
      this.cause.value = "no worker for drive_segmentation";
      this.rate.value = 0;
      return;
    }
    this.#sequence += Math.random() < 0.01 ? 2 : 1;
    if (this.#sequence % 160 === 0) this.gaps.value += 1;
    this.rate.value = Math.round(10 * (19.6 + Math.sin(moment / 2))) / 10;
    if (this.#isVisible) this.frame.value = this.#draw(kind, moment);
  }

  logEntry(): LogEntry {
    const isBad = this.#sequence % 50 === 0;
    const kind = isBad
      ? "error"
      : this.#sequence % 77 === 0
        ? "state"
        : this.#sequence % 91 === 0
          ? "refused"
          : "result";
    const summary = `${this.model} · ${this.client} · ${this.source} · frame ${this.#sequence} · ${isBad ? "expired" : "ok"} · 47.1 ms`;
    const { preview, mask, captureTimeNs, ...rest } = this.frame.peek() ?? { preview: 0, mask: 0, captureTimeNs: 0n };
    return {
      id: ++entryNumber,
      timeMs: Date.now(),
      firstMs: Date.now(),
      count: 1,
      answer: kind === "result" ? () => [{ name: "road", value: "41.2 %" }] : null,
      kind,
      summary,
      detail: { ...rest, capture_time_ns: String(captureTimeNs) },
    };
  }

  #draw(kind: number, moment: number): ShownFrame {
    const scene = drawScene(this.#number, moment);
    this.frame.peek()?.preview?.close();
    const isFailed = kind === 5 && Math.floor(moment) % 4 === 3;
    const hasMask = kind !== 2 && kind !== 3 && kind !== 5;
    const wobble = 1 + 0.3 * Math.sin(3 * moment + this.#number);
    return {
      sequence: this.#sequence,
      captureTimeNs: BigInt(Date.now()) * 1_000_000n,
      receivedMs: performance.now(),
      size: [WIDTH, HEIGHT],
      preview: kind === 1 && this.#number < 6 ? null : scene.picture,
      mask: hasMask && !isFailed ? { ...scene.mask, isPartial: false, scale: null } : null,
      boxes: (kind === 2 || kind === 5) && !isFailed ? scene.boxes : [],
      labels:
        kind === 3
          ? ["street car 0.93", "minibus 0.04", "trolleybus 0.02"].map((text) => (this.#isHostile ? HOSTILE : text))
          : [],
      outcome: isFailed ? "expired" : "ok",
      error: isFailed
        ? { code: "deadline_expired", message: "the deadline passed 12 ms before the worker began" }
        : null,
      modelVersion: "3",
      modelHash: "xxh3:9f2c1a7b44d08e13",
      worker: this.#isHostile ? HOSTILE : `w-gpu-${1 + (this.#number % 2)}`,
      stage: kind === 2 && Math.floor(moment) % 5 === 0 ? "edge" : "worker",
      fallback: kind === 2 && Math.floor(moment) % 10 === 0 ? "server_unavailable" : "",
      timings: timesOf(kind, wobble),
    };
  }
}

let entryNumber = 0;

function timesOf(kind: number, wobble: number) {
  const ms = 1e6 * wobble;
  return {
    clientQueue: kind === 5 ? 6 * ms : 0,
    transmission: kind === 5 ? 4.2 * ms : 0,
    serverQueue: 2.4 * ms * wobble,
    decode: 1.3 * ms,
    preprocess: 0.4 * ms,
    inference: 21 * ms,
    postprocess: 2.2 * ms,
    encode: 1.1 * ms,
  };
}
