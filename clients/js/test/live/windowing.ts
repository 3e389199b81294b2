/** Adapt a window to the replies of a file; print its limit after each, for tests/clients/test_js_lanes.py. */

import { readFileSync } from "node:fs";
import { DelayWindow } from "../../src/requests/window.js";
import type { Timings } from "../../src/types.js";

interface Event {
  readonly now: number;
  readonly timings?: Timings;
}

const [share = "1", file = ""] = process.argv.slice(2);
const window = new DelayWindow(32, Number(share));
const limits = (JSON.parse(readFileSync(file, "utf8")) as Event[]).map(({ now, timings }) => {
  if (timings) window.onReply(timings, now);
  else window.onTimeout();
  return window.limit;
});
console.log(JSON.stringify(limits));
