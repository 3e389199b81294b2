/** The addresses of a broker and its standbys, and the way back from a standby. */

import type { IClientOptions } from "mqtt";
import { ConfigError } from "../errors.js";
import { type End, Session } from "./session.js";

const MOST_STANDBYS = 8;
/** Looks start at multiples of this time of the clock, so that processes whose clocks agree return together. */
const LOOK_MS = 2000;

/** Return the URL of each broker of one such as `wss://car-1@a:8084,b:8084/mqtt`, in the order in which they are tried. */
export function eachOf(url: string): string[] {
  const [, before = "", hosts = "", after = ""] = /^([^/]*\/\/(?:[^/@]*@)?)([^/?#]*)(.*)$/s.exec(url) ?? [];
  const each = hosts.split(",");
  if (each.length === 1) return [url];
  if (hosts.includes("@"))
    throw new ConfigError("the broker's URL has a login at a standby; give it once, at the first host");
  if (each.length > 1 + MOST_STANDBYS) {
    throw new ConfigError(`the broker's URL has ${each.length} hosts; expected ${1 + MOST_STANDBYS} at most`);
  }
  return each.map((host) => before + host + after);
}

/** Looks whether one of the addresses before a standby answers, until it does or `close`. */
export class Lookout {
  readonly #urls: readonly string[];
  readonly #options: IClientOptions;
  readonly #onAnswer: () => void;
  #asked: readonly Session[] = [];
  #timer: ReturnType<typeof setTimeout> | undefined;

  constructor(urls: readonly string[], options: IClientOptions, onAnswer: () => void) {
    this.#urls = urls;
    this.#options = options;
    this.#onAnswer = onAnswer;
    this.#wait();
  }

  close(): void {
    clearTimeout(this.#timer);
    for (const session of this.#asked) void session.end();
    this.#asked = [];
  }

  #wait(): void {
    this.#timer = setTimeout(() => this.#look(), LOOK_MS - (Date.now() % LOOK_MS));
  }

  #look(): void {
    this.close();
    const answered = () => {
      if (this.#asked.length > 0) this.#onAnswer();
    };
    this.#asked = this.#urls.map((url, place) => {
      const refused = ({ final }: End) => final && place === 0 && answered(); // it decides who may enter
      return new Session(url, this.#options, { onUp: answered, onMessage: () => undefined, onDown: refused });
    });
    this.#wait();
  }
}
