/** Send pictures in every form that node has to a real worker; print what was found, or the error, as one line of JSON. */

import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";
import { Client, MqinferError, type Picture } from "../../src/index.js";
import { described } from "./described.js";

const [url = "", root = "", file = "", jpeg = "", rgba = "", alpha = ""] = process.argv.slice(2);
const client = await Client.connect(url, { name: "asker", root, timeoutMs: 60_000 });

async function found(model: string, picture: Picture | readonly Picture[], timeoutMs = 60_000): Promise<unknown> {
  try {
    return described(await client.inferPicture(model, picture, { timeoutMs }));
  } catch (error) {
    if (error instanceof MqinferError) return { code: error.code, message: error.message };
    return String(error);
  }
}

const bytes = new Uint8Array(readFileSync(file));
const { width, height, data } = JSON.parse(readFileSync(rgba, "utf8"));
const pixels = { width, height, data: Uint8Array.from(Buffer.from(data, "base64")) };
const answers = {
  path: await found("blobs", file),
  url: await found("blobs", pathToFileURL(file)),
  bytes: await found("blobs", bytes),
  buffer: await found("blobs", bytes.buffer),
  blob: await found("blobs", new Blob([bytes])),
  pixels: await found("blobs", pixels),
  jpeg: await found("blobs", jpeg),
  alpha: await found("blobs", alpha),
  stereo: await found("stereo", [file, jpeg]),
  wrong: {
    text: await found("blobs", new TextEncoder().encode("text")),
    size: await found("blobs", { ...pixels, width: width + 1 }),
    nothing: await found("blobs", {} as Picture),
    several: await found("blobs", [file, file]),
    few: await found("stereo", file),
    none: await found("plain", file),
    nobody: await found("nobody", file, 200),
    path: await found("blobs", "none.png"),
  },
};
const waiting = found("nobody", file);
await client.close();
console.log(JSON.stringify({ ...answers, closed: await waiting, after: await found("blobs", file) }));
