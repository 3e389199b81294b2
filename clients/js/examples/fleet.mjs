// Many requests at once, one of them cancelled, and what each error means: node fleet.mjs [mqtt://broker:1883]
import { Client, MqinferError } from "mqinfer-client";

const client = await Client.connect(process.argv[2] ?? "mqtt://127.0.0.1:1883", { name: "fleet", timeoutMs: 5000 });
const numbers = Array.from({ length: 100 }, (_, number) =>
  client.infer("half_plus_two", { x: new Float32Array([number]) }),
);
const results = await Promise.all(numbers);
console.log(results.reduce((sum, { outputs }) => sum + outputs.y.data[0], 0));

for (const [what, attempt] of [
  ["a wrong name", () => client.infer("half_plus_two", { z: new Float32Array(1) })],
  ["cancelled", () => client.infer("half_plus_two", { x: new Float32Array(1) }, { signal: AbortSignal.abort() })],
]) {
  try {
    await attempt();
  } catch (error) {
    if (!(error instanceof MqinferError)) throw error;
    console.log(`${what}: ${error.code}`);
  }
}
console.log(client.counters());
await client.close();
