// Ask a model from node: node infer.mjs [mqtt://broker:1883]
import { Client } from "mqinfer-client";

const client = await Client.connect(process.argv[2] ?? "mqtt://127.0.0.1:1883");
try {
  const { outputs, worker } = await client.infer(
    "half_plus_two",
    { x: new Float32Array([1, 2, 5]) },
    { timeoutMs: 5000 },
  );
  console.log(outputs.y.data, worker);
} finally {
  await client.close();
}
