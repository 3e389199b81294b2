/** The cards of the models that a client asks about: each is followed from the first question on. */

import { Cancelled, MqinferError } from "./errors.js";
import type { Link, Message } from "./link.js";
import { type ModelCard, readCard } from "./states/card.js";
import type { Topics } from "./topics.js";

/** A card, if it has come, and the questions that wait for it: each ends with an error, or with the card. */
interface Followed {
  card?: ModelCard | undefined;
  readonly waiting: Set<(error?: Error) => void>;
}

/** Return why no card has come after a time, or undefined where one may wait on: until that time is over. */
type Missing = (model: string, waitedMs: number, isOver: boolean) => MqinferError | undefined;

/** Bounded by the models that have a card: one without is no longer followed once nobody waits for it. */
export class Cards {
  readonly #link: Link;
  readonly #topics: Topics;
  readonly #followed = new Map<string, Followed>();

  readonly #patienceMs: number;
  readonly #missing: Missing;

  constructor(link: Link, topics: Topics, patienceMs: number, missing: Missing) {
    this.#link = link;
    this.#topics = topics;
    this.#patienceMs = patienceMs;
    this.#missing = missing;
  }

  /** Return a model's card, as soon as there is one. */
  get(model: string, timeoutMs: number, signal?: AbortSignal): Promise<ModelCard> {
    const topic = this.#topics.card(model);
    const followed = this.#followed.get(model) ?? this.#follow(model, topic);
    if (followed.card) return Promise.resolve(followed.card);
    return new Promise((resolve, reject) => {
      const end = (error?: Error) => {
        clearTimeout(timer);
        signal?.removeEventListener("abort", abort);
        followed.waiting.delete(end);
        if (followed.card) return resolve(followed.card);
        if (followed.waiting.size === 0 && this.#followed.delete(model)) void this.#link.unsubscribe(topic);
        reject(error);
      };
      const abort = () => end(new Cancelled("cancelled by the caller"));
      const look = (waitedMs: number) => {
        const error = this.#missing(model, waitedMs, waitedMs === timeoutMs);
        if (error) end(error);
        else timer = setTimeout(look, timeoutMs - waitedMs, timeoutMs);
      };
      const first = Math.min(this.#patienceMs, timeoutMs);
      let timer = setTimeout(look, first, first);
      signal?.addEventListener("abort", abort);
      followed.waiting.add(end);
    });
  }

  /** End all questions. */
  close(error: Error): void {
    for (const { waiting } of this.#followed.values()) for (const end of waiting) end(error);
  }

  #follow(model: string, topic: string): Followed {
    const followed: Followed = { waiting: new Set() };
    const end = (error?: Error) => [...followed.waiting].map((each) => each(error));
    this.#followed.set(model, followed);
    this.#link.subscribe(topic, 1, (message) => this.#receive(followed, message, end)).catch(end);
    return followed;
  }

  #receive(followed: Followed, { topic, payload }: Message, end: (error?: Error) => void): void {
    try {
      followed.card = readCard(this.#topics, topic, payload);
      if (followed.card) end();
    } catch (error) {
      if (!(error instanceof MqinferError)) throw error;
      end(error);
    }
  }
}
