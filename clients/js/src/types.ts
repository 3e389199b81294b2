/** What travels: tensors, requests and replies, as decoded from or to be encoded into a payload. */

/** Datatypes of the Open Inference Protocol. */
export type Datatype =
  | "BOOL"
  | "UINT8"
  | "UINT16"
  | "UINT32"
  | "UINT64"
  | "INT8"
  | "INT16"
  | "INT32"
  | "INT64"
  | "FP16"
  | "FP32"
  | "FP64"
  | "BYTES";

/** A value of `parameters`: integers beyond 2^53 are bigints. */
export type Scalar = boolean | number | bigint | string;
export type Parameters = Record<string, Scalar>;

/** Elements in row-major order. BOOL is 0 and 1; 64-bit integers are bigints; FP16 is widened to 32 bits; BYTES are bytes. */
export type TensorData =
  | Uint8Array
  | Uint16Array
  | Uint32Array
  | BigUint64Array
  | Int8Array
  | Int16Array
  | Int32Array
  | BigInt64Array
  | Float32Array
  | Float64Array
  | Uint8Array[];

/** An array with its name, as a model gets or gives it. */
export interface Tensor {
  readonly name: string;
  readonly datatype: Datatype;
  readonly shape: readonly number[];
  readonly data: TensorData;
}

/** A tensor as it lies in a payload: `bytes` is a view, not a copy. `decodeTensor` expands it. */
export interface EncodedTensor {
  readonly name: string;
  readonly datatype: Datatype;
  readonly shape: readonly number[];
  readonly encoding: string;
  readonly parameters: Parameters;
  readonly bytes: Uint8Array;
}

/** Where and when a frame was recorded. */
export interface Capture {
  readonly source?: string;
  readonly sequence?: number;
  /** Nanoseconds since the epoch. */
  readonly captureTimeNs?: bigint;
  readonly frameId?: string;
}

export interface RequestedOutput {
  readonly name: string;
  readonly encoding?: string;
  readonly classification?: number;
}

export interface Request {
  readonly id: string;
  readonly modelName: string;
  readonly modelVersion?: string;
  readonly inputs: readonly EncodedTensor[];
  readonly outputs?: readonly RequestedOutput[];
  /** Microseconds left until the deadline. */
  readonly timeoutUs?: number;
  readonly priority?: number;
  readonly attempt?: number;
  readonly responseTopic?: string;
  readonly capture?: Capture;
  /** Further parameters of the request. */
  readonly parameters?: Parameters;
}

export type Outcome = "ok" | "error" | "expired" | "superseded" | "rejected" | "cancelled";
export type Stage = "worker" | "edge" | "edge-reuse";

/** Nanoseconds of each part of a request's time; those that a reply does not state are 0. */
export interface Timings {
  readonly clientQueue: number;
  readonly transmission: number;
  readonly serverQueue: number;
  readonly decode: number;
  readonly preprocess: number;
  readonly inference: number;
  readonly postprocess: number;
  readonly encode: number;
}

export interface Reply {
  readonly id: string;
  readonly modelName: string;
  readonly modelVersion: string;
  readonly outcome: Outcome;
  readonly error?: { readonly code: string; readonly message: string };
  readonly outputs: readonly EncodedTensor[];
  readonly modelHash: string;
  readonly worker: string;
  readonly stage: Stage;
  readonly timings: Timings;
  readonly load?: { readonly depth: number; readonly serviceTimeUs: number; readonly window: number };
  readonly attempt: number;
  readonly capture: Capture;
  readonly parameters: Parameters;
}

/** Bounds that are checked before memory is taken (docs/reference/protocol.md, section 11). */
export interface Limits {
  readonly payloadBytes: number;
  readonly headerBytes: number;
  readonly tensors: number;
  readonly dimensions: number;
  readonly tensorBytes: number;
  readonly imagePixels: number;
  readonly stringBytes: number;
}
