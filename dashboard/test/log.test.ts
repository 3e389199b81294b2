import assert from "node:assert/strict";
import { test } from "node:test";
import type { EncodedTensor, Reply } from "mqinfer-client";
import { readAnswer } from "../src/site/live/answer_lines.js";
import { Log } from "../src/site/log.js";
import type { StreamRow } from "../src/site/types.js";
import { FakeClock, tensor } from "./fakes.js";
import { CONFIG, card, clientState, opened, result, workerState } from "./site_fakes.js";

const FAILED: Partial<Reply> = {
  outcome: "error",
  error: { code: "model_failed", message: "no memory" },
  outputs: [],
};
const STREAM = { source: "/front", model: "odd_seg", rate: 20, window: 4 };

function stated(outcomes: object, dropped: object) {
  return { streams: [{ ...STREAM, outcomes, dropped }] };
}

test("a stream of 7.5 results a second is listed whole", () => {
  const clock = new FakeClock();
  const log = new Log(clock);
  for (let sequence = 0; sequence < 75; sequence++) {
    log.add("result", `frame ${sequence}`, () => ({}), { sender: "car-1" });
    clock.advance(1000 / 7.5);
  }
  assert.equal(log.read().length, 75);
  assert.deepEqual(log.counts().result, { came: 75, listed: 75 });
});

test("of a flood of results each stream has its share, each line says how many it stands for, and all are counted", () => {
  const clock = new FakeClock();
  const log = new Log(clock);
  for (let sequence = 0; sequence < 200; sequence++) {
    for (let stream = 0; stream < 4; stream++) log.add("result", `car-${stream}`, () => ({}), { sender: `${stream}` });
    clock.advance(50);
  }
  const lines = log.read();
  const of = (name: string) => lines.filter((line) => line.summary === name);
  for (const name of ["car-0", "car-1", "car-2", "car-3"]) assert.ok(of(name).length >= 20, name);
  assert.ok(lines.every((line) => line.count >= 1));
  assert.ok(lines.some((line) => line.count > 1));
  const { came, listed } = log.counts().result ?? { came: 0, listed: 0 };
  assert.equal(came, 800);
  assert.ok(listed >= 150 && listed < came, String(listed));
});

test("no error is left out: those of one stream with one code are one line with their number", async () => {
  const { link, platform, site } = await opened();
  for (let sequence = 0; sequence < 100; sequence++) {
    for (const source of ["/front", "/rear"]) result(link, "car-1", source, sequence, FAILED);
    platform.clock.advance(50);
  }
  const errors = site.log.peek().filter((entry) => entry.kind === "error");
  assert.deepEqual(
    errors.map(({ summary, count }) => [summary, count]),
    [
      ["car-1 /rear 99 seg: model_failed: no memory", 100],
      ["car-1 /front 99 seg: model_failed: no memory", 100],
    ],
  );
  const { frames } = (errors[0]?.detail ?? {}) as { frames: number[] };
  assert.deepEqual([frames.length, frames.at(-1)], [32, 99]);
  platform.clock.advance(60_000);
  result(link, "car-1", "/rear", 100, FAILED);
  platform.clock.advance(250);
  assert.equal(site.log.peek().length, 3);
});

test("the states of a whole fleet that goes at once are listed, each of them", async () => {
  const { link, platform, site } = await opened();
  for (let worker = 0; worker < 150; worker++) workerState(link, `w-${worker}`, "ready");
  platform.clock.advance(250);
  assert.equal(site.log.peek().length, 150);
});

test("errors that a client settled itself reach the log, and those that workers sent are not told twice", async () => {
  const { link, platform, site } = await opened();
  clientState(link, "car-1", "ready", stated({ ok: 3 }, {}));
  for (const sequence of [1, 2]) result(link, "car-1", "/front", sequence, { ...FAILED, modelName: "odd_seg" });
  clientState(link, "car-1", "ready", stated({ ok: 3, error: 28 }, { model_failed: 2, no_worker: 26, superseded: 9 }));
  platform.clock.advance(250);
  const errors = site.log.peek().filter((entry) => entry.kind === "error");
  assert.deepEqual(
    errors.map(({ summary, count }) => [summary, count]),
    [
      ["car-1 /front odd_seg: no_worker: settled by the client", 26],
      ["car-1 /front 2 odd_seg: model_failed: no memory", 2],
    ],
  );
});

test("a stream whose frames all fail is in trouble, and a worker that comes back ends it", async () => {
  const { link, platform, site } = await opened();
  const row = () => site.streams.peek().find((each) => each.client === "car-1") as StreamRow;
  workerState(link, "w-1", "ready", { models: [{ name: "odd_seg", version: "1" }] });
  clientState(link, "car-1", "ready", stated({ ok: 5 }, { no_worker: 1 }));
  platform.clock.advance(250);
  assert.equal(row().trouble, "");
  clientState(link, "car-1", "ready", stated({ ok: 6 }, { no_worker: 1 }));
  clientState(link, "car-1", "ready", stated({ ok: 6 }, { no_worker: 1, timeout: 1 }));
  platform.clock.advance(250);
  assert.equal(row().trouble, "", "one frame is not every frame");
  clientState(link, "car-1", "ready", stated({ ok: 6 }, { no_worker: 1, timeout: 2 }));
  platform.clock.advance(250);
  assert.equal(row().trouble, "the last frames failed: timeout");
  workerState(link, "w-1", "lost");
  platform.clock.advance(3000);
  assert.equal(row().trouble, "no worker for odd_seg");
  const [tile] = site.tiles.peek();
  assert.deepEqual([tile?.isStale.peek(), tile?.cause.peek()], [true, "no worker for odd_seg"]);
  workerState(link, "w-1", "ready", { models: [{ name: "odd_seg", version: "1" }], boot: 1_700_000_000_000_001 });
  clientState(link, "car-1", "ready", stated({ ok: 9 }, { no_worker: 1, timeout: 2 }));
  platform.clock.advance(250);
  assert.deepEqual([row().trouble, tile?.cause.peek()], ["", ""]);
});

test("a client that states no streams is in trouble when its results are errors", async () => {
  const { link, platform, site } = await opened();
  workerState(link, "w-1", "ready");
  for (const sequence of [1, 2]) result(link, "script", "", sequence, FAILED);
  platform.clock.advance(250);
  assert.equal(site.streams.peek()[0]?.trouble, "the last frames failed: model_failed");
  result(link, "script", "", 3);
  platform.clock.advance(250);
  assert.equal(site.streams.peek()[0]?.trouble, "");
});

test("where the broker hides the workers, nothing is said of who serves a model", async () => {
  const { link, platform, site } = await opened(CONFIG, "workers");
  clientState(link, "car-1", "ready", stated({}, {}));
  platform.clock.advance(250);
  assert.equal(site.streams.peek()[0]?.trouble, "");
});

test("an opened result says its classes and shares, boxes and labels", async () => {
  const { link, platform, site } = await opened();
  card(link, "seg", [{ name: "road", colour: [1, 2, 3] }]);
  result(link, "car-1", "/front", 7);
  platform.clock.advance(250);
  const lines = site.log
    .peek()
    .find((entry) => entry.kind === "result")
    ?.answer?.();
  assert.deepEqual(lines?.[0], { name: "class 48", value: "87.5 %" });
  const numbers = (name: string, data: Float32Array, shape: number[]): EncodedTensor =>
    tensor(name, new Uint8Array(data.buffer), { datatype: "FP32", shape });
  const outputs = [
    numbers("boxes", new Float32Array([12.2, 40, 88, 120]), [1, 4]),
    numbers("scores", new Float32Array([0.93]), [1]),
    numbers("classes", new Float32Array([0]), [1]),
  ];
  const decodeTensor = ({ bytes, ...more }: EncodedTensor) => ({
    ...more,
    data: new Float32Array(bytes.slice().buffer),
  });
  const decoder = { ...platform.decoder, decodeTensor };
  assert.deepEqual(readAnswer(outputs, [{ name: "person", colour: [1, 2, 3] }], decoder), [
    { name: "person", value: "0.93 at 12, 40 to 88, 120" },
  ]);
  const broken = {
    ...decoder,
    decodeTensor() {
      throw new Error("cut off");
    },
  };
  assert.deepEqual(readAnswer(outputs, [], broken), [{ name: "not readable", value: "cut off" }]);
});
