import type { Signal } from "@preact/signals";
import type { Tile } from "../../site/types.js";

/** Tiles this close to the window's edge count as visible, so that scrolling shows no empty ones. */
const MARGIN = "160px 0px";

/** Tell a tile whether somebody can see it: what nobody sees is not decoded. Returns what ends this. */
export function watchVisibility(card: HTMLElement, tile: Tile, isShown: Signal<boolean>): () => void {
  let isNear = false;
  const report = () => {
    isShown.value = isNear && !document.hidden;
    tile.setVisible(isShown.value);
  };
  const observer = new IntersectionObserver(
    (entries) => {
      isNear = entries.at(-1)?.isIntersecting ?? false;
      report();
    },
    { rootMargin: MARGIN },
  );
  observer.observe(card);
  document.addEventListener("visibilitychange", report);
  return () => {
    observer.disconnect();
    document.removeEventListener("visibilitychange", report);
    tile.setVisible(false);
  };
}
