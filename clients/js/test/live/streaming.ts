/** Put frames into a stream, faster than its model runs, and print each outcome with the number that came back. */

import { Client, type StreamOptions } from "../../src/index.js";

const [url = "", root = "", count = "0"] = process.argv.slice(2);
const client = await Client.connect(url, { name: "asker", root, timeoutMs: 120_000 });

async function outcomes(options: StreamOptions): Promise<unknown> {
  const stream = await client.stream("echo", options);
  const putting = (async () => {
    for (let number = 0; number < Number(count); number++) {
      await new Promise((resolve) => setTimeout(resolve, 3));
      await stream.put({ x: { data: new Float32Array(4).fill(number), shape: [1, 4] } }, { source: "camera" });
    }
    stream.close();
  })();
  const found: unknown[] = [];
  for await (const { outcome, capture, result, error } of stream)
    found.push([outcome, capture.sequence, result ? result.outputs.x?.data[3] : error?.message]);
  await putting;
  return { found, outcomes: stream.outcomes() };
}

const answers = { latest: await outcomes({}), all: await outcomes({ policy: "all", window: 4 }) };
console.log(JSON.stringify({ ...answers, counters: client.counters() }));
await client.close();
