import type { Timings } from "../types.js";

/** Return the time from the worker's receipt of a request to its reply, in nanoseconds. */
export function serverTime({ serverQueue, decode, preprocess, inference, postprocess, encode }: Timings): number {
  return serverQueue + decode + preprocess + inference + postprocess + encode;
}
