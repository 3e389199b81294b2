import assert from "node:assert/strict";
import { test } from "node:test";
import {
  BadEnvelope,
  BadTensor,
  BadTopic,
  LimitExceeded,
  readCard,
  readClientState,
  readWorkerState,
  Topics,
} from "../src/index.js";
import { golden } from "./files.js";

const topics = new Topics();
const EMPTY = new Uint8Array(0);

function json(value: unknown): Uint8Array {
  return new TextEncoder().encode(typeof value === "string" ? value : JSON.stringify(value));
}

function worker(payload: Uint8Array, name = "gpu-0") {
  return readWorkerState(topics, topics.workerState(name), payload);
}

function client(payload: Uint8Array) {
  return readClientState(topics, topics.clientState("car-7"), payload);
}

function card(payload: Uint8Array, name = "seg") {
  return readCard(topics, topics.card(name), payload);
}

test("reads the golden state of a worker", () => {
  const state = worker(golden("state.json"));
  assert.equal(state?.status, "ready");
  assert.equal(state?.boot, 17);
  assert.deepEqual(
    state?.models.map(({ name, version, isDefault }) => [name, version, isDefault]),
    [["seg", "3", true]],
  );
  assert.deepEqual([state?.capacity, state?.depth, state?.serviceTimeUs], [16, 2, 900]);
  assert.deepEqual({ ...state?.counters }, { ok: 41 });
});

test("an empty payload removes a state or a card", () => {
  assert.equal(worker(EMPTY), undefined);
  assert.equal(client(EMPTY), undefined);
  assert.equal(card(EMPTY), undefined);
});

test("reads the state of an edge with its streams", () => {
  const stream = {
    ...{ source: "/camera/front", model: "seg", rate: 9.5, window: 4, queued: 1, in_flight: 2, spooled: 3 },
    ...{ outcomes: { ok: 40, expired: 1 }, dropped: { "slow link": 2 }, previews: 5, previews_dropped: 6, later: [] },
  };
  const state = client(
    json({
      ...{ client: "car-7", status: "ready", boot: 1_700_000_000_000_000, source: "bag", model: "seg", window: 4 },
      ...{ pending: [{ model: "seg", queued: 1, in_flight: 2, oldest_ms: 30 }], streams: [stream, {}], unknown: 1 },
    }),
  );
  assert.deepEqual(state?.pending, [{ model: "seg", queued: 1, inFlight: 2, oldestMs: 30 }]);
  const [first, second] = state?.streams ?? [];
  assert.deepEqual([first?.rate, first?.inFlight, first?.previewsDropped], [9.5, 2, 6]);
  assert.deepEqual({ ...first?.outcomes }, { ok: 40, expired: 1 });
  assert.deepEqual([second?.source, second?.rate, { ...second?.dropped }], ["", 0, {}]);
});

test("a state without streams says nothing of them, and of more than 32 the others are ignored", () => {
  const state = { client: "car-7", status: "lost", boot: 1 };
  assert.equal(client(json(state))?.streams, undefined);
  assert.equal(client(json({ ...state, streams: Array.from({ length: 40 }, () => ({})) }))?.streams?.length, 32);
});

test("a state that names another than its topic is refused", () => {
  assert.throws(() => worker(golden("state.json"), "gpu-1"), BadTopic);
  assert.throws(() => client(json({ client: "car-8", status: "ready", boot: 1 })), BadTopic);
  assert.throws(() => card(golden("card.json"), "other"), BadTopic);
  assert.throws(() => readWorkerState(topics, topics.clientState("gpu-0"), EMPTY), BadTopic);
  assert.throws(() => readClientState(topics, topics.workerState("car-7"), EMPTY), BadTopic);
  assert.throws(() => readCard(topics, topics.workerState("seg"), EMPTY), BadTopic);
});

const WRONG: readonly (readonly [string, unknown])[] = [
  ["no JSON", "{"],
  ["an array", []],
  ["nil", null],
  ["nested too deeply", "[".repeat(30_000)],
  ["another nesting", `{"worker":${"[".repeat(30_000)}${"]".repeat(30_000)}}`],
  ["no worker", { status: "ready", boot: 1 }],
  ["an unknown status", { worker: "gpu-0", status: "fine", boot: 1 }],
  ["a boot that is no integer", { worker: "gpu-0", status: "ready", boot: 1.5 }],
  ["a negative depth", { worker: "gpu-0", status: "ready", boot: 1, depth: -1 }],
  ["a model with a wildcard", { worker: "gpu-0", status: "ready", boot: 1, models: [{ name: "+" }] }],
  ["a counter that is text", { worker: "gpu-0", status: "ready", boot: 1, counters: { ok: "<b>" } }],
];
for (const [what, state] of WRONG) {
  test(`refuses the state of a worker: ${what}`, () => {
    assert.throws(() => worker(json(state)), BadEnvelope);
  });
}

test("a state above 64 KiB and a card above 1 MiB are not parsed", () => {
  assert.throws(() => worker(json(`{"x":"${"a".repeat(65536)}"}`)), LimitExceeded);
  assert.throws(() => card(json(`{"x":"${"a".repeat(1 << 20)}"}`)), LimitExceeded);
});

test("text that is not UTF-8 is refused", () => {
  assert.throws(() => worker(new Uint8Array([0x7b, 0xff, 0x7d])), BadEnvelope);
});

test("no key of a state becomes the prototype of anything", () => {
  const text = '{"worker":"gpu-0","status":"ready","boot":1,"__proto__":{"x":1},"counters":{"__proto__":7,"ok":1}}';
  const state = worker(json(text));
  assert.deepEqual(Object.keys(state?.counters ?? {}), ["__proto__", "ok"]);
  assert.equal(({} as Record<string, unknown>).x, undefined);
});

test("reads the golden card", () => {
  const found = card(golden("card.json"));
  assert.deepEqual([found?.name, found?.version, found?.versions], ["seg", "3", ["1", "3"]]);
  assert.deepEqual(found?.classes, [{ name: "road", colour: [128, 64, 128] }]);
  assert.deepEqual([found?.image?.width, found?.image?.height, found?.image?.resize], [968, 608, "stretch"]);
  assert.deepEqual(found?.outputs, [{ name: "mask", datatype: "UINT8", shape: [-1, 608, 968] }]);
});

test("a card of the Open Inference Protocol alone is read", () => {
  const found = card(json({ name: "seg", platform: "onnx_onnxv1", versions: ["1", "2"] }));
  assert.deepEqual([found?.version, found?.encodings, found?.classes], ["2", ["raw"], []]);
});

const CARD = { name: "seg", platform: "p" };
const SPEC = { name: "x", datatype: "FP8", shape: [] };
test("refuses wrong cards", () => {
  assert.throws(() => card(json({ ...CARD, inputs: [SPEC] })), BadTensor);
  assert.throws(() => card(json({ ...CARD, inputs: [{ ...SPEC, datatype: "FP32", shape: [-2] }] })), BadEnvelope);
  assert.throws(() => card(json({ ...CARD, versions: [1] })), BadEnvelope);
  const image = { input: "x", width: 1 << 14, height: 1 << 14 };
  assert.throws(() => card(json({ ...CARD, parameters: { image } })), LimitExceeded);
  for (const colour of [[1, 2], [1, 2, 256], [1, 2, -1], "red", [1, 2, 3, 4]]) {
    assert.throws(() => card(json({ ...CARD, parameters: { classes: [{ name: "a", colour }] } })), BadEnvelope);
  }
});
