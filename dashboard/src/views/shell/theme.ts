import { signal } from "@preact/signals";

export type Theme = "auto" | "dark" | "light";

const ORDER: readonly Theme[] = ["auto", "dark", "light"];
const KEY = "mqinfer-theme";

/** What the user chose: `auto` follows the system. */
export const theme = signal<Theme>(remembered());

/** Take the next of auto, dark and light, and remember it. */
export function nextTheme(): void {
  theme.value = ORDER[(ORDER.indexOf(theme.value) + 1) % ORDER.length] ?? "auto";
  try {
    localStorage.setItem(KEY, theme.value);
  } catch {
    // A browser that keeps nothing for this page forgets the choice; the page works all the same.
  }
}

/** Keep the page's colours at the choice, and charts at the system's where that decides. */
export function applyTheme(): void {
  theme.subscribe((chosen) => {
    document.documentElement.dataset.theme = chosen;
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    systemChanges.value += 1;
  });
}

/** Counts how often the system went from dark to light or back, for what draws its colours itself. */
export const systemChanges = signal(0);

function remembered(): Theme {
  try {
    const kept = localStorage.getItem(KEY);
    return ORDER.find((each) => each === kept) ?? "auto";
  } catch {
    return "auto";
  }
}
