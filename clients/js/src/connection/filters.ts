/** The subscriptions of a link: which callbacks a message is for. */

import type { Message } from "../link.js";

export interface Subscription {
  readonly filter: string;
  readonly qos: 0 | 1;
  /** MQTT's Subscription Identifier: with it a broker states what a message came for. */
  readonly identifier: number;
  readonly onMessage: (message: Message) => void;
  /** Receives the broker's first answer, or the end of the link before there was one; further calls do nothing. */
  readonly settle: (refusal?: Error) => void;
}

/** Return whether a topic matches a filter. Topics that begin with `$` match no wildcard there. */
export function matches(filter: string, topic: string): boolean {
  const parts = (filter.startsWith("$share/") ? filter.split("/").slice(2).join("/") : filter).split("/");
  const levels = topic.split("/");
  if (topic.startsWith("$") && (parts[0] === "+" || parts[0] === "#")) return false;
  for (const [place, part] of parts.entries()) {
    if (part === "#") return true;
    if (place >= levels.length || (part !== "+" && part !== levels[place])) return false;
  }
  return parts.length === levels.length;
}

export class Subscriptions {
  readonly #byFilter = new Map<string, Subscription>();
  #last = 0;

  /** Add a subscription, or replace that of the same filter. */
  add(
    filter: string,
    qos: 0 | 1,
    onMessage: (message: Message) => void,
    settle: (refusal?: Error) => void,
  ): Subscription {
    this.#last += 1;
    const added = { filter, qos, identifier: this.#last, onMessage, settle };
    this.#byFilter.get(filter)?.settle();
    this.#byFilter.set(filter, added);
    return added;
  }

  /** Remove the subscription of a filter, or only a given one where another may have taken its place. */
  remove(filter: string, which?: Subscription): boolean {
    const found = this.#byFilter.get(filter);
    if (found === undefined || (which !== undefined && found !== which)) return false;
    found.settle();
    return this.#byFilter.delete(filter);
  }

  all(): Subscription[] {
    return [...this.#byFilter.values()];
  }

  /**
   * Return whom a message is for.
   *
   * @param topic Of the message.
   * @param identifiers Of the subscriptions that it came for. A broker sends a message once for each subscription that it
   *   matches, or once for all; without identifiers two overlapping subscriptions could not tell which.
   */
  receivers(topic: string, identifiers: readonly number[]): Subscription[] {
    const stated = identifiers.length > 0;
    return this.all().filter((each) => (stated ? identifiers.includes(each.identifier) : matches(each.filter, topic)));
  }
}
