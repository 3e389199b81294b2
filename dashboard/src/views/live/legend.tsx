import type { ReadonlySignal } from "@preact/signals";
import type { Tile } from "../../site/types.js";
import { useBeat } from "../clock.js";
import { brief } from "../format.js";
import type { Page } from "../page.js";
import { Swatch } from "../parts/swatch.js";
import type { Painter } from "./painter.js";
import { colourOf, nameOf } from "./palette.js";

/** A card with at most this many classes is shown whole, with what else the mask has; of others only what the frame has. */
const MOST_CLASSES = 24;

/** Classes with their colours; a click shows this class alone, in all tiles. */
export function Legend(props: {
  page: Page;
  tile: Tile;
  isShown: ReadonlySignal<boolean>;
  painter: ReadonlySignal<Painter | null>;
}) {
  const { page, tile, isShown, painter } = props;
  useBeat(isShown);
  const only = page.site.selection.value.className;
  const classes = tile.classes.value;
  const numbers = shownNumbers(tile, painter.value);
  if (!numbers.length) return null;
  return (
    <ul class="legend" aria-label="Classes">
      {numbers.slice(0, MOST_CLASSES).map((number) => {
        const name = nameOf(number, classes);
        return (
          <li key={number}>
            <button
              type="button"
              aria-pressed={only === name}
              class={only && only !== name ? "off" : ""}
              onClick={() => page.site.select({ className: only === name ? "" : name })}
            >
              <Swatch colour={colourOf(number, classes)} />
              {brief(name, 40)}
            </button>
          </li>
        );
      })}
      {numbers.length > MOST_CLASSES && <li class="more">and {numbers.length - MOST_CLASSES} more</li>}
    </ul>
  );
}

function shownNumbers(tile: Tile, painter: Painter | null): readonly number[] {
  const frame = tile.frame.peek();
  const classes = tile.classes.value;
  if (!frame?.mask && !frame?.boxes.length && !classes.length) return [];
  const isWhole = classes.length > 0 && classes.length <= MOST_CLASSES && frame?.labels.length === 0;
  const present = new Set<number>(isWhole ? classes.keys() : frame?.boxes.map((box) => box.classIndex));
  const seen = frame?.mask && painter ? painter.seen : [];
  for (const [number, isSeen] of seen.entries()) if (isSeen) present.add(number);
  return [...present].sort((first, second) => first - second);
}
