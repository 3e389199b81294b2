/** Print the results of others as they come, then the counters: a line each. */

import { Client, decodeTensor } from "../../src/index.js";

const [url = "", root = "", model = "", count = "0"] = process.argv.slice(2);
const client = await Client.connect(url, { name: "watcher", root });
const first = await client.watch(model);
const second = await client.watch(model, { buffer: 2 });
console.log("watching");
let left = Number(count);
for await (const { client: asker, request, reply } of first) {
  const outputs = reply.outputs.map((tensor) => [tensor.name, Array.from(decodeTensor(tensor).data as Float32Array)]);
  console.log(JSON.stringify({ asker, request, outcome: reply.outcome, worker: reply.worker, outputs }));
  left -= 1;
  if (left === 0) break;
}
console.log(JSON.stringify({ first: first.counters(), second: second.counters() }));
await client.close();
for await (const _ of second) throw new Error("a closed watch has no results");
