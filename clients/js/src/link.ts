/** The connection to a broker, as little of MQTT 5 as this package needs. `openLink` makes one. */

export interface Message {
  readonly topic: string;
  readonly payload: Uint8Array;
  readonly retain: boolean;
  readonly contentType?: string;
  readonly responseTopic?: string;
  readonly correlation?: Uint8Array;
  /** Seconds. */
  readonly expiry?: number;
  readonly userProperties: Readonly<Record<string, string>>;
}

export interface LinkStatus {
  readonly status: "connecting" | "connected" | "lost" | "refused";
  /** For people; empty where all is well. */
  readonly reason: string;
  /** Whether the broker refused the login or asks for one. */
  readonly needsLogin: boolean;
}

export interface LinkOptions {
  /** `ws://`, `wss://` and, in node, `mqtt://` and `mqtts://`. */
  readonly url: string;
  readonly user?: string;
  readonly password?: string;
  /** The client id begins with it: `{name}~` and random hex digits. */
  readonly name?: string;
  /** Largest packet that is taken, in bytes. */
  readonly maxPacketSize?: number;
  readonly onStatus?: (status: LinkStatus) => void;
  /** Milliseconds that `openLink` waits for the first connection; without it, it keeps trying. */
  readonly timeoutMs?: number;
  /** Ends the wait for the first connection. */
  readonly signal?: AbortSignal;
  /** In node: the authority that signed the broker's certificate, and the client's own certificate and key, as PEM. */
  readonly tls?: { readonly ca?: string; readonly cert?: string; readonly key?: string };
}

export interface Link {
  /** Largest packet that the broker takes, in bytes. */
  readonly maxPacketSize: number;
  /** Subscribe, also after each reconnect; messages come in order. Rejects where the broker refuses the filter. */
  subscribe(filter: string, qos: 0 | 1, onMessage: (message: Message) => void): Promise<void>;
  unsubscribe(filter: string): Promise<void>;
  /** Publish with QoS 1; resolves to the PUBACK's reason code (0, or 0x10 where nobody subscribes). */
  publish(
    message: Omit<Message, "retain" | "userProperties"> & { userProperties?: Record<string, string> },
  ): Promise<number>;
  close(): Promise<void>;
}
