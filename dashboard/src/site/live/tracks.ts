/** Ids that follow objects over the frames of a stream; the rules are Python's, in mqinfer/answers/tracks.py. */

import type { Box } from "../types.js";

/** Objects of at least this score get ids; others only keep the one that they have. */
const SURE = 0.5;
/** Least intersection over union of a box with where its object is expected, and that of a doubtful one. */
const OVERLAP = 0.1;
const DOUBTFUL_OVERLAP = 0.4;
/** After so many frames without it an object is forgotten. */
const MOST_ABSENT = 30;
/** An object is expected to go on for so long, with a velocity of which the last two boxes are this part. */
const LONGEST_S = 1;
const NEW = 0.5;

type Sides = readonly [number, number, number, number];

interface Track {
  readonly id: number;
  readonly classIndex: number;
  readonly sides: Sides;
  readonly velocity: Sides;
  readonly seenS: number;
  readonly frame: number;
}

/** The objects of one stream. */
export class Tracks {
  #tracks: Track[] = [];
  #frame = 0;
  #last = 0;

  /** Return the boxes of a frame, captured at this time, with their ids; one that is too doubtful to be new has none. */
  follow(nowS: number, boxes: readonly Box[]): readonly Box[] {
    this.#frame += 1;
    const expected = this.#tracks.map((track) => expectedAt(track, nowS));
    const shares = boxes.map((box) =>
      expected.map((sides, place) =>
        box.classIndex === this.#tracks[place]?.classIndex ? overlap(sidesOf(box), sides) : 0,
      ),
    );
    const found = new Map<number, number>();
    pair(shares, OVERLAP, found, (row) => isSure(boxes[row]));
    const isDoubtful = (row: number, place: number) =>
      !isSure(boxes[row]) && this.#tracks[place]?.frame === this.#frame - 1;
    pair(shares, DOUBTFUL_OVERLAP, found, isDoubtful);
    const followed = boxes.map((box, row) => this.#see(box, nowS, found.get(row)));
    this.#tracks = this.#tracks.filter(({ frame }) => frame > this.#frame - MOST_ABSENT);
    return followed;
  }

  /** Return a box with the id of its object: of the one that was paired with it, or a new one. */
  #see(box: Box, nowS: number, place: number | undefined): Box {
    const sides = sidesOf(box);
    const before = place === undefined ? undefined : this.#tracks[place];
    if (place === undefined || before === undefined) {
      if (!isSure(box)) return box;
      this.#last += 1;
      const { classIndex } = box;
      this.#tracks.push({ id: this.#last, classIndex, sides, velocity: [0, 0, 0, 0], seenS: nowS, frame: this.#frame });
      return { ...box, id: this.#last };
    }
    const passed = nowS - before.seenS;
    const velocity =
      passed > 0 && passed <= LONGEST_S
        ? combined(
            before.velocity,
            sides,
            (old, side, at) => (1 - NEW) * old + (NEW * (side - before.sides[at])) / passed,
          )
        : before.velocity;
    this.#tracks[place] = { ...before, sides, velocity, seenS: nowS, frame: this.#frame };
    return { ...box, id: before.id };
  }
}

function isSure(box: Box | undefined): boolean {
  return box !== undefined && box.score >= SURE;
}

function sidesOf({ left, top, right, bottom }: Box): Sides {
  return [left, top, right, bottom];
}

function expectedAt({ sides, velocity, seenS }: Track, nowS: number): Sides {
  const passed = Math.min(Math.max(nowS - seenS, 0), LONGEST_S);
  return combined(sides, velocity, (side, speed) => side + speed * passed);
}

function combined(one: Sides, other: Sides, combine: (one: number, other: number, at: 0 | 1 | 2 | 3) => number): Sides {
  return [
    combine(one[0], other[0], 0),
    combine(one[1], other[1], 1),
    combine(one[2], other[2], 2),
    combine(one[3], other[3], 3),
  ];
}

/** Add the place of a track by that of its box, each once: those that overlap most first. */
function pair(
  shares: readonly (readonly number[])[],
  least: number,
  found: Map<number, number>,
  isPossible: (row: number, place: number) => boolean,
): void {
  const taken = new Set(found.values());
  const possible: { row: number; place: number; share: number }[] = [];
  for (const [row, own] of shares.entries()) {
    for (const [place, share] of own.entries()) {
      if (share >= least && isPossible(row, place)) possible.push({ row, place, share });
    }
  }
  for (const { row, place } of possible.sort((one, other) => other.share - one.share)) {
    if (found.has(row) || taken.has(place)) continue;
    found.set(row, place);
    taken.add(place);
  }
}

/** Return the intersection over union. */
function overlap(one: Sides, other: Sides): number {
  const width = Math.min(one[2], other[2]) - Math.max(one[0], other[0]);
  const height = Math.min(one[3], other[3]) - Math.max(one[1], other[1]);
  const shared = Math.max(width, 0) * Math.max(height, 0);
  return shared / Math.max(area(one) + area(other) - shared, 1e-9);
}

function area([left, top, right, bottom]: Sides): number {
  return Math.max(right - left, 0) * Math.max(bottom - top, 0);
}
