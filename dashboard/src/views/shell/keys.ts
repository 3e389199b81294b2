import { chosen } from "../live/live.js";
import { openView, type Page } from "../page.js";
import { VIEWS } from "../words.js";

/** What the keys do, for the help; the numbers 1 to 5 stand first. */
export const KEYS: readonly { readonly keys: readonly string[]; readonly what: string }[] = [
  { keys: ["1", "2", "3", "4", "5"], what: "Live, Streams, Workers, Models, Log" },
  { keys: ["Space"], what: "Pause, and go on" },
  { keys: [".", "→"], what: "While paused: go on to the next frames, those of all streams captured at the same time" },
  { keys: ["f"], what: "Enlarge the stream that has the focus, or the first; again to go back" },
  { keys: ["i"], what: "Follow objects over the frames: ids stand beside their classes" },
  { keys: ["/"], what: "Type into the filter" },
  { keys: ["Esc"], what: "Go back from an enlarged stream; empty the filter; close this" },
  { keys: ["?"], what: "This help" },
];

/** Act on the page's keys. Keys that the focused element uses itself stay with it. Returns what ends this. */
export function listenToKeys(page: Page): () => void {
  const onKey = (event: KeyboardEvent) => {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
    if (isTaken(event)) return;
    if (act(page, event.key)) event.preventDefault();
  };
  document.addEventListener("keydown", onKey);
  return () => document.removeEventListener("keydown", onKey);
}

/** Do what a key stands for; return whether it stands for anything. */
function act(page: Page, key: string): boolean {
  const view = VIEWS[Number(key) - 1];
  if (view) {
    openView(page, view);
    return true;
  }
  const action = ACTIONS[key];
  action?.(page);
  return action !== undefined;
}

const ACTIONS: Readonly<Record<string, (page: Page) => void>> = {
  " ": ({ site }) => site.setPaused(!site.isPaused.peek()),
  ".": step,
  ArrowRight: step,
  f: toggleEnlarged,
  i: ({ site }) => site.select({ hasIds: !site.selection.peek().hasIds }),
  "/": () => document.querySelector<HTMLInputElement>("#filter")?.focus(),
  "?": (page) => {
    page.isHelpOpen.value = true;
  },
  Escape: (page) => {
    page.enlarged.value = "";
  },
};

function step({ site }: Page): void {
  if (site.isPaused.peek()) site.step();
}

function toggleEnlarged(page: Page): void {
  const focused = document.activeElement?.closest<HTMLElement>("[data-testid=tile]")?.dataset.key;
  const next = page.enlarged.peek() ? "" : (focused ?? chosen(page)[0]?.key ?? "");
  if (next) openView(page, "live");
  page.enlarged.value = next;
}

/** Return whether the focused element has a use of its own for the key: fields, buttons, tabs, boxes that scroll. */
function isTaken(event: KeyboardEvent): boolean {
  const element = event.target instanceof Element ? event.target : null;
  if (!element || element.closest("dialog")) return true;
  if (element.matches("input:not([type=checkbox]), select, textarea")) return true;
  if (event.key === " ") return element.matches("button:not([role=tab]), summary, input");
  return event.key === "ArrowRight" && element.closest("[role=tablist], .table-box, pre") !== null;
}
