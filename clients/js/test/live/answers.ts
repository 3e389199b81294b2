/** Ask a real worker for all kinds of things; print what came of each as one line of JSON. */

import { Client, type InferOptions, type Inputs, MqinferError, type Result } from "../../src/index.js";

const [url = "", root = ""] = process.argv.slice(2);
const client = await Client.connect(url, { name: "asker", root, patienceMs: 60_000, timeoutMs: 120_000 });

const zeros = (count: number) => ({ data: new Float32Array(count), shape: [count / 4, 4] });

/** Return the values of each output, or the code of the error. */
async function answer(model: string, inputs: Inputs, options: InferOptions = {}): Promise<unknown> {
  try {
    return values(await client.infer(model, inputs, options));
  } catch (error) {
    if (error instanceof MqinferError) return { code: error.code, message: error.message };
    throw error;
  }
}

function values({ outputs }: Result): unknown {
  return Object.fromEntries(
    Object.entries(outputs).map(([name, { datatype, shape, data }]) => [name, { datatype, shape, data: plain(data) }]),
  );
}

function plain(data: Iterable<unknown>): unknown[] {
  return Array.from(data, (each) => {
    if (each instanceof Uint8Array) return new TextDecoder().decode(each);
    return typeof each === "bigint" ? String(each) : each;
  });
}

const mask = Uint8Array.from({ length: 64 * 48 }, (_, place) => (place % 64 < 20 ? 3 : place % 5 === 0 ? 1 : 0));
const found = {
  half_plus_two: await answer("half_plus_two", { x: new Float32Array([1, 2, 5]) }),
  version: await answer("half_plus_two", { x: new Float32Array([1]) }, { version: 123 }),
  words: await answer("words", { words: ["grün", "", "a".repeat(5_000)] }),
  int64: await answer("integers", { big: new BigInt64Array([-(2n ** 63n), 2n ** 53n + 1n]) }),
  outputs: await answer("two", { a: new Int32Array([1, 2]), b: new Uint8Array([7, 8]) }, { outputs: ["b"] }),
  lz4: await answer("echo", { x: { data: new Float32Array(8).fill(2), shape: [2, 4], encoding: "shuffle-lz4" } }),
  mask: await answer(
    "mask",
    { mask: { data: mask, shape: [1, 48, 64], encoding: "mask" } },
    { outputEncoding: "mask", source: "camera", sequence: 4, priority: 1, parameters: { run: "one" } },
  ),
  same_mask: Array.from(mask),
  wrong_tensor: await answer("half_plus_two", { z: new Float32Array(3) }),
  wrong_name: await answer("no/model", { x: new Float32Array(3) }),
  wrong_elements: await answer("echo", { x: { data: new Float32Array(3), shape: [2, 4] } }),
  too_large: await answer("echo", { x: zeros(17_000_000) }),
  slow: await answer("slow", { x: zeros(4) }),
  expired: await answer("slow", { x: zeros(4) }, { timeoutMs: 200 }),
  cancelled: await answer("slow", { x: zeros(4) }, { signal: AbortSignal.timeout(200) }),
  aborted: await answer("slow", { x: zeros(4) }, { signal: AbortSignal.abort() }),
  counters: client.counters(),
};
await client.close();
const closed = await answer("half_plus_two", { x: new Float32Array(3) });

const hasty = await Client.connect(url, { name: "hasty", root, patienceMs: 100, maxPending: 2 });
const failure = ({ code, message }: MqinferError) => ({ code, message });
const x = new Float32Array(1);
const mistyped = await hasty.infer("half_plus_tow", { x }).catch(failure);
const without_version = await hasty.infer("half_plus_two", { x }, { version: 7 }).catch(failure);
const card = await hasty.card("half_plus_tow", { timeoutMs: 600_000 }).catch(failure);
const crowd = await Promise.allSettled([1, 2, 3].map(() => hasty.infer("slow", { x: zeros(4) }, { timeoutMs: 200 })));
const crowded = crowd.map((each) => (each.status === "rejected" ? each.reason.code : "ok"));
await hasty.close();
console.log(JSON.stringify({ ...found, closed, mistyped, without_version, card, crowded }));
