/** What the page's data needs of the browser; tests bring their own. */

import {
  decodePicture,
  decodeTensor,
  type EncodedTensor,
  type Limits,
  type Link,
  type LinkOptions,
  openLink,
  type Tensor,
} from "mqinfer-client";

/** Decoders of tensors and pictures. */
export interface Decoder {
  decodeTensor(tensor: EncodedTensor, limits: Limits): Tensor;
  decodePicture(tensor: EncodedTensor, limits: Limits): Promise<ImageBitmap>;
}

export interface Clock {
  /** Milliseconds that never go back. */
  nowMs(): number;
  /** Milliseconds since the epoch. */
  epochMs(): number;
  /** Run something once; returns what cancels it. */
  after(delayMs: number, run: () => void): () => void;
  /** Run something again and again; returns what ends it. */
  every(intervalMs: number, run: () => void): () => void;
}

export interface Platform {
  readonly clock: Clock;
  readonly decoder: Decoder;
  openLink(options: LinkOptions): Promise<Link>;
  /** Whether the page is in a hidden tab. */
  isHidden(): boolean;
  /** Return the address of a WebSocket, which may be relative to the page's own. */
  resolve(address: string): string;
}

/** Return the browser's own. */
export function browserPlatform(): Platform {
  return {
    clock: {
      nowMs: () => performance.now(),
      epochMs: () => Date.now(),
      after(delayMs, run) {
        const timer = setTimeout(run, delayMs);
        return () => clearTimeout(timer);
      },
      every(intervalMs, run) {
        const timer = setInterval(run, intervalMs);
        return () => clearInterval(timer);
      },
    },
    decoder: { decodeTensor, decodePicture },
    openLink,
    isHidden: () => document.hidden,
    resolve(address) {
      const url = new URL(address, document.baseURI);
      url.protocol = url.protocol.replace(/^http/, "ws");
      return url.href;
    },
  };
}
