import { batch, effect, type Signal, signal } from "@preact/signals";
import type { Site } from "../site/types.js";
import { readAddress, type Shown, writeAddress } from "./address.js";
import type { ViewName } from "./words.js";

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
  const page = {
    site,
    view: signal<ViewName>("live"),
    filter: signal(""),
    enlarged: signal(""),
    isHelpOpen: signal(false),
  };
  follow(page, location.hash);
  return page;
}

/** Keep page and address alike: a link opens what it was copied from, and the back key the view before. */
export function keepAddress(page: Page): void {
  addEventListener("hashchange", () => follow(page, location.hash));
  effect(() => {
    const hash = writeAddress(shownBy(page));
    const isSame = hash === writeAddress(readAddress(location.hash));
    if (!isSame) history.replaceState(null, "", hash);
  });
}

/** Open a view with what is selected, so that the browser's back key leads to the one before. */
export function openView(page: Page, view: ViewName): void {
  if (page.view.peek() === view) return;
  const hash = writeAddress({ ...shownBy(page), view, enlarged: "" });
  history.pushState(null, "", hash);
  follow(page, hash);
}

function follow(page: Page, hash: string): void {
  const { view, filter, enlarged, ...selection } = readAddress(hash);
  batch(() => {
    page.view.value = view;
    page.filter.value = filter;
    page.enlarged.value = view === "live" ? enlarged : "";
    page.site.select(selection);
  });
}

function shownBy(page: Page): Shown {
  return {
    ...page.site.selection.value,
    view: page.view.value,
    filter: page.filter.value,
    enlarged: page.enlarged.value,
  };
}
