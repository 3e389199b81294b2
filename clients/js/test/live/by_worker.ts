/** Ask the model `echo` many times, with lanes and without, and print how many results came from each worker. */

import { Client } from "../../src/index.js";

const [url = "", root = "", count = "0"] = process.argv.slice(2);
const counts: Record<string, number>[] = [];
for (const lanes of [true, false]) {
  const client = await Client.connect(url, { name: "asker", root, lanes, window: 8, timeoutMs: 120_000 });
  const all = Array.from({ length: Number(count) }, () =>
    client.infer("echo", { x: { data: new Float32Array(4), shape: [1, 4] } }),
  );
  const by: Record<string, number> = {};
  for (const { worker } of await Promise.all(all)) by[worker] = (by[worker] ?? 0) + 1;
  counts.push(by);
  await client.close();
}
console.log(JSON.stringify(counts));
