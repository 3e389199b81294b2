/** What tests/clients/test_js_client.py calls in a browser. */

import { Client } from "../../src/index.js";

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
