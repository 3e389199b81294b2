/** Decode the pictures of requests, and print each as an array in base64, or the code of its error. */

import { readFileSync } from "node:fs";
import { decodeRequest } from "../../src/envelope.js";
import { decodePixels } from "../../src/tensors.js";
import type { EncodedTensor } from "../../src/types.js";

async function pixels(tensor: EncodedTensor): Promise<unknown> {
  const { name, datatype, shape, data } = await decodePixels(tensor);
  const { buffer, byteOffset, byteLength } = data as Uint8Array;
  return { name, datatype, shape, data: Buffer.from(buffer, byteOffset, byteLength).toString("base64") };
}

const tensors = process.argv.slice(2).flatMap((path) => decodeRequest(readFileSync(path)).inputs);
const found = tensors.map((tensor) => pixels(tensor).catch(({ code, message }) => ({ code, message })));
console.log(JSON.stringify(await Promise.all(found)));
