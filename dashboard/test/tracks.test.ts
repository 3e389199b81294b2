import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { Tracks } from "../src/site/live/tracks.js";
import type { Box } from "../src/site/types.js";

/** What Python's tracks say, too: tests/edge_agent/test_tracks.py. */
const FRAMES: readonly {
  readonly now_s: number;
  readonly boxes: readonly [number, number, number, number][];
  readonly scores: readonly number[];
  readonly kinds: readonly number[];
  readonly ids: readonly number[];
}[] = JSON.parse(readFileSync("../tests/edge_agent/tracks.json", "utf8"));

test("objects have the ids that Python's rules give them: trembling, missed, crossing, doubtful ones", () => {
  const tracks = new Tracks();
  for (const { now_s, boxes, scores, kinds, ids } of FRAMES) {
    const found = boxes.map(([left, top, right, bottom], row): Box => {
      return { left, top, right, bottom, score: scores[row] as number, classIndex: kinds[row] as number };
    });
    assert.deepEqual(
      tracks.follow(now_s, found).map(({ id = -1 }) => id),
      ids,
    );
  }
});
