/** A stream of frames whose client is a test: it ends each request when it wants to. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { BadTensor, Cancelled, type MqinferError, NotAuthorized, Superseded } from "../src/errors.js";
import { newRequest, type Result } from "../src/requests/messages.js";
import { NEWER_FRAME, type Sender, Stream, type StreamOptions } from "../src/stream.js";
import type { Request } from "../src/types.js";
import { NO_TIMINGS } from "./bench.js";

const X = { x: new Float32Array(4) };

/** What a client does for a stream. */
class Hand implements Sender {
  readonly sent: Request[] = [];
  readonly superseded: (readonly string[])[] = [];
  readonly #settles = new Map<string, (found: Result | MqinferError) => void>();
  ended: MqinferError | undefined;
  refuses: MqinferError | undefined;
  /** Whether each request is answered at once. */
  answers = false;
  #number = 0;

  failure(): MqinferError | undefined {
    return this.ended;
  }

  request(...[inputs, options]: Parameters<Sender["request"]>): Request {
    this.#number += 1;
    return newRequest("seg", inputs, options, { id: `r${this.#number}`, responseTopic: "t" });
  }

  send(...[request, , settle]: Parameters<Sender["send"]>): void {
    if (this.refuses) throw this.refuses;
    this.sent.push(request);
    this.#settles.set(request.id, settle);
    if (this.answers) queueMicrotask(() => this.settle(request.id));
  }

  cancel(id: string, why: Cancelled): void {
    this.settle(id, why);
  }

  supersede(ids: readonly string[]): void {
    this.superseded.push(ids);
  }

  /** End a request; without a result that of the oldest one. */
  settle(
    id = [...this.#settles.keys()][0] ?? "",
    found: Result | MqinferError = { timings: NO_TIMINGS } as Result,
  ): void {
    const settle = this.#settles.get(id);
    this.#settles.delete(id);
    settle?.(found);
  }
}

function opened(options: StreamOptions = {}, timeoutMs = 60_000): { hand: Hand; stream: Stream; left: Stream[] } {
  const hand = new Hand();
  const left: Stream[] = [];
  return { hand, left, stream: new Stream(hand, options, timeoutMs, (stream) => left.push(stream)) };
}

/** Read all outcomes of a closed stream. */
async function rest(stream: Stream): Promise<[string, number | undefined][]> {
  const found: [string, number | undefined][] = [];
  for await (const { outcome, capture } of stream) found.push([outcome, capture.sequence]);
  return found;
}

test("The newest frame takes the place of the one queued, which ends as superseded; results come in order", async () => {
  const { hand, stream } = opened();
  for (let number = 0; number < 5; number++) await stream.put(X);
  assert.deepEqual(
    hand.sent.map(({ capture }) => capture?.sequence),
    [0],
  );
  hand.settle();
  const { value } = await stream[Symbol.asyncIterator]().next();
  assert.deepEqual([value.outcome, value.capture.sequence, value.error], ["ok", 0, undefined]);
  assert.deepEqual(
    hand.sent.map(({ capture }) => capture?.sequence),
    [0, 4],
  );
  hand.settle();
  stream.close();
  assert.deepEqual(await rest(stream), [
    ["superseded", 1],
    ["superseded", 2],
    ["superseded", 3],
    ["ok", 4],
  ]);
  assert.deepEqual([stream.outcomes().ok, stream.outcomes().superseded], [2, 3]);
});

test("A frame that waits asks for the place of one that was sent; what was sent and is superseded lets it go", async () => {
  const { hand, stream } = opened();
  await stream.put(X);
  await stream.put(X);
  assert.deepEqual(hand.superseded, [["r2"]], "the first id is that of the options' check");
  hand.settle("r2", new Superseded(NEWER_FRAME));
  assert.deepEqual(
    hand.sent.map(({ id }) => id),
    ["r2", "r3"],
  );
});

test("A result that nobody has read keeps its place, so the frame that follows is the newest by then", async () => {
  const { hand, stream } = opened({ window: 1 });
  await stream.put(X);
  hand.settle();
  for (let number = 1; number < 50; number++) await stream.put(X);
  assert.equal(hand.sent.length, 1);
  await stream[Symbol.asyncIterator]().next();
  assert.equal(hand.sent[1]?.capture?.sequence, 49);
});

test("With the policy all a put waits for room, and reports after the timeout that nobody reads", async () => {
  const { hand, stream } = opened({ policy: "all", window: 2 }, 20);
  for (let number = 0; number < 4; number++) await stream.put(X, { sequence: 10 + number, source: "camera" });
  await assert.rejects(stream.put(X), { code: "expired", message: /no room within 0\.02 s; iterate/ });
  const waiting = stream.put(X);
  hand.settle();
  assert.equal((await stream[Symbol.asyncIterator]().next()).value.capture.sequence, 10);
  await waiting;
  hand.answers = true;
  for (let number = 0; number < 2; number++) hand.settle(); // what is in flight by now
  stream.close();
  assert.deepEqual(
    (await rest(stream)).map(([, sequence]) => sequence),
    [11, 12, 13, 4],
  );
});

test("Of several that wait for room, or for a result, each gets its own", async () => {
  const { hand, stream } = opened({ policy: "all", window: 1 });
  hand.answers = true;
  const puts = Array.from({ length: 6 }, () => stream.put(X));
  const results = stream[Symbol.asyncIterator]();
  const found = await Promise.all(Array.from({ length: 6 }, () => results.next()));
  await Promise.all(puts);
  assert.deepEqual(
    found.map(({ value }) => value.capture.sequence),
    [0, 1, 2, 3, 4, 5],
  );
});

test("What nobody reads is bounded, and inputs are not kept", async () => {
  const { stream } = opened();
  for (let number = 0; number < 1_024; number++) await stream.put(X);
  await assert.rejects(stream.put(X), { code: "rejected", message: /1024 outcomes are unread; iterate/ });
});

test("A frame that can not be sent has an outcome too", async () => {
  const { hand, stream } = opened({ policy: "all", window: 2 });
  hand.refuses = new BadTensor("wrong");
  for (let number = 0; number < 4; number++) await stream.put(X);
  stream.close();
  assert.deepEqual(
    (await rest(stream)).map(([outcome]) => outcome),
    ["error", "error", "error", "error"],
  );
  await assert.rejects(stream.put(X), { code: "cancelled", message: /open another one/ });
});

test("Leaving the loop cancels what is pending; nothing more is sent", async () => {
  const { hand, stream, left } = opened({ policy: "all", window: 4 });
  await stream.put(X);
  hand.settle();
  for (let number = 0; number < 3; number++) await stream.put(X);
  for await (const { outcome } of stream) {
    assert.equal(outcome, "ok");
    break;
  }
  assert.equal(stream.outcomes().cancelled, 3);
  assert.deepEqual(left, [stream]);
});

test("A connection that has ended for good ends the stream with its error, once all is read; a closed client without", async () => {
  for (const [why, ends] of [
    [new NotAuthorized("refused"), "not_authorized"],
    [new Cancelled("the client was closed"), "done"],
  ] as const) {
    const { hand, stream } = opened();
    await stream.put(X);
    hand.ended = why;
    stream.close();
    hand.settle("r2", new Cancelled("the client was closed"));
    await assert.rejects(stream.put(X), { code: why.code });
    const results = stream[Symbol.asyncIterator]();
    assert.equal((await results.next()).value.outcome, "cancelled");
    const last = await results.next().then(
      ({ done }) => (done ? "done" : "more"),
      (error: MqinferError) => error.code,
    );
    assert.equal(last, ends);
  }
});

test("A wrong option is an error at once", () => {
  const wrong = [
    { policy: "newest" },
    { window: 0 },
    { window: Number.NaN },
    { windw: 3 },
    { signal: AbortSignal.abort() },
  ];
  for (const options of wrong) assert.throws(() => opened(options as StreamOptions), { code: "config_error" });
  assert.throws(() => opened({ version: "1.x" }), { code: "bad_topic" });
});
