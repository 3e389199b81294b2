/** Names, topics built from names, and names parsed from topics: none with a wildcard, a slash or a NUL gets through. */

import { BadTopic } from "./errors.js";

/** The root of all topics, unless a site agrees on another. */
export const DEFAULT_ROOT = "mqinfer/v1";

/** Where a message came from or goes to, by its topic. */
export type Address =
  | { readonly kind: "infer"; readonly model: string; readonly client: string; readonly version?: string }
  | { readonly kind: "lane"; readonly worker: string; readonly model: string; readonly client: string }
  | { readonly kind: "result"; readonly model: string; readonly client: string; readonly request: string }
  | { readonly kind: "cancel"; readonly model: string; readonly client: string }
  | { readonly kind: "card"; readonly model: string }
  | { readonly kind: "worker"; readonly worker: string }
  | { readonly kind: "client"; readonly client: string }
  | { readonly kind: "preview"; readonly client: string; readonly stream: string };

/** What a name is of; each has its rule. */
export type NameKind = "client" | "worker" | "model" | "version" | "request" | "stream";

interface Rule {
  readonly pattern: RegExp;
  readonly words: string;
}

const OWN: Rule = {
  pattern: /^[a-z0-9][a-z0-9_.-]{0,63}$/,
  words: "1 to 64 lower-case letters, digits, '_', '.' or '-', beginning with a letter or digit",
};
const REQUEST: Rule = { pattern: /^[A-Za-z0-9_.-]{1,64}$/, words: "1 to 64 letters, digits, '_', '.' or '-'" };
const RULES: Readonly<Record<NameKind, Rule>> = {
  client: OWN,
  worker: OWN,
  model: {
    pattern: /^(?!control$)[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}$/,
    words: "1 to 64 letters, digits, '_', '.' or '-', beginning with a letter, a digit or '_', and not 'control'",
  },
  version: { pattern: /^(0|[1-9][0-9]{0,18})$/, words: "a decimal integer of at most 19 digits, such as 3" },
  request: REQUEST,
  stream: REQUEST,
};
// biome-ignore lint/suspicious/noControlCharactersInRegex: control characters are what a root must not have
const ROOT = /^[^/+#\x00-\x1f\x7f$][^/+#\x00-\x1f\x7f]*(\/[^/+#\x00-\x1f\x7f]+)*$/;
const MAX_ROOT_BYTES = 256;
const OUTSIDE_LEVEL = /[^A-Za-z0-9_.-]/gu;
const MAX_LEVEL = 64;

/** Return whether a name follows the rule of its kind. */
export function isName(kind: NameKind, name: string): boolean {
  return RULES[kind].pattern.test(name);
}

/**
 * Return a name that follows the rule of its kind.
 *
 * @throws BadTopic: It does not.
 */
export function checkName(kind: NameKind, name: string): string {
  if (typeof name !== "string" || !isName(kind, name)) {
    const shown = JSON.stringify(String(name).slice(0, 80));
    throw new BadTopic(`${kind} ${shown} can't be used in a topic; expected ${RULES[kind].words}`);
  }
  return name;
}

/** All topics below one root. Builders and `parse` throw BadTopic for names that break the rules. */
export class Topics {
  readonly root: string;
  /** Filter for all model cards. */
  readonly cards: string;
  /** Filter for the states of all workers. */
  readonly workerStates: string;
  /** Filter for the states of all clients. */
  readonly clientStates: string;
  /** Filter for the previews of all clients. */
  readonly previews: string;
  /** Filter for all results: what dashboards subscribe to. */
  readonly results: string;

  constructor(root: string = DEFAULT_ROOT) {
    if (!ROOT.test(root) || new TextEncoder().encode(root).length > MAX_ROOT_BYTES) {
      throw new BadTopic(
        `topic root ${JSON.stringify(root.slice(0, 80))} is wrong; it must be levels joined by '/', none empty, without ` +
          `'+', '#' or control characters, not beginning with '$', at most ${MAX_ROOT_BYTES} bytes, such as ${DEFAULT_ROOT}`,
      );
    }
    this.root = root;
    this.cards = `${root}/models/+/card`;
    this.workerStates = `${root}/workers/+/state`;
    this.clientStates = `${root}/clients/+/state`;
    this.previews = `${root}/clients/+/preview/+`;
    this.results = `${root}/results/+/+/+`;
  }

  /** Return the shared channel of a model, or of one version of it, for one sender. */
  infer(model: string, client: string, version?: string): string {
    const versions = version === undefined ? "" : `/versions/${checkName("version", version)}`;
    return `${this.root}/models/${checkName("model", model)}${versions}/infer/${checkName("client", client)}`;
  }

  /** Return the lane of a worker for one model and sender. */
  lane(worker: string, model: string, client: string): string {
    const sender = `${checkName("model", model)}/${checkName("client", client)}`;
    return `${this.root}/workers/${checkName("worker", worker)}/infer/${sender}`;
  }

  /** Return the topic of a client's cancellations to a model. */
  cancel(model: string, client: string): string {
    return `${this.root}/models/${checkName("model", model)}/cancel/${checkName("client", client)}`;
  }

  /** Return the topic of one reply. */
  result(model: string, client: string, request: string): string {
    const names = `${checkName("model", model)}/${checkName("client", client)}/${checkName("request", request)}`;
    return `${this.root}/results/${names}`;
  }

  /** Return the filter for all replies to one client. */
  resultsOfClient(client: string): string {
    return `${this.root}/results/+/${checkName("client", client)}/+`;
  }

  /** Return the filter for all replies of one model. */
  resultsOfModel(model: string): string {
    return `${this.root}/results/${checkName("model", model)}/+/+`;
  }

  /** Return the topic of a model's card. */
  card(model: string): string {
    return `${this.root}/models/${checkName("model", model)}/card`;
  }

  /** Return the topic of a worker's state. */
  workerState(worker: string): string {
    return `${this.root}/workers/${checkName("worker", worker)}/state`;
  }

  /** Return the topic of a client's state. */
  clientState(client: string): string {
    return `${this.root}/clients/${checkName("client", client)}/state`;
  }

  /**
   * Return the topic of a client's previews of one stream.
   *
   * @param source - Name of the stream, any text; receivers read it from the message, since two names may share a level.
   */
  preview(client: string, source: string): string {
    const level = source.replace(OUTSIDE_LEVEL, "_").replace(/^_+/, "").slice(0, MAX_LEVEL) || "stream";
    return `${this.root}/clients/${checkName("client", client)}/preview/${level}`;
  }

  /** Return what a topic below the root addresses, with its names. */
  parse(topic: string): Address {
    const levels = topic.startsWith(`${this.root}/`) ? topic.slice(this.root.length + 1).split("/", 8) : [];
    const found = addressOf(levels);
    if (found === undefined) {
      const shown = JSON.stringify(topic.slice(0, 200));
      throw new BadTopic(`${shown} is not a topic below ${JSON.stringify(this.root)} that this client knows`);
    }
    return found;
  }
}

/** Each kind of topic below the root; a level in braces is a name of that kind. */
const SHAPES: readonly (readonly [Address["kind"], readonly string[]])[] = (
  [
    ["infer", "models/{model}/infer/{client}"],
    ["infer", "models/{model}/versions/{version}/infer/{client}"],
    ["lane", "workers/{worker}/infer/{model}/{client}"],
    ["result", "results/{model}/{client}/{request}"],
    ["cancel", "models/{model}/cancel/{client}"],
    ["card", "models/{model}/card"],
    ["worker", "workers/{worker}/state"],
    ["client", "clients/{client}/state"],
    ["preview", "clients/{client}/preview/{stream}"],
  ] as const
).map(([kind, shape]) => [kind, shape.split("/")]);

function addressOf(levels: readonly string[]): Address | undefined {
  const found = SHAPES.find(
    ([, shape]) =>
      shape.length === levels.length && shape.every((level, place) => level[0] === "{" || level === levels[place]),
  );
  if (found === undefined) return undefined;
  const address: Record<string, string> = { kind: found[0] };
  for (const [place, level] of found[1].entries()) {
    if (level[0] !== "{") continue;
    const kind = level.slice(1, -1) as NameKind;
    address[kind] = checkName(kind, levels[place] ?? "");
  }
  return address as unknown as Address;
}
