/** What is published and received, as mqtt.js has it and as this package has it. */

import type { IPublishPacket } from "mqtt";
import type { Message } from "../link.js";

/** A message to publish. */
export type Outgoing = Omit<Message, "retain" | "userProperties"> & { userProperties?: Record<string, string> };

type Properties = NonNullable<IPublishPacket["properties"]>;

const utf8 = new TextEncoder();

/** Return the properties of a PUBLISH. */
export function propertiesOf(message: Outgoing): Properties {
  const properties: Properties = {};
  if (message.contentType !== undefined) properties.contentType = message.contentType;
  if (message.responseTopic !== undefined) properties.responseTopic = message.responseTopic;
  // mqtt.js calls `Buffer` what is any array of bytes to it.
  if (message.correlation !== undefined) properties.correlationData = message.correlation as Buffer;
  if (message.expiry !== undefined) properties.messageExpiryInterval = message.expiry;
  if (message.userProperties !== undefined) properties.userProperties = message.userProperties;
  return properties;
}

/** Return the size of a PUBLISH with QoS 1, in bytes. */
export function packetSize(message: Outgoing): number {
  const text = (value: string | undefined, head: number) =>
    value === undefined ? 0 : head + utf8.encode(value).length;
  let properties = text(message.contentType, 3) + text(message.responseTopic, 3);
  if (message.correlation !== undefined) properties += 3 + message.correlation.length;
  if (message.expiry !== undefined) properties += 5;
  for (const [name, value] of Object.entries(message.userProperties ?? {}))
    properties += text(name, 3) + text(value, 2);
  const rest = text(message.topic, 2) + 2 + lengthBytes(properties) + properties + message.payload.length;
  return 1 + lengthBytes(rest) + rest;
}

/** Return how many bytes a length of MQTT takes. */
function lengthBytes(length: number): number {
  if (length < 1 << 7) return 1;
  if (length < 1 << 14) return 2;
  return length < 1 << 21 ? 3 : 4;
}

/** Return a received PUBLISH; its payload is a view, not a copy. */
export function messageOf(packet: IPublishPacket): Message {
  const found = packet.properties ?? {};
  const message: { -readonly [Field in keyof Message]: Message[Field] } = {
    topic: packet.topic,
    payload: bytesOf(packet.payload),
    retain: packet.retain,
    userProperties: firstValues(found.userProperties),
  };
  if (typeof found.contentType === "string") message.contentType = found.contentType;
  if (typeof found.responseTopic === "string") message.responseTopic = found.responseTopic;
  if (found.correlationData instanceof Uint8Array) message.correlation = bytesOf(found.correlationData);
  if (typeof found.messageExpiryInterval === "number") message.expiry = found.messageExpiryInterval;
  return message;
}

/** Return the identifiers of the subscriptions that a message came for; none where the broker does not state them. */
export function subscriptionsOf(packet: IPublishPacket): number[] {
  const stated: unknown = packet.properties?.subscriptionIdentifier;
  if (typeof stated === "number") return [stated];
  return Array.isArray(stated) ? stated : [];
}

function bytesOf(data: string | Uint8Array): Uint8Array {
  if (typeof data === "string") return utf8.encode(data);
  return new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
}

/** Of a property that comes several times the first value counts. */
function firstValues(found: object | undefined): Record<string, string> {
  const values: Record<string, string> = Object.create(null);
  for (const [name, value] of Object.entries(found ?? {})) values[name] = Array.isArray(value) ? value[0] : value;
  return values;
}
