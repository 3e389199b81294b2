/** Ask for versions of the model `echo` by their labels, and print which ones have answered. */

import { Client, type InferOptions, type MqinferError } from "../../src/index.js";

const [url = "", root = ""] = process.argv.slice(2);
const client = await Client.connect(url, { name: "asker", root, timeoutMs: 60_000 });
const inputs = { x: { data: new Float32Array(4), shape: [1, 4] } };
const failed = ({ code, message }: MqinferError) => `${code}: ${message}`;
const version = (options: InferOptions) =>
  client.infer("echo", inputs, options).then((each) => each.modelVersion, failed);
const stream = await client.stream("echo", { version: "canary" });
await stream.put(inputs);
stream.close();
const streamed: unknown[] = [];
for await (const { result } of stream) streamed.push(result?.modelVersion);
const shares = await Promise.all(Array.from({ length: 100 }, () => version({})));
console.log(
  JSON.stringify({
    stable: await version({ version: "stable" }),
    canary: await version({ version: "canary" }),
    next: await version({ version: "next" }),
    unlike: await version({ version: "toString" }),
    number: await version({ version: 1 }),
    wrong: await version({ version: "1.x" }),
    streamed,
    ofCanary: shares.filter((each) => each === "2").length,
    others: [...new Set(shares)].sort(),
  }),
);
await client.close();
