import { type Signal, signal } from "@preact/signals";
import type { Site } from "../site/types.js";
import { type ViewName, viewOf } from "./words.js";

/** What the page itself keeps: which view is open, what is typed into the filter, which tile is enlarged. */
export interface Page {
  readonly site: Site;
  readonly view: Signal<ViewName>;
  /** Words that a line must contain; views other than the log look at names alone. */
  readonly filter: Signal<string>;
  /** Key of the tile that has the view for itself; empty for none. */
  readonly enlarged: Signal<string>;
  readonly isHelpOpen: Signal<boolean>;
}

export function openPage(site: Site): Page {
  return {
    site,
    view: signal(viewOf(location.hash)),
    filter: signal(""),
    enlarged: signal(""),
    isHelpOpen: signal(false),
  };
}

/** Open a view by its link, so that the browser's back key leads to the one before. */
export function openView(name: ViewName): void {
  if (viewOf(location.hash) !== name || !location.hash) location.hash = name;
}
