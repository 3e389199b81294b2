import type { ModelRow, StreamRow, WorkerRow } from "../src/site/types.js";
import { HOSTILE } from "./fake_site.js";
import { CLASSES } from "./scene.js";

const STARTED_MS = Date.now() - 7_500_000;

export function fakeStreams(many: number, seconds: number, isHostile: boolean): readonly StreamRow[] {
  return Array.from({ length: many }, (_, number): StreamRow => {
    const isOld = number === 4;
    const name = (text: string) => (isHostile ? HOSTILE : text);
    return {
      key: `s${number}`,
      client: name(`car-${1 + Math.floor(number / 3)}`),
      status: isOld ? "lost" : "ready",
      trouble: number === 5 ? "no worker for yolo_street" : "",
      source: name(["/camera/front/image_raw", "/camera/rear", "street.mp4"][number % 3] ?? ""),
      model: name(number % 3 === 2 ? "yolo_street" : "drive_segmentation"),
      rate: number === 5 ? null : 19.8 - number,
      window: 4,
      queued: number % 3,
      inFlight: 2 + (seconds % 3),
      outcomes: { ok: 48_210 + 20 * seconds, expired: 12 * number, error: number === 5 ? 3 : 0 },
      dropped: number % 2 ? { superseded: 120 + seconds, "window full": 8 } : {},
      spooled: number === 1 ? 341 : 0,
      previews: 1200 + 2 * seconds,
    };
  });
}

export function fakeWorkers(many: number, seconds: number, isHostile: boolean): readonly WorkerRow[] {
  if (!many) return [];
  const name = (text: string) => (isHostile ? HOSTILE : text);
  const worker = (number: number, status: WorkerRow["status"]): WorkerRow => ({
    name: name(`w-gpu-${number}`) + (isHostile ? number : ""),
    status,
    models: number % 2 ? [name("drive_segmentation"), name("mobilenet_v3")] : [name("yolo_street")],
    device: number % 2 ? "NVIDIA H100" : "CPU, 16 cores",
    depth: status === "lost" ? 7 : (5 * number + seconds) % 17,
    capacity: 16,
    serviceTimeUs: 21_400 + 900 * number,
    rate: status === "lost" ? 0 : 58.2 - number,
    counters: { ok: 1_204_331 + 58 * seconds, error: 3, rejected: 12 * number },
    startedMs: STARTED_MS + 60_000 * number,
  });
  return [worker(1, "ready"), worker(2, "ready"), worker(3, "draining"), worker(4, "lost"), worker(5, "stopped")];
}

export function fakeModels(many: number, seconds: number, isHostile: boolean): readonly ModelRow[] {
  if (!many) return [];
  return ["drive_segmentation", "yolo_street", "mobilenet_v3"].map((name, number) => {
    const now = Math.floor(Date.now() / 1000);
    const times = Array.from({ length: 120 }, (_, place) => now - 119 + place);
    const wave = (base: number, by: number) => times.map((time) => base * (1 + 0.25 * Math.sin(time / by + number)));
    return {
      name: isHostile ? HOSTILE + number : name,
      versions: ["1", "2", "3"],
      hash: "xxh3:9f2c1a7b44d08e139f2c1a7b44d08e13",
      backend: "onnx",
      precision: "fp16",
      inputs: ["image UINT8 [-1, 512, 1024, 3]"],
      outputs: ["mask UINT8 [-1, 512, 1024]", "scores FP32 [-1, 7]"],
      classes: number === 2 ? [] : CLASSES,
      labels: number ? {} : { stable: "2", canary: "3" },
      traffic: number ? {} : { "2": 90, "3": 10 },
      servedBy: number === 2 ? [] : ["w-gpu-1", "w-gpu-2"],
      rate: 58.2,
      p50Ms: 27.9,
      p95Ms: 41.2,
      p99Ms: 118,
      rates: { seconds: times, values: { rate: wave(58 + (seconds % 2), 9) } },
      stages: {
        seconds: times,
        values: {
          serverQueue: wave(2.4, 5),
          decode: wave(1.3, 7),
          inference: wave(21, 11),
          postprocess: wave(2.2, 6),
          encode: wave(1.1, 8),
        },
      },
    };
  });
}
