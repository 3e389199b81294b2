/** Connect over TLS with logins that the broker refuses, and with one that it accepts; print what came of each. */

import { readFileSync } from "node:fs";
import { Client, type LinkStatus, type MqinferError } from "../../src/index.js";

const [url = "", user = "", password = "", caFile = ""] = process.argv.slice(2);
const tls = { ca: readFileSync(caFile, "utf8") };
const statuses: string[] = [];
const failed = (error: MqinferError) => error.code;
const said = (error: MqinferError) => error.message.split("; ").at(-1);
const onStatus = ({ status, needsLogin }: LinkStatus) => statuses.push(`${status} ${needsLogin}`);
const refused = await Client.connect(url, { user, password: "wrong", tls, onStatus }).then(() => "connected", said);
const without = await Client.connect(url, { tls }).then(() => "connected", said);
const stranger = await Client.connect(url, { user, password, connectTimeoutMs: 2_000 }).then(() => "connected", failed);
const client = await Client.connect(url, { user, password, tls });
const answer = await client.infer("echo", { x: { data: new Float32Array(4), shape: [1, 4] } }, { timeoutMs: 60_000 });
await client.close();
const other = await Client.connect(url, { user, password, tls, name: "car-2" });
const inAnothersName = await other.infer("echo", { x: new Float32Array(1) }, { timeoutMs: 60_000 }).catch(failed);
await other.close();
console.log(
  JSON.stringify({ refused, without, statuses, stranger, name: client.name, worker: answer.worker, inAnothersName }),
);
