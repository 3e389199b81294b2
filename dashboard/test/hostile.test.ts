import assert from "node:assert/strict";
import { test } from "node:test";
import { CONTENT_TYPE, checksum, encodeReply, encodeTensor, type Reply } from "mqinfer-client";
import { MOST_ROWS, MOST_TILES } from "../src/site/bounds.js";
import { openSite, type Site } from "../src/site/index.js";
import { plain } from "../src/site/log.js";
import { type FakeLink, type FakePlatform, fakePlatform, randomNumbers, settle, tensor } from "./fakes.js";

const ROOT = "mqinfer/v1";
const HTML = '<img src=x onerror="alert(1)">';
const MASK = encodeTensor("mask", new Uint8Array(8), { shape: [2, 4] });

async function opened(): Promise<{ site: Site; platform: FakePlatform; link: FakeLink }> {
  const platform = fakePlatform();
  const site = openSite({ root: ROOT, mqtt: "mqtt", login: "none" }, platform);
  await settle();
  return { site, platform, link: platform.links[0] as FakeLink };
}

function result(
  link: FakeLink,
  client: string,
  more: Partial<Reply> = {},
  properties: Record<string, string> = {},
): void {
  const payload = encodeReply({ id: "r", modelName: "seg", outputs: [MASK], ...more });
  const topic = `${ROOT}/results/${more.modelName ?? "seg"}/${client}/r`;
  link.deliver(topic, payload, { contentType: CONTENT_TYPE, userProperties: properties });
}

test("2,000 streams make 64 tiles and 500 rows at most; the rest is counted", async () => {
  const { link, platform, site } = await opened();
  for (let number = 0; number < 2000; number++) {
    result(link, `c-${number % 700}`, { capture: { source: `s-${number}`, sequence: 0 } });
    if (number % 50 === 0) platform.clock.advance(250);
  }
  platform.clock.advance(1000);
  assert.equal(site.tiles.peek().length, MOST_TILES);
  assert.ok(site.streams.peek().length <= MOST_ROWS);
  const dropped = site.dropped.peek();
  assert.equal((dropped["too many streams"] ?? 0) + (dropped["slow page"] ?? 0), 2000 - MOST_TILES);
});

test("thousands of workers, clients and models make 500 rows of each", async () => {
  const { link, platform, site } = await opened();
  for (let number = 0; number < 2000; number++) {
    const name = `x-${number}`;
    const retained = { retain: true };
    link.deliver(`${ROOT}/workers/${name}/state`, { worker: name, status: "ready", boot: 1 }, retained);
    link.deliver(`${ROOT}/clients/${name}/state`, { client: name, status: "ready", boot: 1 }, retained);
    link.deliver(`${ROOT}/models/${name}/card`, { name, platform: "onnx", versions: [] }, retained);
  }
  platform.clock.advance(1000);
  for (const rows of [site.workers, site.streams, site.models]) assert.equal(rows.peek().length, MOST_ROWS);
  const { "too many workers": workers, "too many clients": clients, "too many models": models } = site.dropped.peek();
  assert.deepEqual([workers, clients, models], [1500, 1500, 1500]);
  assert.ok(site.log.peek().length <= 650);
});

test("a flood is read in part, and another client's stream goes on without a false gap", async () => {
  const { link, platform, site } = await opened();
  for (let number = 0; number < 10_000; number++) {
    result(link, "flood", { capture: { source: "x", sequence: number } });
    if (number % 25 === 0) result(link, "car-1", { capture: { source: "front", sequence: number / 25 } });
    platform.clock.advance(2);
  }
  platform.clock.advance(250);
  const tiles = new Map(site.tiles.peek().map((tile) => [tile.client, tile]));
  const rates = ["car-1", "flood"].map((client) => tiles.get(client)?.rate.peek() ?? 0);
  assert.ok(Math.abs((rates[0] ?? 0) - 20) < 2 && Math.abs((rates[1] ?? 0) - 500) < 50, String(rates));
  assert.deepEqual(
    [...tiles.values()].map((tile) => tile.gaps.peek()),
    [0, 0],
  );
  const skipped = site.dropped.peek()["slow page"] ?? 0;
  assert.ok(skipped > 4000 && skipped < 8500, String(skipped));
});

test("a page that is behind reads less; that the timers of a hidden tab are late does not count", async () => {
  for (const hidden of [false, true]) {
    const { link, platform, site } = await opened();
    platform.hidden = hidden;
    for (let times = 0; times < 6; times++) {
      platform.clock.advance(250);
      platform.clock.block(1500);
    }
    for (let number = 0; number < 100; number++) result(link, "car-1", { capture: { source: "s", sequence: number } });
    platform.clock.advance(250);
    const skipped = site.dropped.peek()["slow page"] ?? 0;
    assert.ok(hidden ? skipped === 25 : skipped > 90, String(skipped));
  }
});

test("HTML and the names of prototypes in every string are texts like others, and long ones are cut", async () => {
  const { link, platform, site } = await opened();
  const long = HTML.repeat(20);
  const counters = JSON.parse('{"__proto__": 1, "constructor": 2}');
  const worker = { worker: "w-1", status: "ready", boot: 1, counters };
  const model = { name: "seg", version: long, precision: HTML, backend: HTML, device: long };
  link.deliver(`${ROOT}/workers/w-1/state`, JSON.stringify({ ...worker, models: [model] }));
  const streams = [{ source: HTML, model: "seg", rate: 1, outcomes: counters, dropped: { [long]: 1 } }];
  link.deliver(`${ROOT}/clients/car-1/state`, { client: "car-1", status: "ready", boot: 1, source: HTML, streams });
  const parameters = { model_hash: HTML, labels: { [HTML]: "1" }, classes: [{ name: long, colour: [0, 0, 0] }] };
  link.deliver(`${ROOT}/models/seg/card`, { name: "seg", platform: HTML, versions: [HTML], parameters });
  result(link, "car-1", {
    outcome: "error",
    outputs: [],
    error: { code: HTML, message: long },
    capture: { source: long, sequence: 1, frameId: HTML },
    worker: HTML,
    parameters: JSON.parse(`{"__proto__": ${JSON.stringify(HTML)}, "fallback": ${JSON.stringify(HTML)}}`),
  });
  platform.clock.advance(1000);
  const tile = site.tiles.peek().find((each) => each.source !== HTML);
  tile?.setVisible(true);
  await settle();
  assert.equal(tile?.frame.peek()?.fallback, HTML);
  assert.equal(site.streams.peek()[0]?.source, HTML);
  assert.equal(site.streams.peek()[0]?.outcomes.constructor, 2);
  assert.ok(Object.hasOwn(site.workers.peek()[0]?.counters ?? {}, "__proto__"));
  assert.equal(({} as Record<string, unknown>).fallback, undefined);
  const shown = [site.workers, site.streams, site.models, site.log].map((each) => each.peek());
  assert.ok(longest(shown) <= 1000);
  assert.ok(longest(site.log.peek().map((entry) => entry.summary)) <= 200);
  assert.equal(site.dropped.peek()["bad message"], undefined);
});

test("what is broken, too large, kept by the broker or not of its topic is counted by reason, and nothing else", async () => {
  const { link, platform, site } = await opened();
  const good = encodeReply({ id: "r", modelName: "seg", outputs: [MASK], capture: { source: "s", sequence: 1 } });
  const preview = encodeReply({ id: "r", modelName: "seg", outputs: [MASK] });
  const topic = `${ROOT}/results/seg/car-1/r`;
  link.deliver(topic, good, { retain: true });
  link.deliver(topic, "nonsense");
  link.deliver(topic, '{"model_name": "seg"}');
  link.deliver(topic, new Uint8Array(17 << 20));
  link.deliver(topic, good, { userProperties: { xxh3: "0".repeat(16) } });
  link.deliver(`${ROOT}/results/other/car-1/r`, good);
  link.deliver(`${ROOT}/results/control/car-1/r`, "{}");
  link.deliver(`${ROOT}/results/a/b/c/d/e`, good);
  link.deliver("elsewhere", good);
  link.deliver(`${ROOT}/clients/car-1/preview/s`, preview);
  link.deliver(`${ROOT}/clients/car-1/preview/s`, preview, { retain: true });
  link.deliver(`${ROOT}/clients/car-1/preview/s`, new Uint8Array(300 << 10));
  link.deliver(`${ROOT}/workers/w-1/state`, { worker: "w-2", status: "ready", boot: 1 });
  link.deliver(`${ROOT}/workers/w-1/state`, '{"worker": "w-1"');
  link.deliver(`${ROOT}/clients/car-1/state`, new Uint8Array(100 << 10));
  platform.clock.advance(1000);
  assert.deepEqual(site.dropped.peek(), {
    "bad message": 3,
    corrupted: 1,
    "json result": 1,
    retained: 2,
    "too large": 3,
    "wrong topic": 4,
  });
  assert.deepEqual(
    [site.tiles, site.workers, site.streams].map((each) => each.peek().length),
    [0, 0, 0],
  );
  assert.ok(site.log.peek().every((entry) => entry.kind === "refused"));
});

test("a right checksum is accepted", async () => {
  const { link, platform, site } = await opened();
  const payload = encodeReply({ id: "r", modelName: "seg", outputs: [MASK], capture: { source: "s", sequence: 1 } });
  link.deliver(`${ROOT}/results/seg/car-1/r`, payload, { userProperties: { xxh3: checksum(payload) } });
  platform.clock.advance(250);
  assert.equal(site.tiles.peek().length, 1);
  assert.deepEqual(site.dropped.peek(), {});
});

test("a mask that claims 100 GB is refused with its error shown, and so is a preview of too many pixels", async () => {
  const { link, platform, site } = await opened();
  const claim = tensor("mask", new Uint8Array(64), { shape: [1, 316_228, 316_228], encoding: "mask" });
  result(link, "car-1", { outputs: [claim], capture: { source: "s", sequence: 1 } });
  const picture = tensor("preview", new Uint8Array(64), { shape: [60_000, 60_000, 3], encoding: "jpeg" });
  const huge = { picture_width: 60_000, picture_height: 60_000 };
  const payload = encodeReply({ id: "r", modelName: "seg", outputs: [picture], parameters: huge });
  link.deliver(`${ROOT}/clients/car-1/preview/s`, payload);
  platform.clock.advance(250);
  const [tile] = site.tiles.peek();
  tile?.setVisible(true);
  await settle();
  const refusals = Object.values(site.dropped.peek()).reduce((sum, each) => sum + each, 0);
  assert.ok(refusals >= 1, JSON.stringify(site.dropped.peek()));
  assert.equal(tile?.frame.peek()?.mask ?? null, null);
});

test("random bytes on any topic never throw, and open nothing", async () => {
  const { link, platform, site } = await opened();
  const random = randomNumbers(7);
  const topics = [
    "results/seg/c/r",
    "clients/c/preview/s",
    "clients/c/state",
    "workers/w/state",
    "models/seg/card",
    "x",
    "",
  ];
  const good = encodeReply({ id: "r", modelName: "seg", outputs: [MASK], capture: { source: "s", sequence: 1 } });
  for (let count = 0; count < 5000; count++) {
    const bytes = random() < 0.5 ? good.slice() : new Uint8Array(Math.floor(random() * 200));
    for (let flips = 1 + random() * 10; flips > 0; flips--) bytes[Math.floor(random() * bytes.length)] = random() * 256;
    link.deliver(`${ROOT}/${topics[Math.floor(random() * topics.length)]}`, bytes);
    platform.clock.advance(5);
  }
  for (const tile of site.tiles.peek()) tile.setVisible(true);
  await settle();
  assert.ok(site.tiles.peek().length <= MOST_TILES);
  assert.ok(site.log.peek().length <= 650);
  site.close();
});

test("a detail of the log has a bounded size, whatever it is made of, and is plain JSON", () => {
  const cycle: Record<string, unknown> = { big: 2n ** 60n, bytes: new Uint8Array(9), nan: Number.NaN };
  cycle.self = cycle;
  const wide = Array.from({ length: 1000 }, () => ({ text: "x".repeat(10_000), list: Array(1000).fill(1) }));
  const text = JSON.stringify(plain({ cycle, wide, deep: [[[[[[[[[1]]]]]]]]] }));
  assert.ok(text.length < 100_000, String(text.length));
  assert.match(text, /"big":"1152921504606846976","bytes":"9 bytes","nan":"NaN"/);
});

/** Return the length of the longest text in a value. */
function longest(value: unknown): number {
  if (typeof value === "string") return value.length;
  if (typeof value !== "object" || value === null) return 0;
  return Math.max(0, ...Object.entries(value).flatMap(([key, each]) => [key.length, longest(each)]));
}
