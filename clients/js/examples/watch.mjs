// Print the results that others get of a model: node watch.mjs MODEL [mqtt://broker:1883]
import { Client } from "mqinfer-client";

const [model = "half_plus_two", url = "mqtt://127.0.0.1:1883"] = process.argv.slice(2);
const client = await Client.connect(url);
const watch = await client.watch(model, { buffer: 100 });
process.once("SIGINT", () => client.close());
console.log(`results of ${model}; end with Ctrl+C`);
for await (const { client: asker, request, reply } of watch) {
  console.log(
    asker,
    request,
    reply.outcome,
    reply.worker,
    reply.outputs.map((tensor) => `${tensor.name} [${tensor.shape}]`),
  );
}
console.log(watch.counters());
