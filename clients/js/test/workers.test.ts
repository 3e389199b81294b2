/** Which worker is lost, by the states that come. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { Workers } from "../src/requests/workers.js";
import type { WorkerState } from "../src/states/states.js";

function state(status: WorkerState["status"], boot = 1, running: readonly string[] = [], name = "seg"): WorkerState {
  const served = { name, version: "1", isDefault: true, share: 0, precision: "", backend: "", device: "" };
  return {
    worker: "w",
    status,
    boot,
    models: [served],
    capacity: 1,
    depth: 0,
    serviceTimeUs: 0,
    counters: {},
    running,
  };
}

test("A worker that was ready and is lost, crashed or removed takes its models with it, once", () => {
  for (const end of [state("lost"), state("crashed"), undefined]) {
    const workers = new Workers();
    assert.deepEqual(workers.observe("w", state("ready")).lost, []);
    assert.deepEqual(workers.observe("w", state("ready")).lost, []);
    assert.deepEqual(workers.observe("w", state("draining")).lost, []);
    assert.deepEqual(workers.observe("w", end).lost, ["seg"]);
    assert.deepEqual(workers.observe("w", end).lost, []);
  }
});

test("Another process under the name means that the earlier one is gone; what comes late of that one does not", () => {
  const workers = new Workers();
  workers.observe("w", state("ready", 1));
  assert.deepEqual(workers.observe("w", state("ready", 2)).lost, ["seg"]);
  assert.deepEqual(workers.observe("w", state("lost", 1)).lost, []);
  assert.deepEqual(workers.observe("w", state("lost", 2)).lost, ["seg"]);
});

test("One that stopped has answered everything; a state that was kept of a lost one is no loss", () => {
  const workers = new Workers();
  workers.observe("w", state("ready"));
  assert.deepEqual(workers.observe("w", state("stopped")).lost, []);
  assert.deepEqual(workers.observe("w", undefined).lost, []);
  assert.deepEqual(new Workers().observe("w", state("lost")).lost, []);
});

test("A report of a crash names the requests, also behind the will, and of a worker that was never seen", () => {
  const workers = new Workers();
  workers.observe("w", state("ready"));
  workers.observe("w", state("lost"));
  assert.deepEqual(workers.observe("w", state("crashed", 1, ["r1"])), { lost: [], crashedOn: ["r1"] });
  assert.deepEqual(new Workers().observe("w", state("crashed", 1, ["r2"])).crashedOn, ["r2"]);
});

test("Strangers' workers are followed up to a bound", () => {
  const workers = new Workers();
  for (let number = 0; number < 5_000; number++) workers.observe(`w${number}`, state("ready"));
  assert.deepEqual(workers.observe("w0", state("lost")).lost, ["seg"]);
  assert.deepEqual(workers.observe("w4999", state("lost")).lost, []);
});

test("In place of a name that is not served are those that are, and the one that was probably meant", () => {
  const workers = new Workers();
  assert.equal(workers.insteadOf("set"), "");
  for (const name of ["street", "boxes", "seg"]) workers.observe(name, state("ready", 1, [], name));
  const here = "models that workers serve here: boxes, seg, street";
  assert.equal(workers.insteadOf("stret"), ` (${here}; did you mean "street"?)`);
  assert.equal(workers.insteadOf("nothing"), ` (${here})`);
  assert.equal(workers.insteadOf("seg", "3"), " (versions of it: 1)");
  assert.deepEqual(
    ["stret", "nothing", "seg", "set", "ab"].map((name) => workers.isMistyped(name)),
    [true, false, false, true, false],
  );
  workers.observe("street", state("stopped"));
  assert.ok(!workers.isMistyped("stret"));
  for (let at = 0; at < 20; at++) workers.observe(`w${at}`, state("ready", 1, [], `m${at}`));
  assert.match(workers.insteadOf("nothing"), /boxes, m0, m1, m10, .*, m8 and 2 more\)$/);
  assert.match(workers.insteadOf("box"), /did you mean "boxes"/);
});
