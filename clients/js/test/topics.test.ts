import assert from "node:assert/strict";
import { test } from "node:test";
import { type Address, BadTopic, checkName, isName, Topics } from "../src/index.js";

const topics = new Topics();
const ADDRESSES: readonly (readonly [string, Address])[] = [
  ["mqinfer/v1/models/Seg_1/infer/car-7", { kind: "infer", model: "Seg_1", client: "car-7" }],
  ["mqinfer/v1/models/seg/versions/3/infer/car-7", { kind: "infer", model: "seg", version: "3", client: "car-7" }],
  ["mqinfer/v1/workers/gpu-0/infer/seg/car-7", { kind: "lane", worker: "gpu-0", model: "seg", client: "car-7" }],
  ["mqinfer/v1/results/seg/car-7/R-1", { kind: "result", model: "seg", client: "car-7", request: "R-1" }],
  ["mqinfer/v1/models/seg/cancel/car-7", { kind: "cancel", model: "seg", client: "car-7" }],
  ["mqinfer/v1/models/seg/card", { kind: "card", model: "seg" }],
  ["mqinfer/v1/workers/gpu-0/state", { kind: "worker", worker: "gpu-0" }],
  ["mqinfer/v1/clients/car-7/state", { kind: "client", client: "car-7" }],
  ["mqinfer/v1/clients/car-7/preview/camera_front", { kind: "preview", client: "car-7", stream: "camera_front" }],
];
const BUILT = [
  topics.infer("Seg_1", "car-7"),
  topics.infer("seg", "car-7", "3"),
  topics.lane("gpu-0", "seg", "car-7"),
  topics.result("seg", "car-7", "R-1"),
  topics.cancel("seg", "car-7"),
  topics.card("seg"),
  topics.workerState("gpu-0"),
  topics.clientState("car-7"),
  topics.preview("car-7", "/camera/front"),
];

for (const [place, [topic, address]] of ADDRESSES.entries()) {
  test(`builds and parses ${topic}`, () => {
    assert.equal(BUILT[place], topic);
    assert.deepEqual(topics.parse(topic), address);
  });
}

for (const topic of [
  "",
  "mqinfer/v1",
  "mqinfer/v1/",
  "mqinfer/v2/models/seg/card",
  "mqinfer/v1/models//card",
  "mqinfer/v1/models/control/card",
  "mqinfer/v1/models/+/card",
  "mqinfer/v1/models/seg/card/more",
  "mqinfer/v1/models/seg\n/card",
  "mqinfer/v1/workers/GPU/state",
  "mqinfer/v1/workers/../state",
  "mqinfer/v1/clients/car\u0000/state",
  "mqinfer/v1/results/seg/car-7/",
  `mqinfer/v1/results/seg/car-7/${"r".repeat(65)}`,
  "mqinfer/v1/models/seg/versions/03/infer/car-7",
  "mqinfer/v1/clients/car-7/preview/a b",
  "mqinfer/v1/__proto__/seg/card",
]) {
  test(`refuses the topic ${JSON.stringify(topic)}`, () => {
    assert.throws(() => topics.parse(topic), BadTopic);
  });
}

test("no name with a wildcard, a slash or a NUL gets into a topic", () => {
  for (const name of ["", "+", "#", "a/b", "a#", "a\0", "a b", "é", "a".repeat(65)]) {
    for (const kind of ["client", "worker", "model", "version", "request", "stream"] as const) {
      assert.equal(isName(kind, name), false, `${kind} ${name}`);
      assert.throws(() => checkName(kind, name), BadTopic);
    }
  }
});

test("names follow the rule of their kind", () => {
  assert.deepEqual([isName("model", "Seg"), isName("client", "Seg")], [true, false]);
  assert.deepEqual([isName("model", "_seg"), isName("worker", "_seg")], [true, false]);
  assert.deepEqual([isName("version", "0"), isName("version", "00")], [true, false]);
});

test("the level of a preview is made of the stream's name, whatever that is", () => {
  const level = (source: string) => topics.preview("car-7", source).split("/").at(-1);
  const sources = ["/camera/front", "", "+/#", "__a", "grün🙂", "a".repeat(70)];
  assert.deepEqual(sources.map(level), ["camera_front", "stream", "stream", "a", "gr_n_", "a".repeat(64)]);
});

test("filters lie below the root", () => {
  const own = new Topics("site/a");
  assert.equal(own.results, "site/a/results/+/+/+");
  assert.equal(own.resultsOfModel("seg"), "site/a/results/seg/+/+");
  assert.equal(own.resultsOfClient("car-7"), "site/a/results/+/car-7/+");
  assert.equal(own.cards, "site/a/models/+/card");
  assert.equal(own.workerStates, "site/a/workers/+/state");
  assert.equal(own.clientStates, "site/a/clients/+/state");
  assert.equal(own.previews, "site/a/clients/+/preview/+");
});

test("a root has no wildcards, empty levels or control characters", () => {
  for (const root of ["", "/a", "a/", "a//b", "a/+", "#", "$SYS", "a\nb", "é".repeat(129)]) {
    assert.throws(() => new Topics(root), BadTopic);
  }
  assert.equal(new Topics("é".repeat(128)).card("m"), `${"é".repeat(128)}/models/m/card`);
});
