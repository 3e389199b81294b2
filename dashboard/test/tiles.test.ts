import assert from "node:assert/strict";
import { test } from "node:test";
import { decodeTensor, type EncodedTensor, encodeTensor } from "mqinfer-client";
import { Drops, MOST_TILES, MOST_TILES_EACH } from "../src/site/bounds.js";
import type { LiveTile } from "../src/site/live/tile.js";
import { Tiles } from "../src/site/live/tiles.js";
import {
  answer,
  FakeBitmap,
  type FakePlatform,
  fakePlatform,
  preview,
  randomNumbers,
  settle,
  textOf,
} from "./fakes.js";

const NAME = { client: "car-1", source: "front", model: "seg" };
const NO_TROUBLES = new Map<string, string>();
const NO_MODELS = { classesOf: () => [], pictureSize: () => null };

function opened(platform: FakePlatform = fakePlatform(), hasIds = () => false) {
  const drops = new Drops();
  const tiles = new Tiles(platform, drops, NO_MODELS, hasIds);
  const tile = tiles.of(NAME) as LiveTile;
  tile.setVisible(true);
  return { platform, clock: platform.clock, drops, tiles, tile };
}

function shown(tile: LiveTile): { mask: string | null; picture: string | null; sequence: number | null } | null {
  const frame = tile.frame.peek();
  if (!frame) return null;
  const picture = frame.preview as unknown as FakeBitmap | null;
  assert.ok(!picture?.isClosed, "a closed picture is shown");
  return { mask: frame.mask && textOf(frame.mask.data), picture: picture?.mark ?? null, sequence: frame.sequence };
}

test("a result without previews is shown as its mask alone", async () => {
  const { clock, tile } = opened();
  tile.addAnswer(answer(7, "frame--7", clock.nowMs()));
  await settle();
  assert.deepEqual(shown(tile), { mask: "frame--7", picture: null, sequence: 7 });
});

test("results wait for the previews of their own frames, whichever comes first", async () => {
  const { clock, tile } = opened();
  tile.addPreview(preview(1, "frame--1", clock.nowMs()));
  tile.addAnswer(answer(2, "frame--2", clock.nowMs()));
  await settle();
  assert.equal(shown(tile), null);
  tile.addAnswer(answer(1, "frame--1", clock.nowMs()));
  await settle();
  assert.deepEqual(shown(tile), { mask: "frame--1", picture: "frame--1", sequence: 1 });
  tile.addPreview(preview(2, "frame--2", clock.nowMs()));
  await settle();
  assert.deepEqual(shown(tile), { mask: "frame--2", picture: "frame--2", sequence: 2 });
});

test("a preview of the same number and another capture stamp belongs to another frame", async () => {
  const { clock, tile } = opened();
  tile.addPreview(preview(1, "old-----", clock.nowMs(), { captureTimeNs: 5n }));
  tile.addAnswer(answer(1, "new-----", clock.nowMs(), { captureTimeNs: 6n }));
  await settle();
  assert.equal(shown(tile), null);
});

test("when previews end, masks are shown alone again", async () => {
  const { clock, tile } = opened();
  tile.addPreview(preview(0, "frame--0", clock.nowMs()));
  tile.addAnswer(answer(0, "frame--0", clock.nowMs()));
  for (let sequence = 1; sequence < 40; sequence++) {
    clock.advance(100);
    tile.addAnswer(answer(sequence, `frame-${String(sequence).padStart(2)}`, clock.nowMs()));
    await settle();
    if (sequence <= 30) assert.equal(shown(tile)?.sequence, 0);
  }
  assert.deepEqual(shown(tile), { mask: "frame-39", picture: null, sequence: 39 });
});

test("of a stream with a preview every five seconds, pictures and masks do not take turns", async () => {
  const { clock, tile } = opened();
  let alone = 0;
  for (let sequence = 0; sequence < 600; sequence++) {
    clock.advance(100);
    const mark = `f-${String(sequence).padStart(6, "0")}`;
    if (sequence % 50 === 0) tile.addPreview(preview(sequence, mark, clock.nowMs()));
    tile.addAnswer(answer(sequence, mark, clock.nowMs()));
    await settle();
    if (sequence > 100 && shown(tile)?.picture !== shown(tile)?.mask) alone += 1;
  }
  assert.equal(alone, 0);
});

test("previews that belong to no result do not hold results up for ever", async () => {
  const { clock, tile } = opened();
  for (let sequence = 0; sequence < 50; sequence++) {
    clock.advance(100);
    tile.addPreview(preview(sequence + 10_000, "other---", clock.nowMs()));
    tile.addAnswer(answer(sequence, "frame---", clock.nowMs()));
    await settle();
  }
  assert.deepEqual(shown(tile), { mask: "frame---", picture: null, sequence: 49 });
});

test("a step shows the frames of all tiles that were captured at the same time, and each a later one", async () => {
  const { clock, tiles, tile: fast } = opened();
  const slow = tiles.of({ ...NAME, source: "slow" }) as LiveTile;
  const other = tiles.of({ ...NAME, source: "other day" }) as LiveTile;
  for (const each of [slow, other]) each.setVisible(true);
  const stamped = (tile: LiveTile, sequence: number, ms: number) =>
    tile.addAnswer(answer(sequence, "--------", clock.nowMs(), { captureTimeNs: BigInt(ms) * 1_000_000n }));
  for (const each of [fast, slow, other]) stamped(each, 0, each === other ? 1e9 : 0);
  await settle();
  tiles.setPaused(true);
  for (let sequence = 1; sequence <= 30; sequence++) {
    stamped(fast, sequence, 33 * sequence);
    if (sequence % 10 === 0) stamped(slow, sequence / 10, 33 * sequence + 8);
    if (sequence % 5 === 0) stamped(other, sequence / 5, 1e9 + 33 * sequence);
  }
  const shownNow = () => [fast, slow, other].map((each) => each.frame.peek()?.sequence);
  const step = async () => {
    tiles.step();
    for (let turn = 0; turn < 5; turn++) {
      await settle();
      clock.advance(10);
    }
    return shownNow();
  };
  assert.deepEqual(shownNow(), [0, 0, 0]);
  assert.deepEqual(await step(), [10, 1, 1]);
  assert.deepEqual(await step(), [20, 2, 2]);
  slow.setVisible(false);
  assert.deepEqual(await step(), [21, 2, 3]);
  tiles.setPaused(false);
  await settle();
  clock.advance(300);
  await settle();
  assert.equal(fast.frame.peek()?.sequence, 30);
});

test("an error is shown, and no mask of a frame before it", async () => {
  const { clock, tile } = opened();
  tile.addAnswer(answer(1, "frame--1", clock.nowMs()));
  await settle();
  const error = { code: "model_failed", message: "<img src=x onerror=alert(1)>" };
  const failed = answer(2, "", clock.nowMs(), { error, outputs: [] });
  tile.addAnswer({ ...failed, reply: { ...failed.reply, outcome: "error" } });
  await settle();
  assert.deepEqual(shown(tile), { mask: null, picture: null, sequence: 2 });
  assert.deepEqual(tile.frame.peek()?.error, error);
});

test("of 10,000 messages, lost, repeated and out of order over many runs, none is shown with another frame's mask", async () => {
  const random = randomNumbers(15);
  const { clock, drops, tile } = opened();
  const before = FakeBitmap.open;
  let frames = 0;
  let masksAlone = 0;
  const end = tile.frame.subscribe((frame) => {
    if (!frame) return;
    frames += 1;
    const picture = frame.preview as unknown as FakeBitmap | null;
    if (picture && frame.mask) assert.equal(textOf(frame.mask.data), picture.mark);
    if (!picture) masksAlone += 1;
  });
  const late: (() => void)[] = [];
  let [run, sequence, messages] = [0, 0, 0];
  while (messages < 10_000) {
    clock.advance(Math.floor(random() * 40));
    if (random() < 0.004) [run, sequence] = [run + 1, 0];
    if (random() < 0.3) tile.clientChanged(random() < 0.02 ? "restarted" : "there");
    const mark = `${String(run).padStart(3)}/${String(sequence).padStart(4)}`;
    const more = { captureTimeNs: BigInt(run * 1_000_000 + sequence) };
    const number = sequence++;
    const copies = random() < 0.1 ? 2 : 1;
    for (let copy = 0; copy < copies; copy++) {
      if (random() < 0.7) late.push(() => tile.addPreview(preview(number, mark, clock.nowMs(), more)));
      if (random() < 0.9) late.push(() => tile.addAnswer(answer(number, mark, clock.nowMs(), more)));
    }
    while (late.length > random() * 12) {
      const [deliver] = late.splice(Math.floor(random() * late.length), 1);
      deliver?.();
      messages += 1;
    }
    if (random() < 0.5) await settle();
  }
  await settle();
  end();
  assert.ok(frames > 1000, `${frames} frames`);
  assert.ok(masksAlone < frames / 10, `${masksAlone} of ${frames} without a picture`);
  assert.equal(FakeBitmap.open - before, tile.frame.peek()?.preview ? 1 : 0);
  assert.ok((drops.read()["newer frame"] ?? 0) > 0);
  assert.equal(Object.keys(drops.read()).length, 1);
});

test("a stream that begins again does not freeze, whether its client says so or not", async () => {
  for (const [last, isTold] of [
    [1000, false],
    [40, false],
    [40, true],
  ] as const) {
    const { clock, tile } = opened();
    for (let sequence = 0; sequence <= last; sequence++) {
      tile.addAnswer(answer(sequence, "old-----", clock.nowMs()));
      clock.advance(50);
    }
    await settle();
    if (isTold) tile.clientChanged("restarted");
    for (let sequence = 0; sequence < 10; sequence++) {
      tile.addAnswer(answer(sequence, "new-----", clock.nowMs()));
      clock.advance(50);
    }
    await settle();
    assert.deepEqual(shown(tile), { mask: "new-----", picture: null, sequence: 9 });
    tile.tick(clock.nowMs(), "");
    assert.equal(tile.gaps.peek(), 0);
  }
});

test("nothing is decoded of a tile that is not visible, or in a hidden tab; then the newest frame alone", async () => {
  const { clock, platform, tile } = opened();
  tile.setVisible(false);
  for (let sequence = 0; sequence < 20; sequence++) tile.addAnswer(answer(sequence, "frame---", clock.nowMs()));
  await settle();
  assert.equal(platform.decoded, 0);
  platform.hidden = true;
  tile.setVisible(true);
  await settle();
  assert.equal(platform.decoded, 0);
  platform.hidden = false;
  tile.tick(clock.nowMs(), "");
  await settle();
  assert.equal(platform.decoded, 1);
  assert.equal(shown(tile)?.sequence, 19);
});

test("results that were not read count for all streams of their client and model alike", () => {
  const { clock, tiles } = opened();
  const all = ["front", "rear", "left", "right"].map((source) => tiles.of({ ...NAME, source }) as LiveTile);
  for (let turn = 0; turn < 40; turn++) {
    clock.advance(50);
    for (let each = 0; each < 4; each++) tiles.skipped(NAME.client, NAME.model);
  }
  tiles.tick(clock.nowMs(), NO_TROUBLES);
  const rates = all.map((tile) => tile.rate.peek());
  assert.equal(new Set(rates).size, 1, String(rates));
  assert.ok(Math.abs((rates[0] ?? 0) - 20) < 2, String(rates));
});

test("a paused tile stays as it is; each step shows one more frame", async () => {
  const { clock, platform, tile, tiles } = opened();
  tile.addAnswer(answer(1, "frame--1", clock.nowMs()));
  await settle();
  tiles.setPaused(true);
  for (let sequence = 2; sequence < 500; sequence++) tile.addAnswer(answer(sequence, "frame---", clock.nowMs()));
  clock.advance(60_000);
  tiles.tick(clock.nowMs(), NO_TROUBLES);
  await settle();
  assert.equal(shown(tile)?.sequence, 1);
  assert.equal(tile.isStale.peek(), false);
  assert.equal(platform.decoded, 1);
  for (let sequence = 2; sequence < 65; sequence++) {
    tiles.step();
    await settle();
    assert.equal(shown(tile)?.sequence, sequence);
  }
  tiles.step();
  await settle();
  assert.equal(shown(tile)?.sequence, 499);
  tile.addAnswer(answer(500, "frame---", clock.nowMs()));
  await settle();
  assert.equal(shown(tile)?.sequence, 499);
  tiles.step();
  await settle();
  assert.equal(shown(tile)?.sequence, 500);
  tiles.step();
  await settle();
  tiles.setPaused(false);
  tile.addAnswer(answer(501, "frame---", clock.nowMs()));
  await settle();
  assert.equal(shown(tile)?.sequence, 501);
});

test("a tile is stale after five of its intervals, two seconds at least, and when its client is gone", () => {
  const { clock, tile } = opened();
  for (let sequence = 0; sequence < 20; sequence++) {
    clock.advance(50);
    tile.addAnswer(answer(sequence, "frame---", clock.nowMs()));
  }
  const isStaleAfter = (ms: number) => {
    clock.advance(ms);
    tile.tick(clock.nowMs(), "");
    return tile.isStale.peek();
  };
  assert.equal(isStaleAfter(1900), false);
  assert.equal(isStaleAfter(200), true);
  for (let sequence = 20; sequence < 60; sequence++) {
    clock.advance(1000);
    tile.addAnswer(answer(sequence, "frame---", clock.nowMs()));
  }
  assert.equal(isStaleAfter(4500), false);
  tile.clientChanged("gone");
  assert.equal(isStaleAfter(1), true);
  tile.clientChanged("there");
  assert.equal(isStaleAfter(1), false);
});

test("there are at most 64 tiles, 32 of a client; a new stream takes the place of one that has been silent for long", () => {
  const { clock, drops, tiles } = opened();
  const count = () => {
    tiles.tick(clock.nowMs(), NO_TROUBLES);
    return tiles.shown.peek().length;
  };
  const add = (client: string, number: number) =>
    tiles.of({ ...NAME, client, source: `s-${number}` })?.addAnswer(answer(0, "frame---", clock.nowMs()));
  for (let number = 0; number < 1000; number++) add("flood", number);
  assert.equal(count(), 1 + MOST_TILES_EACH);
  for (let number = 0; number < 1000; number++) add(`c-${number}`, number);
  assert.equal(count(), MOST_TILES);
  assert.equal(drops.read()["too many streams"], 2000 - (MOST_TILES - 1));
  clock.advance(20_000);
  assert.ok(tiles.of({ ...NAME, source: "late" }));
  assert.equal(count(), MOST_TILES);
});

test("a picture that can't be decoded leaves the mask, and an output that can't be decoded the picture", async () => {
  const platform = fakePlatform({
    decodeTensor(tensor) {
      if (textOf(tensor.bytes) === "bad-mask") throw Object.assign(new Error("no mask"), { code: "bad_encoding" });
      return { ...tensor, data: tensor.bytes };
    },
    async decodePicture(tensor) {
      if (textOf(tensor.bytes) === "bad-pict") throw new Error("no picture");
      return new FakeBitmap(textOf(tensor.bytes)) as unknown as ImageBitmap;
    },
  });
  const { clock, drops, tile } = opened(platform);
  tile.addPreview(preview(1, "bad-pict", clock.nowMs()));
  tile.addAnswer(answer(1, "frame--1", clock.nowMs()));
  await settle();
  assert.deepEqual(shown(tile), { mask: "frame--1", picture: null, sequence: 1 });
  tile.addPreview(preview(2, "frame--2", clock.nowMs()));
  tile.addAnswer(answer(2, "bad-mask", clock.nowMs()));
  await settle();
  assert.deepEqual(shown(tile), { mask: null, picture: "frame--2", sequence: 2 });
  assert.equal(tile.frame.peek()?.error?.code, "bad_encoding");
  assert.deepEqual(drops.read(), { "bad picture": 1, "bad output": 1 });
});

test("closing the tiles closes their pictures, also one that is being decoded", async () => {
  const before = FakeBitmap.open;
  const { clock, tile, tiles } = opened();
  tile.addPreview(preview(1, "frame--1", clock.nowMs()));
  tile.addAnswer(answer(1, "frame--1", clock.nowMs()));
  await settle();
  tile.addPreview(preview(2, "frame--2", clock.nowMs()));
  tile.addAnswer(answer(2, "frame--2", clock.nowMs()));
  tiles.close();
  await settle();
  assert.equal(FakeBitmap.open, before);
});

test("objects are followed where that is asked for, unless the model gives ids itself", async () => {
  let hasIds = false;
  const platform = fakePlatform({ decodeTensor });
  const { clock, tile } = opened(platform, () => hasIds);
  const ids = async (sequence: number, ...own: EncodedTensor[]) => {
    const outputs = [
      encodeTensor("boxes", new Float32Array([4 * sequence, 0, 4 * sequence + 20, 20]), { shape: [1, 4] }),
      encodeTensor("scores", new Float32Array([0.75]), { shape: [1] }),
      ...own,
    ];
    const captureTimeNs = BigInt(sequence) * 100_000_000n;
    tile.addAnswer(answer(sequence, "", clock.nowMs(), { outputs, captureTimeNs }));
    await settle();
    return tile.frame.peek()?.boxes.map(({ id }) => id);
  };
  assert.deepEqual(await ids(1), [undefined]);
  hasIds = true;
  assert.deepEqual(await ids(2), [1]);
  assert.deepEqual(await ids(3), [1]);
  assert.deepEqual(await ids(4, encodeTensor("ids", new Int32Array([7]), { shape: [1] })), [7]);
});
