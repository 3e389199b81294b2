import type { Timings } from "mqinfer-client";

/** The parts of a request's time in the order in which they pass, with a class each that sets its colour. */
export const PARTS: readonly { readonly key: keyof Timings; readonly name: string; readonly className: string }[] = [
  { key: "clientQueue", name: "client queue", className: "part-client-queue" },
  { key: "transmission", name: "transit", className: "part-transmission" },
  { key: "serverQueue", name: "server queue", className: "part-server-queue" },
  { key: "decode", name: "decode", className: "part-decode" },
  { key: "preprocess", name: "preprocess", className: "part-preprocess" },
  { key: "inference", name: "inference", className: "part-inference" },
  { key: "postprocess", name: "postprocess", className: "part-postprocess" },
  { key: "encode", name: "encode", className: "part-encode" },
];
