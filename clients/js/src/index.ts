export { CHECKSUM, checksum } from "./checksum.js";
export { Client, type ClientCounters, type ClientOptions } from "./client.js";
export { CONTENT_TYPE, decodeReply, decodeRequest, encodeReply, encodeRequest } from "./envelope.js";
export * from "./errors.js";
export { DEFAULT_LIMITS } from "./limits.js";
export type * from "./link.js";
export { openLink } from "./mqtt_link.js";
export { type DetectedBox, findBoxes, findMask, findTop, type TopClass } from "./pictures/answers.js";
export type { Placement, Plane } from "./pictures/placement.js";
export type { PictureResult } from "./pictures/result.js";
export type { Picture, Pixels } from "./pictures/sending.js";
export type { InferOptions, Input, Inputs, Result } from "./requests/messages.js";
export { type ClassInfo, type ImageContract, type ModelCard, readCard, type TensorSpec } from "./states/card.js";
export {
  type ClientState,
  type PendingRequests,
  readClientState,
  readWorkerState,
  type ServedModel,
  type StreamState,
  type WorkerState,
} from "./states/states.js";
export type { FrameResult, Stream, StreamOptions } from "./stream.js";
export {
  decodePicture,
  decodePixels,
  decodeTensor,
  type EncodeOptions,
  encodePicture,
  encodeTensor,
} from "./tensors.js";
export { type Address, checkName, DEFAULT_ROOT, isName, type NameKind, Topics } from "./topics.js";
export type * from "./types.js";
export type { Watch, WatchCounters, Watched, WatchOptions } from "./watch.js";
