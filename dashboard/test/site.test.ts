import assert from "node:assert/strict";
import { test } from "node:test";
import { CONTENT_TYPE, encodeReply, type Reply } from "mqinfer-client";
import { openSite } from "../src/site/index.js";
import { type FakeLink, fakePlatform, settle, tensor, textOf } from "./fakes.js";
import { CONFIG, card, clientState, mark, opened, ROOT, result, workerState } from "./site_fakes.js";

function previewOf(link: FakeLink, client: string, source: string, sequence: number, more: Partial<Reply> = {}): void {
  const payload = encodeReply({
    id: "00",
    modelName: "seg",
    outputs: [tensor("preview", new TextEncoder().encode(mark(sequence)), { shape: [2, 4, 3], encoding: "jpeg" })],
    capture: { source, sequence, captureTimeNs: BigInt(sequence) },
    parameters: { picture_width: 64, picture_height: 32 },
    ...more,
  });
  link.deliver(`${ROOT}/clients/${client}/preview/front`, payload, { contentType: CONTENT_TYPE });
}

test("the page subscribes to states, cards, previews and results, and publishes nothing", async () => {
  const { link, platform, site } = await opened();
  assert.deepEqual(
    link.filters.map((each) => each.slice(ROOT.length + 1)),
    ["models/+/card", "workers/+/state", "clients/+/state", "clients/+/preview/+", "results/+/+/+"],
  );
  assert.equal(link.options.url, "ws://page/mqtt");
  assert.equal(site.connection.peek().status, "connected");
  site.close();
  await settle();
  assert.ok(link.isClosed);
  assert.equal(platform.clock.timers, 0);
});

test("a result and the preview of the same frame become a tile with the card's classes", async () => {
  const { link, platform, site } = await opened();
  card(link, "seg", [{ name: "road", colour: [1, 2, 3] }]);
  clientState(link, "car-1", "ready");
  previewOf(link, "car-1", "/front", 7);
  result(link, "car-1", "/front", 7);
  platform.clock.advance(250);
  const [tile] = site.tiles.peek();
  assert.ok(tile);
  tile.setVisible(true);
  await settle();
  const frame = tile.frame.peek();
  assert.equal(tile.source, "/front");
  assert.deepEqual(tile.classes.peek(), [{ name: "road", colour: [1, 2, 3] }]);
  assert.equal(frame?.sequence, 7);
  assert.equal(frame.captureTimeNs, 7n);
  assert.deepEqual(frame.size, [64, 32]);
  assert.deepEqual([frame.mask?.width, frame.mask?.height], [4, 2]);
  assert.equal(frame.mask && textOf(frame.mask.data), mark(7));
  assert.equal(frame.worker, "w-1");
  assert.equal(frame.timings.inference, 10e6);
  assert.equal(tile.isStale.peek(), false);
  platform.clock.advance(10_000);
  assert.equal(tile.isStale.peek(), true);
});

test("rows of workers, streams and models follow states and results", async () => {
  const { link, platform, site } = await opened();
  card(link, "seg");
  workerState(link, "w-1", "ready");
  clientState(link, "car-1", "ready", {
    streams: [
      { source: "/front", model: "seg", rate: 20.5, window: 4, queued: 1, outcomes: { ok: 7 }, dropped: { old: 2 } },
    ],
  });
  clientState(link, "car-2", "ready");
  for (let sequence = 0; sequence < 40; sequence++) {
    result(link, "car-1", "/front", sequence);
    result(link, "script", "", sequence, { capture: {} });
    platform.clock.advance(50);
  }
  platform.clock.advance(1500);
  const [worker] = site.workers.peek();
  assert.equal(worker?.name, "w-1");
  assert.equal(worker.status, "ready");
  assert.deepEqual(worker.models, ["seg 3"]);
  assert.equal(worker.device, "cpu");
  assert.equal(worker.startedMs, 1_700_000_000_000);
  assert.ok(worker.rate > 15, String(worker.rate));
  const streams = site.streams.peek();
  assert.deepEqual(
    streams.map(({ client, source, rate }) => [client, source, rate === null ? null : rate > 0]),
    [
      ["car-1", "/front", true],
      ["car-2", "drive.mcap", null],
      ["script", "", true],
    ],
  );
  assert.deepEqual(streams[0]?.dropped, { old: 2 });
  assert.equal(streams[0]?.status, "ready");
  assert.deepEqual(streams[2]?.outcomes, { ok: 40 });
  const [model] = site.models.peek();
  assert.equal(model?.p50Ms, 16);
  assert.deepEqual(model.servedBy, ["w-1"]);
  assert.deepEqual(model.inputs, ["image UINT8 [-1, 32, 64, 3]"]);
  assert.equal(model.rates.values.rate?.length, model.rates.seconds.length);
  assert.ok(model.stages.values.inference?.includes(10));
});

test("rows that do not change stay the same objects", async () => {
  const { link, platform, site } = await opened();
  card(link, "seg");
  workerState(link, "w-1", "ready");
  clientState(link, "car-1", "ready");
  platform.clock.advance(2000);
  const before = [site.workers.peek(), site.streams.peek(), site.log.peek(), site.dropped.peek()];
  platform.clock.advance(2000);
  assert.deepEqual(before.map((each) => each.length ?? 0).slice(0, 3), [1, 1, 3]);
  for (const [place, each] of [site.workers, site.streams, site.log, site.dropped].entries()) {
    assert.equal(each.peek(), before[place]);
  }
});

test("a worker that is lost is shown as lost, one that is removed is not, one that crashed until it is back", async () => {
  const { link, platform, site } = await opened();
  const statuses = () => {
    platform.clock.advance(250);
    return Object.fromEntries(site.workers.peek().map((row) => [row.name, row.status]));
  };
  for (const worker of ["w-1", "w-2", "w-3"]) workerState(link, worker, "ready");
  workerState(link, "w-1", "lost", { models: [], boot: 99 });
  assert.deepEqual(statuses(), { "w-1": "ready", "w-2": "ready", "w-3": "ready" });
  workerState(link, "w-1", "lost", { models: [] });
  workerState(link, "w-2", "stopped");
  link.deliver(`${ROOT}/workers/w-2/state`, "");
  workerState(link, "w-3", "crashed");
  workerState(link, "w-3", "lost");
  link.deliver(`${ROOT}/workers/w-3/state`, "");
  assert.deepEqual(statuses(), { "w-1": "lost", "w-3": "crashed" });
  assert.deepEqual(site.workers.peek()[0]?.models, ["seg 3"]);
  workerState(link, "w-3", "ready", { boot: 1_700_000_001_000_000 });
  assert.deepEqual(statuses(), { "w-1": "lost", "w-3": "ready" });
});

test("when a client is lost its tiles are stale at once, and its streams are lost", async () => {
  const { link, platform, site } = await opened();
  clientState(link, "car-1", "ready", { streams: [{ source: "/front", model: "seg", rate: 20 }] });
  result(link, "car-1", "/front", 0);
  platform.clock.advance(250);
  assert.equal(site.tiles.peek()[0]?.isStale.peek(), false);
  clientState(link, "car-1", "lost", { boot: 4 });
  platform.clock.advance(250);
  assert.equal(site.tiles.peek()[0]?.isStale.peek(), false);
  clientState(link, "car-1", "lost");
  platform.clock.advance(250);
  assert.equal(site.tiles.peek()[0]?.isStale.peek(), true);
  assert.deepEqual(
    site.streams.peek().map(({ source, status }) => [source, status]),
    [["/front", "lost"]],
  );
  link.deliver(`${ROOT}/clients/car-1/state`, "", { correlation: new Uint8Array(16) });
  platform.clock.advance(250);
  assert.equal(site.streams.peek().length, 1);
  link.deliver(`${ROOT}/clients/car-1/state`, "");
  platform.clock.advance(250);
  assert.equal(site.streams.peek().length, 0);
});

test("what the broker no longer has after a new connection disappears", async () => {
  const { link, platform, site } = await opened();
  for (const worker of ["w-1", "w-2"]) workerState(link, worker, "ready");
  clientState(link, "car-1", "ready");
  card(link, "seg");
  platform.clock.advance(6000);
  assert.equal(site.workers.peek().length, 2);
  link.options.onStatus?.({ status: "lost", reason: "gone", needsLogin: false });
  assert.deepEqual(site.connection.peek(), { status: "lost", reason: "gone", needsLogin: false });
  workerState(link, "w-2", "ready");
  link.options.onStatus?.({ status: "connected", reason: "", needsLogin: false });
  platform.clock.advance(6000);
  assert.deepEqual(
    site.workers.peek().map((row) => row.name),
    ["w-2"],
  );
  assert.deepEqual([site.streams.peek().length, site.models.peek().length], [0, 0]);
});

test("a refused login is asked for, and the next one opens a new connection", async () => {
  const platform = fakePlatform();
  platform.refusal = Object.assign(new Error("not authorised"), { code: "not_authorized" });
  const site = openSite({ ...CONFIG, login: "mqtt" }, platform);
  await settle();
  assert.deepEqual(site.connection.peek(), { status: "refused", reason: "", needsLogin: true });
  site.login("wall", "typo");
  await settle();
  const wrong = { status: "refused", reason: "wrong name or password", needsLogin: true };
  assert.deepEqual(site.connection.peek(), wrong);
  platform.refusal = null;
  site.login("wall", "secret");
  await settle();
  assert.equal(site.connection.peek().status, "connected");
  assert.equal(platform.links[0]?.options.user, "wall");
  site.login("other", "secret");
  await settle();
  assert.ok(platform.links[0]?.isClosed);
  assert.equal(platform.links[1]?.options.user, "other");
});

test("a page whose relay has the login asks nobody for one", async () => {
  const platform = fakePlatform();
  platform.refusal = Object.assign(new Error("not authorised"), { code: "not_authorized" });
  const site = openSite({ ...CONFIG, login: "relay" }, platform);
  await settle();
  assert.deepEqual(site.connection.peek(), { status: "refused", reason: "not authorised", needsLogin: false });
});

test("a login that may not read everything stays connected and says what is missing", async () => {
  const platform = fakePlatform();
  platform.unreadable = "preview";
  const site = openSite(CONFIG, platform);
  await settle();
  assert.equal(site.connection.peek().status, "connected");
  assert.match(site.connection.peek().reason, /clients\/\+\/preview/);
});

test("while the page is paused only the workers change on it; a step brings it up to date once", async () => {
  const { link, platform, site } = await opened();
  workerState(link, "w-1", "ready");
  platform.clock.advance(250);
  site.setPaused(true);
  const before = [site.streams, site.models, site.log, site.tiles, site.dropped].map((each) => each.peek());
  workerState(link, "w-1", "lost");
  card(link, "seg");
  result(link, "car-1", "/front", 0);
  link.deliver(`${ROOT}/results/seg/car-1/x`, "nonsense");
  platform.clock.advance(60_000);
  const after = [site.streams, site.models, site.log, site.tiles, site.dropped].map((each) => each.peek());
  assert.deepEqual(after, before);
  assert.equal(site.workers.peek()[0]?.status, "lost");
  site.step();
  assert.equal(site.tiles.peek().length, 1);
  assert.equal(site.models.peek().length, 1);
  card(link, "det");
  platform.clock.advance(1000);
  assert.equal(site.models.peek().length, 1);
  site.setPaused(false);
  assert.equal(site.models.peek().length, 2);
});

test("replies that are sent again are no results of a frame, and appear as errors in the log", async () => {
  const { link, platform, site } = await opened();
  const error = { code: "rejected", message: "no room" };
  result(link, "car-1", "/front", 0, { outcome: "rejected", error, outputs: [] });
  platform.clock.advance(250);
  assert.equal(site.tiles.peek().length, 0);
  assert.deepEqual(
    site.log.peek().map(({ kind, summary }) => [kind, summary]),
    [["error", "car-1 /front 0 seg: rejected: no room"]],
  );
});

test("only the selection's fields that are given change", async () => {
  const { site } = await opened();
  site.select({ model: "seg" });
  site.select({ className: "road" });
  assert.deepEqual(site.selection.peek(), { stream: "", model: "seg", className: "road", hasIds: false });
});
