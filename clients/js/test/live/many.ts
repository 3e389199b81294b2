/** Send many requests, 64 at a time, until standard input ends if no number is given; print the progress and counters. */

import { Client } from "../../src/index.js";

const [url = "", root = "", count = "0"] = process.argv.slice(2);
const client = await Client.connect(url, { name: "many", root, patienceMs: 120_000, timeoutMs: 240_000, window: 64 });
let mayEnd = false;
process.stdin.on("end", () => (mayEnd = true)).resume();
let next = 0;
let answered = 0;
const answers = new Map<string, number>();

async function ask(): Promise<void> {
  while (next < Number(count) || (count === "0" && !mayEnd)) {
    const number = next++;
    const { id, outputs } = await client.infer("echo", {
      x: { data: new Float32Array(4).fill(number), shape: [1, 4] },
    });
    answers.set(id, (answers.get(id) ?? 0) + 1);
    if (!outputs.x?.data.every((value) => value === number)) throw new Error(`request ${number} got another's result`);
    answered += 1;
    if (answered % 100 === 0) console.log(answered);
  }
}

await Promise.all(Array.from({ length: 64 }, ask));
console.log(JSON.stringify({ answered, requests: answers.size, ...client.counters() }));
await client.close();
