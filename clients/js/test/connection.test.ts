/** The parts of a connection that need no broker: back-off, liveness, filters, sizes. The clock is a number. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { Backoff } from "../src/connection/backoff.js";
import { matches, Subscriptions } from "../src/connection/filters.js";
import { Liveness } from "../src/connection/liveness.js";
import { messageOf, packetSize } from "../src/connection/packets.js";
import { eachOf } from "../src/connection/standby.js";
import { Client } from "../src/index.js";
import { openLink } from "../src/mqtt_link.js";
import { type InferOptions, newRequest } from "../src/requests/messages.js";

test("The pauses grow from 0.25 to 5 seconds, less up to half by chance, and begin anew after a good connection", () => {
  const backoff = new Backoff();
  assert.deepEqual(
    [1, 2, 3, 4, 5, 6, 7].map(() => backoff.next(0, 0)),
    [250, 500, 1000, 2000, 4000, 5000, 5000],
  );
  assert.equal(backoff.next(4_999, 1), 2_500);
  assert.equal(backoff.next(5_000, 1), 125);
});

/** Tick every second until a time; return the first verdict that is not `alive`, and when. */
function firstVerdict(liveness: Liveness, until: number, each: (now: number) => number = () => 0): [string, number] {
  for (let now = 1_000; now <= until; now += 1_000) {
    const verdict = liveness.tick(now, each(now));
    if (verdict !== "alive") return [verdict, now];
  }
  return ["alive", until];
}

test("A silent connection is pinged after ten seconds, sooner where the broker wants it", () => {
  assert.deepEqual(firstVerdict(new Liveness(0), 60_000), ["ping", 10_000]);
  assert.deepEqual(firstVerdict(new Liveness(0, 8_000), 60_000), ["ping", 4_000]);
});

test("What is received alone does not put off the ping: the broker waits for packets, too", () => {
  const liveness = new Liveness(0);
  const hear = (now: number) => {
    liveness.received(now);
    return 0;
  };
  assert.deepEqual(firstVerdict(liveness, 60_000, hear), ["ping", 10_000]);
});

test("A broker that owes an answer for more than five seconds is dead", () => {
  const liveness = new Liveness(0);
  liveness.sent(0, true);
  assert.deepEqual(firstVerdict(liveness, 60_000), ["dead", 6_000]);
});

test("It is not dead while bytes come, or leave the buffer", () => {
  const sending = new Liveness(0);
  sending.sent(0, true);
  assert.deepEqual(
    firstVerdict(sending, 9_000, (now) => 1_000_000 - now),
    ["alive", 9_000],
  );
  const receiving = new Liveness(0);
  receiving.sent(0, true);
  const hear = (now: number) => {
    receiving.received(now);
    return 0;
  };
  assert.deepEqual(firstVerdict(receiving, 9_000, hear), ["alive", 9_000]);
});

test("After this process was halted the broker gets its time anew", () => {
  const liveness = new Liveness(0);
  liveness.sent(0, true);
  assert.equal(liveness.tick(60_000, 0), "ping");
  assert.notEqual(liveness.tick(61_000, 0), "dead");
});

test("An answer ends what is owed, and others begin anew", () => {
  const liveness = new Liveness(0);
  liveness.sent(0, true);
  liveness.answered(4_000, 1);
  assert.deepEqual(firstVerdict(liveness, 9_000), ["alive", 9_000]);
  assert.equal(liveness.tick(10_000, 0), "dead");
});

const FILTERS: [string, string, boolean][] = [
  ["a/+/c", "a/b/c", true],
  ["a/+/c", "a/b/d", false],
  ["a/+", "a/b/c", false],
  ["a/#", "a", true],
  ["a/#", "a/b/c", true],
  ["+/b", "$SYS/b", false],
  ["#", "$SYS/b", false],
  ["a", "a/b", false],
  ["$share/workers/a/+", "a/b", true],
];
for (const [filter, topic, wanted] of FILTERS) {
  test(`The filter ${filter} ${wanted ? "takes" : "does not take"} ${topic}`, () => {
    assert.equal(matches(filter, topic), wanted);
  });
}

test("Overlapping subscriptions each get their own copies where the broker states for which a message came", () => {
  const subscriptions = new Subscriptions();
  const none = () => undefined;
  const all = subscriptions.add("r/#", 0, none, none);
  const one = subscriptions.add("r/a", 1, none, none);
  assert.deepEqual(subscriptions.receivers("r/a", [one.identifier]), [one]);
  assert.deepEqual(subscriptions.receivers("r/a", [all.identifier, one.identifier]), [all, one]);
  assert.deepEqual(subscriptions.receivers("r/a", []), [all, one]);
  assert.ok(subscriptions.remove("r/#", all));
  assert.ok(!subscriptions.remove("r/#", all));
});

test("The size of a packet is that of its bytes", () => {
  assert.equal(packetSize({ topic: "t", payload: new Uint8Array(3) }), 2 + 3 + 2 + 1 + 3);
  const full = {
    topic: "ü",
    payload: new Uint8Array(200),
    contentType: "c",
    responseTopic: "rr",
    correlation: new Uint8Array(16),
    expiry: 9,
    userProperties: { name: "value" },
  };
  const properties = 3 + 1 + (3 + 2) + (3 + 16) + 5 + (3 + 4 + 2 + 5);
  assert.equal(packetSize(full), 3 + (2 + 2) + 2 + 1 + properties + 200);
});

test("A property that comes twice has its first value, and names are only names", () => {
  const properties = { userProperties: { xxh3: ["a", "b"], constructor: "c" } };
  const packet = {
    cmd: "publish",
    topic: "t",
    payload: "text",
    qos: 0,
    retain: false,
    dup: false,
    properties,
  } as const;
  const { userProperties, payload } = messageOf(packet as unknown as Parameters<typeof messageOf>[0]);
  assert.deepEqual({ ...userProperties }, { xxh3: "a", constructor: "c" });
  assert.equal(payload.length, 4);
});

test("A URL of several brokers is one of each, with the same login and path", () => {
  assert.deepEqual(eachOf("wss://u:p@a:1,[::1]:2,c/mqtt?x=1,2"), [
    "wss://u:p@a:1/mqtt?x=1,2",
    "wss://u:p@[::1]:2/mqtt?x=1,2",
    "wss://u:p@c/mqtt?x=1,2",
  ]);
  for (const url of ["mqtt://u@a:1/x", "mqtt://a,b@c", "odd,one"]) assert.equal(eachOf(url).join(), url);
});

const MANY = Array(10).fill("a").join();

for (const url of [
  "mqtt://u@a,u@b",
  "mqtt://a,,b",
  `mqtt://${MANY}`,
  "broker",
  "http://broker",
  "mqtt://",
  "file:///etc/passwd",
]) {
  test(`No link is opened to ${url}`, async () => {
    await assert.rejects(openLink({ url }), { code: "config_error" });
  });
}

test("An option that there is not is refused, with those that there are", async () => {
  const wrong = (options: object) => Client.connect("ws://127.0.0.1:9", options);
  await assert.rejects(wrong({ username: "a" }), {
    code: "config_error",
    message: /^there is no option "username"; expected some of .*tls, user, .*; did you mean "user"\?$/,
  });
  await assert.rejects(wrong({ timeout: 1 }), { code: "config_error", message: /did you mean "timeoutMs"\?$/ });
  await assert.rejects(wrong({ password: "secret" }), { code: "config_error", message: /^a password needs the user/ });
  const address = { id: "r", responseTopic: "t" };
  const seconds = { timeout: 1 } as InferOptions;
  assert.throws(() => newRequest("m", { x: new Float32Array(1) }, seconds, address), /did you mean "timeoutMs"/);
});

test("Without an address the error says what one looks like", async () => {
  const nothing = undefined as unknown as string;
  await assert.rejects(openLink({ url: nothing, name: "n" }), {
    code: "config_error",
    message: /is not a URL; expected/,
  });
});

test("A password in an address may have a percent sign of its own", async () => {
  const percent = { url: "mqtt://user:100%@127.0.0.1:1", timeoutMs: 200 };
  await assert.rejects(openLink(percent), { code: "broker_unreachable" });
});

test("An error about an address names no password", async () => {
  await assert.rejects(openLink({ url: "http://user:secret@broker" }), (error: Error) => !/secret/.test(error.message));
});
