/** What the address of the page says: which view is open, and what of it is shown. */

import type { Selection } from "../site/types.js";
import { VIEWS, type ViewName } from "./words.js";

/** All that a link to the page keeps. */
export interface Shown extends Selection {
  readonly view: ViewName;
  readonly filter: string;
  /** Key of the enlarged tile. */
  readonly enlarged: string;
}

const NAMES = { filter: "filter", stream: "stream", model: "model", className: "class", enlarged: "tile" } as const;
const IDS = "ids";
const LONGEST = 1000;

/** Read an address's fragment, such as `#live?stream=car-1/front&class=road`; what it does not say is the default. */
export function readAddress(hash: string): Shown {
  const [name = "", query = ""] = hash.split(/\?(.*)/s);
  const given = new URLSearchParams(query);
  const text = (key: keyof typeof NAMES) => (given.get(NAMES[key]) ?? "").slice(0, LONGEST);
  return {
    view: VIEWS.find((each) => `#${each}` === name) ?? "live",
    filter: text("filter"),
    stream: text("stream"),
    model: text("model"),
    className: text("className"),
    enlarged: text("enlarged"),
    hasIds: given.has(IDS),
  };
}

/** Write the fragment that `readAddress` reads. */
export function writeAddress(shown: Shown): string {
  const given = new URLSearchParams();
  for (const [key, name] of Object.entries(NAMES)) {
    const value = shown[key as keyof typeof NAMES];
    if (value) given.set(name, value);
  }
  if (shown.hasIds) given.set(IDS, "1");
  const query = given.toString().replaceAll("%2F", "/");
  return `#${shown.view}${query && `?${query}`}`;
}
