import assert from "node:assert/strict";
import { test } from "node:test";
import {
  checksum,
  decodeReply,
  decodeRequest,
  decodeTensor,
  type EncodedTensor,
  encodeReply,
  encodeRequest,
  encodeTensor,
  type Tensor,
} from "../src/index.js";
import { golden, goldenEntries } from "./files.js";
import { bothValues, type GoldenEntry, PICTURES, replyFields, requestFields, tensorFields } from "./neutral.js";

function tensorsOf(entry: GoldenEntry): readonly EncodedTensor[] {
  const payload = golden(entry.file);
  return entry.kind === "request" ? decodeRequest(payload).inputs : decodeReply(payload).outputs;
}

function encodedAgain(tensor: EncodedTensor): EncodedTensor {
  const { name, data, datatype, shape } = decodeTensor(tensor);
  const { raw_size: _, ...parameters } = tensor.parameters;
  return encodeTensor(name, data, { datatype, shape, encoding: tensor.encoding, parameters });
}

function elementsOf(tensor: Tensor): unknown[] {
  return Array.from(tensor.data as ArrayLike<unknown>);
}

for (const entry of goldenEntries()) {
  test(`${entry.file} has the checksum that golden.json states`, () => {
    assert.equal(checksum(golden(entry.file)), entry.xxh3);
  });

  test(`${entry.file} is read with all fields`, () => {
    const payload = golden(entry.file);
    const fields = entry.kind === "request" ? requestFields(decodeRequest(payload)) : replyFields(decodeReply(payload));
    assert.deepEqual(fields, entry.fields);
    assert.deepEqual(tensorsOf(entry).map(tensorFields), entry.tensors?.map(tensorFields));
  });

  test(`${entry.file} is written again byte by byte, around the same tensors' bytes`, () => {
    const payload = golden(entry.file);
    const again = entry.kind === "request" ? encodeRequest(decodeRequest(payload)) : encodeReply(decodeReply(payload));
    assert.deepEqual(again, payload);
  });

  test(`${entry.file} has the values that golden.json states`, async () => {
    for (const [place, tensor] of tensorsOf(entry).entries()) {
      const wanted = entry.tensors?.[place];
      assert.ok(wanted);
      if (PICTURES.includes(tensor.encoding)) continue; // decoded by browsers: tests/clients/test_js_golden.py
      const [expected, found] = await bothValues(wanted, decodeTensor(tensor));
      assert.deepEqual(found, expected, tensor.name);
    }
  });

  test(`the arrays of ${entry.file} are encoded to the same bytes, or to others that hold the same`, () => {
    for (const tensor of tensorsOf(entry)) {
      if (PICTURES.includes(tensor.encoding)) continue; // files of another program, passed on as they are
      const again = encodedAgain(tensor);
      assert.deepEqual(tensorFields(again), tensorFields(tensor));
      // LZ4 leaves to each compressor which matches it takes, so only what a block holds can be compared.
      if (tensor.encoding === "raw") assert.deepEqual(again.bytes, tensor.bytes);
      assert.deepEqual(elementsOf(decodeTensor(again)), elementsOf(decodeTensor(tensor)));
    }
  });
}
