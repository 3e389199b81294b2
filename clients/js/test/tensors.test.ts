import assert from "node:assert/strict";
import { test } from "node:test";
import { decompressBlock } from "../src/codecs/lz4_block.js";
import { compressBlock } from "../src/codecs/lz4_compress.js";
import {
  BadEncoding,
  BadTensor,
  decodePicture,
  decodePixels,
  decodeRequest,
  decodeTensor,
  encodePicture,
  encodeRequest,
  encodeTensor,
  LimitExceeded,
  MissingExtra,
  type TensorData,
} from "../src/index.js";
import { checkTogether } from "../src/tensors.js";
import { golden } from "./files.js";
import { generator } from "./random.js";

const random = generator(7);

/** Contents from noise to long runs. */
function contents(length: number, kinds: number): Uint8Array {
  const found = new Uint8Array(length);
  for (let at = 0; at < length; ) {
    const end = at + 1 + (random() % (kinds < 9 ? 300 : 3));
    found.fill(random() % kinds, at, end);
    at = end;
  }
  return found;
}

test("LZ4 blocks hold what was compressed, for noise, runs and every small size", () => {
  for (let length = 1; length < 300; length++) {
    const data = contents(length, 1 + (length % 7));
    assert.deepEqual(decompressBlock("x", compressBlock(data), length), data);
  }
  for (const kinds of [1, 2, 8, 40, 256]) {
    const data = contents(200_000, kinds);
    const block = compressBlock(data);
    assert.deepEqual(decompressBlock("x", block, data.length), data);
    if (kinds < 9) assert.ok(block.length < data.length / 8, `${kinds}: ${block.length}`);
  }
});

test("damaged LZ4 blocks make the declared size or an error", () => {
  const data = contents(3000, 8);
  const block = compressBlock(data);
  for (let round = 0; round < 5000; round++) {
    const damaged = new Uint8Array(block);
    damaged[random() % damaged.length] = random() & 255;
    try {
      assert.equal(decompressBlock("x", damaged, data.length).length, data.length);
    } catch (error) {
      assert.ok(error instanceof BadEncoding, String(error));
    }
  }
});

test("masks hold what was encoded: runs, packed pixels, BOOL, runs above 65535", () => {
  for (const [length, kinds] of [
    [1, 1],
    [7, 4],
    [100, 2],
    [5000, 3],
    [5000, 200],
    [200_000, 1],
    [200_000, 5],
  ] as const) {
    const pixels = contents(length, kinds);
    const tensor = encodeTensor("x", pixels, { encoding: "mask" });
    assert.deepEqual(decodeTensor(tensor).data, pixels);
  }
  const switches = Uint8Array.from({ length: 50 }, (_, place) => place % 2);
  const tensor = encodeTensor("x", switches, { datatype: "BOOL", encoding: "mask" });
  assert.deepEqual(decodeTensor(tensor).data, switches);
});

test("the masks of docs/reference/protocol.md have the bytes stated there", () => {
  const packed = encodeTensor("x", new Uint8Array([0, 0, 0, 5, 5, 5, 0, 0]), { encoding: "mask" });
  assert.deepEqual([...packed.bytes.subarray(0, 8)], [4, 0, 0, 0, 0, 0, 0, 0]);
  assert.deepEqual([...decompressBlock("x", packed.bytes.subarray(8), 4)], [0x00, 0x50, 0x55, 0x00]);
  const pixels = new Uint8Array(400).fill(5, 0, 300).fill(1, 300);
  const runs = encodeTensor("x", pixels, { encoding: "mask" });
  assert.deepEqual([...runs.bytes.subarray(0, 8)], [0, 0, 0, 0, 2, 0, 0, 0]);
  assert.deepEqual([...decompressBlock("x", runs.bytes.subarray(8), 6)], [5, 1, 0x2c, 0x64, 1, 0]);
});

test("every FP16 number is widened and rounded back to itself", () => {
  const halves = Uint16Array.from({ length: 65536 }, (_, bits) => bits);
  const isNan = (bits: number) => (bits & 0x7c00) === 0x7c00 && (bits & 0x3ff) !== 0;
  const bytes = new Uint8Array(halves.buffer);
  const wide = decodeTensor({ name: "x", datatype: "FP16", shape: [65536], encoding: "raw", parameters: {}, bytes });
  const again = encodeTensor("x", wide.data, { datatype: "FP16" });
  const bits = new Uint16Array(again.bytes.buffer);
  for (const half of halves) {
    if (isNan(half)) assert.ok(isNan(bits[half] as number));
    else assert.equal(bits[half], half);
  }
});

test("numbers are rounded to FP16 to the nearest, ties to even", () => {
  const values = new Float32Array([1 + 2 ** -11, 1 + 3 * 2 ** -11, 65519, 65520, 2 ** -25, 2 ** -24 * 1.5, 0.1]);
  const { bytes } = encodeTensor("x", values, { datatype: "FP16" });
  assert.deepEqual([...new Uint16Array(bytes.buffer)], [0x3c00, 0x3c02, 0x7bff, 0x7c00, 0, 2, 0x2e66]);
});

test("tensors of a payload at any offset, and of node's Buffers, are read", () => {
  const data = new Float64Array([1, 2.5, -3]);
  const request = encodeRequest({
    id: "r",
    modelName: "m",
    inputs: [encodeTensor("x", data), encodeTensor("y", data)],
  });
  for (let shift = 0; shift < 9; shift++) {
    const buffer = Buffer.alloc(request.length + shift);
    buffer.set(request, shift);
    for (const tensor of decodeRequest(buffer.subarray(shift)).inputs) {
      assert.deepEqual(decodeTensor(tensor).data, data);
    }
  }
});

test("the datatype of a typed array is that of its elements", () => {
  const arrays: [TensorData | string[], string][] = [
    [new Uint8Array(1), "UINT8"],
    [Buffer.alloc(1), "UINT8"],
    [new BigInt64Array(1), "INT64"],
    [new Uint16Array(1), "UINT16"],
    [new Float64Array(1), "FP64"],
    [["grün", ""], "BYTES"],
  ];
  for (const [array, datatype] of arrays) assert.equal(encodeTensor("x", array).datatype, datatype);
});

test("what is no array that travels is refused, with what would be one", () => {
  const wrong: unknown[] = [[1, 2, 3], [["a"]], undefined, null, 5, "words", {}];
  for (const each of wrong) {
    const expected = {
      code: "bad_tensor",
      message: /^tensor "x": expected a typed array such as Float32Array.of\(1, 2\)/,
    };
    assert.throws(() => encodeTensor("x", each as TensorData), expected, String(each));
  }
});

test("arrays that can't be encoded are refused", () => {
  assert.throws(() => encodeTensor("x", new Uint8Array(5), { shape: [2, 2] }), BadTensor);
  assert.throws(() => encodeTensor("x", new Uint8Array(1), { shape: [-1, -1] }), BadTensor);
  assert.throws(() => encodeTensor("x", new Uint8Array([2]), { datatype: "BOOL" }), BadTensor);
  assert.throws(() => encodeTensor("x", new Uint8Array(4), { datatype: "FP32" }), BadTensor);
  assert.throws(() => encodeTensor("x", new Float32Array(4), { encoding: "mask" }), BadEncoding);
  assert.throws(() => encodeTensor("x", new Uint8Array(4), { encoding: "zstd" }), BadEncoding);
  assert.throws(() => encodeTensor("x", {} as Uint8Array, { shape: [] }), BadTensor);
});

test("a parameter that is a field of the message is refused", () => {
  const tensor = encodeTensor("x", new Uint8Array(1), { parameters: { encoding: "raw" } });
  const clash = { name: /bad_envelope/ };
  assert.throws(() => encodeRequest({ id: "r", modelName: "m", inputs: [tensor] }), clash);
  assert.throws(() => encodeRequest({ id: "r", modelName: "m", inputs: [], parameters: { timeout: 1 } }), clash);
  assert.throws(() => encodeRequest({ id: "r", modelName: "m", inputs: [], timeoutUs: 0.5 }), clash);
});

test("parameters named like properties of objects stay parameters", () => {
  const parameters = JSON.parse('{"__proto__": 1, "constructor": "x"}');
  const request = decodeRequest(encodeRequest({ id: "r", modelName: "m", inputs: [], parameters }));
  assert.deepEqual(Object.entries(request.parameters ?? {}), [
    ["__proto__", 1],
    ["constructor", "x"],
  ]);
});

test("a picture becomes a tensor by its header; bitmaps are for browsers, arrays for node", async () => {
  const [colour, grey] = decodeRequest(golden("request_jpeg.mqi")).inputs;
  assert.ok(colour && grey);
  assert.deepEqual(encodePicture("bars", colour.bytes), { ...colour, parameters: {} });
  assert.deepEqual(encodePicture("grey", grey.bytes).shape, [1, ...grey.shape]);
  await assert.rejects(decodePicture(colour), MissingExtra);
  for (const decode of [decodePicture, decodePixels])
    await assert.rejects(decode({ ...colour, encoding: "raw" }), BadEncoding);
  const { datatype, shape, data } = await decodePixels(grey);
  assert.deepEqual(
    [datatype, shape, data.length],
    ["UINT8", grey.shape, grey.shape.reduce((one, other) => one * other)],
  );
  const scan = colour.bytes.slice();
  scan.fill(0xaa, scan.length - 60, scan.length - 2);
  await assert.rejects(decodePixels({ ...colour, bytes: scan }), BadEncoding);
  assert.throws(() => encodePicture("x", new Uint8Array(40)), BadEncoding);
});

test("the outputs of a reply take no more together than one may", () => {
  const mask = encodeTensor("m", new Uint8Array(64), { encoding: "mask" });
  const large = { ...mask, shape: [1, 8192, 8192] };
  checkTogether([large, large, large, large]);
  assert.throws(() => checkTogether([large, large, large, large, mask]), LimitExceeded);
});
