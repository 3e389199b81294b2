/** What tests/clients/test_js_client.py calls in a browser. */

import { Client, type Picture } from "../../src/index.js";
import { described } from "./described.js";

declare global {
  interface Window {
    answered?: number;
  }
}

/** Send requests, sixteen at a time, and return the counters; `window.answered` is the progress. */
export async function many(url: string, root: string, count: number): Promise<unknown> {
  const client = await Client.connect(url, { name: "page", root, patienceMs: 120_000, timeoutMs: 240_000 });
  let next = 0;
  window.answered = 0;
  const ask = async () => {
    while (next < count) {
      const number = next++;
      const { outputs } = await client.infer("echo", { x: { data: new Float32Array(4).fill(number), shape: [1, 4] } });
      if (!outputs.x?.data.every((value) => value === number))
        throw new Error(`request ${number} got another's result`);
      window.answered = (window.answered ?? 0) + 1;
    }
  };
  await Promise.all(Array.from({ length: 16 }, ask));
  const counters = client.counters();
  await client.close();
  return counters;
}

/** Send a picture in every form that a page has; return what was found in each. */
export async function pictures(url: string, root: string, jpegAddress: string, alphaAddress: string): Promise<unknown> {
  const client = await Client.connect(url, { name: "page", root, timeoutMs: 60_000 });
  const found = async (picture: Picture) => described(await client.inferPicture("blobs", picture));
  const jpeg = await (await fetch(jpegAddress)).blob();
  const bitmap = await createImageBitmap(jpeg);
  const canvas = document.createElement("canvas");
  canvas.width = bitmap.width;
  canvas.height = bitmap.height;
  const context = canvas.getContext("2d") as CanvasRenderingContext2D;
  context.drawImage(bitmap, 0, 0);
  const answers = {
    file: await found(new File([jpeg], "a.jpg")),
    bytes: await found(await jpeg.arrayBuffer()),
    alpha: await found(await (await fetch(alphaAddress)).blob()),
    drawn: {
      bitmap: await found(bitmap),
      canvas: await found(canvas),
      pixels: await found(context.getImageData(0, 0, canvas.width, canvas.height)),
    },
    path: await found("a.jpg").catch((error: Error) => error.message),
  };
  await client.close();
  return answers;
}
