/** Decodes a result and the preview of the same frame into what a tile shows. */

import type { MqinferError } from "mqinfer-client";
import { type Drops, PREVIEW_LIMITS, RESULT_LIMITS } from "../bounds.js";
import type { Decoder } from "../platform.js";
import type { ClassInfo, ShownFrame } from "../types.js";
import type { Answer, Preview } from "./messages.js";
import { readOutputs, type Shown } from "./outputs.js";

export interface FrameContext {
  readonly decoder: Decoder;
  readonly drops: Drops;
  readonly classes: readonly ClassInfo[];
  /** Size of the model's picture by its card, for results without a preview. */
  readonly size: readonly [number, number] | null;
  readonly maskPixels: number;
}

const NOTHING: Shown = { mask: null, boxes: [], labels: [] };

/** Decode a frame. What can't be decoded is left out and counted; the frame then says why. */
export async function decodeFrame(answer: Answer, preview: Preview | null, context: FrameContext): Promise<ShownFrame> {
  const size = preview?.size ?? context.size;
  const [shown, error] = decodeOutputs(answer, size, context);
  const picture = preview ? await decodePreview(preview, context) : null;
  return {
    sequence: answer.sequence,
    captureTimeNs: answer.captureTimeNs,
    receivedMs: answer.receivedMs,
    size,
    preview: picture,
    ...shown,
    ...answer.reply,
    error: answer.error ?? error,
    fallback: answer.fallback,
  };
}

function decodeOutputs(
  answer: Answer,
  size: ShownFrame["size"],
  { decoder, classes, maskPixels, drops }: FrameContext,
): [Shown, ShownFrame["error"]] {
  try {
    const decode = (tensor: Parameters<Decoder["decodeTensor"]>[0]) => decoder.decodeTensor(tensor, RESULT_LIMITS);
    return [readOutputs(answer.outputs, { decode, classes, maskPixels, size }), null];
  } catch (error) {
    const { code, message } = error as MqinferError;
    drops.add(code === "limit_exceeded" ? "too large" : "bad output");
    return [NOTHING, { code: code ?? "internal", message }];
  }
}

async function decodePreview(preview: Preview, context: FrameContext): Promise<ImageBitmap | null> {
  try {
    return await context.decoder.decodePicture(preview.picture, PREVIEW_LIMITS);
  } catch {
    context.drops.add("bad picture");
    return null;
  }
}
