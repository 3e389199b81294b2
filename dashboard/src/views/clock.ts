import { type ReadonlySignal, signal } from "@preact/signals";

const INTERVAL_MS = 250;

const beat = signal(0);

export function startClock(): void {
  setInterval(() => {
    if (!document.hidden) beat.value += 1;
  }, INTERVAL_MS);
}

/** Render a component again at each beat: four times a second, however many frames come, and never while nobody sees it. */
export function useBeat(isShown?: ReadonlySignal<boolean>): void {
  if (isShown?.value ?? true) void beat.value;
}
