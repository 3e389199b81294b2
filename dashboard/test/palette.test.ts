import assert from "node:assert/strict";
import { test } from "node:test";
import { placeLabels } from "../src/views/live/boxes.js";
import { paint } from "../src/views/live/painter.js";
import {
  boxColourOf,
  colourOf,
  css,
  fillPixels,
  isBright,
  LEVEL_PIXELS,
  levelColour,
  nameOf,
} from "../src/views/live/palette.js";
import { wallOf } from "../src/views/live/wall.js";

/** `palette([])` of mqinfer/edge_agent/sinks/drawing/overlay.py, as hexadecimal digits. */
const EDGE_PALETTE = [
  "f255555583f2b1f255f255df55f2d8f2aa557c55f25bf255f2558955b7f2e5f255d155f255f2a3f275555562f290f255",
  "f255be55ecf2f2cb559d55f255f26ff255695597f2c5f255f255f255f2c4f296556855f270f255f2559e55cbf2f2eb55",
  "bd55f255f28ff261555576f2a4f255f255d255f2e4f2b6558855f255f25bf2557d55abf2d9f255de55f255f2b0f28255",
  "5556f284f255f255b255e0f2f2d755a955f255f27bf2555c558af2b8f255f255e655f2d0f2a2557455f263f255f25591",
  "55bff2edf255ca55f255f29cf26e55556af298f255f255c655f2f1f2c3559555f255f267f25571559ff2ccf255ea55f2",
  "55f2bcf28e556055f277f255f255a555d3f2f2e355b555f255f287f25a55557ef2acf255f255da55f2ddf2af558155f2",
  "57f255f2558555b3f2e1f255d655f255f2a8f27a55555df28bf255f255b955e7f2f2cf55a155f255f273f255645592f2",
  "c0f255f255ee55f2c9f29b556d55f26bf255f2559955c7f2f2f055c255f255f294f266555572f2a0f255f255cd55f2e9",
  "f2bb558d55f255f25ff2557855a6f2d4f255e255f255f2b4f287555955f27ff255f255ad55dbf2f2dc55ae55f255f280",
  "f255585586f2b4f255f255e255f2d5f2a7557955f25ef255f2558c55baf2e8f255ce55f255f2a0f272555565f293f255",
  "f255c155eff2f2c8559a55f255f26cf2556c559af2c8f255ef55f255f2c1f293556555f273f255f255a055cef2f2e855",
  "ba55f255f28cf25e555579f2a7f255f255d555f2e1f2b3558655f255f258f2558055aef2dcf255db55f255f2adf27f55",
  "5559f287f255f255b555e3f2f2d455a655f255f278f2555f558df2bbf255f255e955f2cdf29f557155f266f255f25594",
  "55c2f2f0f255c755f255f299f26b55556df29bf255f255c955f2eef2c0559255f255f264f2557455a1f2cff255e755f2",
  "55f2b9f28b555d55f27af255f255a855d6f2f2e055b255f255f285f257555581f2aff255f255dd55f2daf2ac557e55f2",
  "5af255f2558855b6f2e4f255d355f255f2a5f277555560f28ef255f255bc55eaf2f2cc559e55f255f270f255675595f2",
].join("");

const CLASSES = [
  { name: "road", colour: [128, 64, 128] as const },
  { name: "", colour: [1, 2, 3] as const },
];

test("classes without a colour of the card's have the same colours as in the overlays of an edge", () => {
  const digits = Array.from({ length: 256 }, (_, number) => hex(colourOf(number, []))).join("");
  assert.equal(digits, EDGE_PALETTE);
});

test("a class has the card's colour and name, and a number where there is none", () => {
  assert.deepEqual(colourOf(0, CLASSES), [128, 64, 128]);
  assert.equal(hex(colourOf(2, CLASSES)), EDGE_PALETTE.slice(12, 18));
  assert.equal(hex(colourOf(300, CLASSES)), EDGE_PALETTE.slice(6 * 44, 6 * 45));
  assert.deepEqual(
    [0, 1, 2].map((number) => nameOf(number, CLASSES)),
    ["road", "class 1", "class 2"],
  );
});

test("pixels of a mask have the classes' colours and full alpha", () => {
  assert.deepEqual(painted([0, 2, 0], ""), [[128, 64, 128, 255], bytesOf(2), [128, 64, 128, 255]]);
});

test("pixels of classes that are switched off are transparent", () => {
  assert.deepEqual(painted([0, 1, 2], "road"), [
    [128, 64, 128, 255],
    [0, 0, 0, 0],
    [0, 0, 0, 0],
  ]);
  assert.deepEqual(painted([0, 2], "class 2"), [[0, 0, 0, 0], bytesOf(2)]);
});

test("painting counts the pixels of each class", () => {
  const counts = new Uint32Array(256);
  paint(new Uint8Array([3, 3, 255]), new Uint32Array(256), new Uint32Array(3), counts);
  assert.deepEqual(
    [...counts.entries()].filter(([, count]) => count),
    [
      [3, 2],
      [255, 1],
    ],
  );
});

test("class 0 is black where its name means a background, and boxes never are", () => {
  const black = (name: string) => [{ name, colour: [0, 0, 0] as const }];
  for (const name of ["background", "__background__", "Unlabeled", "unlabelled", "void", "BG"]) {
    assert.deepEqual(colourOf(0, black(name)), [0, 0, 0], name);
  }
  for (const name of ["road", "person", "background building", "tench"]) {
    assert.equal(hex(colourOf(0, black(name))), EDGE_PALETTE.slice(0, 6), name);
  }
  assert.equal(hex(boxColourOf(0, black("background"))), EDGE_PALETTE.slice(0, 6));
  assert.deepEqual(colourOf(1, [...CLASSES.slice(0, 1), ...black("ego vehicle")]), [0, 0, 0]);
});

test("no label of a box covers another, and the best keep theirs", () => {
  const crowd = Array.from({ length: 40 }, (_, place) => ({
    ...{ left: 10 * (place % 7), top: 5 * (place % 9), width: 70 },
    ...{ right: 10 * (place % 7) + 60, bottom: 5 * (place % 9) + 50 },
  }));
  const placed = placeLabels(crowd, 320, 180);
  assert.equal(placed[0]?.label, crowd[0]);
  assert.ok(placed.length > 4 && placed.length < crowd.length, String(placed.length));
  for (const [index, one] of placed.entries()) {
    assert.ok(one.place.left >= 0 && one.place.left + 70 <= 320 && one.place.top >= 0 && one.place.top + 16 <= 180);
    for (const other of placed.slice(index + 1)) {
      const isBeside = Math.abs(one.place.left - other.place.left) >= 70;
      assert.ok(isBeside || Math.abs(one.place.top - other.place.top) >= 16);
    }
  }
  assert.deepEqual(placeLabels([{ left: 0, top: 0, right: 30, bottom: 10, width: 50 }], 40, 12), []);
});

test("a wall shows all its tiles at once, as large as they can be, and scrolls where they were too small", () => {
  assert.deepEqual(wallOf(16, 1888, 930), { columns: 4, rowHeight: 226 });
  for (const count of [5, 7, 16, 32, 64]) {
    const { columns, rowHeight } = wallOf(count, 1888, 930);
    const rows = Math.ceil(count / columns);
    assert.ok(rows * rowHeight + 8 * (rows - 1) <= 930, String(count));
  }
  assert.deepEqual(wallOf(16, 366, 600), { columns: 2, rowHeight: 127 });
  assert.deepEqual(wallOf(16, 100, -50), { columns: 1, rowHeight: 82 });
});

test("levels go from blue to red, and what has none is transparent", () => {
  const bytes = new Uint8Array(LEVEL_PIXELS.buffer);
  const [low, high] = [levelColour(20), levelColour(240)];
  assert.ok(low[2] > low[0] && high[0] > high[2]);
  assert.deepEqual([...bytes.subarray(4 * 20, 4 * 21)], [...low, 255]);
  assert.deepEqual([...bytes.subarray(4 * 255)], [0, 0, 0, 0]);
});

test("labels are black on bright colours and white on dark ones", () => {
  assert.equal(isBright([255, 255, 0]), true);
  assert.equal(isBright([0, 0, 142]), false);
  assert.equal(css([1, 2, 3]), "rgb(1 2 3)");
});

function painted(mask: number[], only: string): number[][] {
  const table = new Uint32Array(256);
  const pixels = new Uint32Array(mask.length);
  fillPixels(table, CLASSES, only);
  paint(Uint8Array.from(mask), table, pixels, new Uint32Array(256));
  const bytes = [...new Uint8Array(pixels.buffer)];
  return mask.map((_, place) => bytes.slice(4 * place, 4 * place + 4));
}

function bytesOf(number: number): number[] {
  return [...colourOf(number, []), 255];
}

function hex(colour: readonly number[]): string {
  return colour.map((part) => part.toString(16).padStart(2, "0")).join("");
}
