/** A site without a broker, and messages as its parties send them. */

import { CONTENT_TYPE, encodeReply, encodeTensor, type Reply } from "mqinfer-client";
import { openSite, type Site, type SiteConfig } from "../src/site/index.js";
import { type FakeLink, type FakePlatform, fakePlatform, settle } from "./fakes.js";

export const ROOT = "mqinfer/v1";
export const CONFIG = { root: ROOT, mqtt: "mqtt", login: "none" } as const;
const TIMES = { serverQueue: 1e6, decode: 2e6, preprocess: 1e6, inference: 10e6, postprocess: 1e6, encode: 1e6 };

export async function opened(
  config: SiteConfig = CONFIG,
  unreadable: string | null = null,
): Promise<{ site: Site; platform: FakePlatform; link: FakeLink }> {
  const platform = fakePlatform();
  platform.unreadable = unreadable;
  const site = openSite(config, platform);
  await settle();
  return { site, platform, link: platform.links[0] as FakeLink };
}

export function result(
  link: FakeLink,
  client: string,
  source: string,
  sequence: number,
  more: Partial<Reply> = {},
): void {
  const id = `${client}-${sequence}`;
  const model = more.modelName ?? "seg";
  const payload = encodeReply({
    id,
    modelName: model,
    modelVersion: "3",
    worker: "w-1",
    modelHash: "sha256:00",
    timings: { clientQueue: 0, transmission: 0, ...TIMES },
    outputs: [encodeTensor("mask", new TextEncoder().encode(mark(sequence)), { shape: [1, 2, 4] })],
    capture: { source, sequence, captureTimeNs: BigInt(sequence) },
    ...more,
  });
  link.deliver(`${ROOT}/results/${model}/${client}/${id}`, payload, { contentType: CONTENT_TYPE });
}

export function workerState(link: FakeLink, worker: string, status: string, more: object = {}): void {
  const model = { name: "seg", version: "3", default: true, device: "cpu" };
  link.deliver(`${ROOT}/workers/${worker}/state`, {
    ...{ worker, status, boot: 1_700_000_000_000_000, models: [model], capacity: 16, depth: 2, service_time_us: 900 },
    ...{ counters: { ok: 41 }, ...more },
  });
}

export function clientState(link: FakeLink, client: string, status: string, more: object = {}): void {
  link.deliver(`${ROOT}/clients/${client}/state`, {
    ...{ client, status, boot: 5, source: "drive.mcap", model: "seg", window: 4, ...more },
  });
}

export function card(link: FakeLink, name: string, classes: readonly object[] = []): void {
  link.deliver(`${ROOT}/models/${name}/card`, {
    ...{ name, platform: "onnx_onnxv1", versions: ["3"] },
    inputs: [{ name: "image", datatype: "UINT8", shape: [-1, 32, 64, 3] }],
    outputs: [{ name: "mask", datatype: "UINT8", shape: [-1, 32, 64] }],
    parameters: { version: "3", classes, model_hash: "sha256:00", image: { input: "image", width: 64, height: 32 } },
  });
}

export function mark(sequence: number): string {
  return String(sequence).padStart(8, "0");
}
