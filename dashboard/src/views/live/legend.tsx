import type { ReadonlySignal } from "@preact/signals";
import type { Tile } from "../../site/types.js";
import { useBeat } from "../clock.js";
import { brief, share } from "../format.js";
import type { Page } from "../page.js";
import { Swatch } from "../parts/swatch.js";
import type { Painter } from "./painter.js";
import { boxColourOf, colourOf, LEVEL_GRADIENT, nameOf } from "./palette.js";

const MOST_CLASSES = 24;

/** One class that the shown frame has. */
interface Present {
  readonly number: number;
  /** Share of the mask, or number of boxes. */
  readonly value: string;
  readonly size: number;
}

/** The classes of the shown frame with their shares, the largest first; a click shows one alone, in all tiles. */
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
  const present = presentIn(tile, painter.value);
  const mask = tile.frame.peek()?.mask;
  const colour = mask && !mask.isPartial ? colourOf : boxColourOf;
  if (mask?.scale) return <Scale {...mask.scale} />;
  if (!present.length) return null;
  return (
    <ul class="legend" aria-label="Classes" data-testid="legend">
      {present.slice(0, MOST_CLASSES).map(({ number, value }) => {
        const name = nameOf(number, classes);
        return (
          <li key={number}>
            <button
              type="button"
              aria-pressed={only === name}
              class={only && only !== name ? "off" : ""}
              onClick={() => page.site.select({ className: only === name ? "" : name })}
            >
              <Swatch colour={colour(number, classes)} />
              {brief(name, 40)} <b>{value}</b>
            </button>
          </li>
        );
      })}
      {present.length > MOST_CLASSES && <li class="more">and {present.length - MOST_CLASSES} more</li>}
    </ul>
  );
}

/** What the colours of numbers stand for, in this frame. */
function Scale({ name, least, greatest }: { name: string; least: number; greatest: number }) {
  return (
    <p class="scale" title="The least and the greatest number of this frame" data-testid="scale">
      {brief(name, 40)} <b>{least.toPrecision(4)}</b>
      <span style={{ background: LEVEL_GRADIENT }} /> <b>{greatest.toPrecision(4)}</b>
    </p>
  );
}

function presentIn(tile: Tile, painter: Painter | null): readonly Present[] {
  const frame = tile.frame.peek();
  if (frame?.mask && painter) {
    const pixels = frame.mask.data.length;
    return ordered(painter.counts.entries(), (count) => share(count / pixels));
  }
  const boxes = new Map<number, number>();
  for (const { classIndex } of frame?.boxes ?? []) boxes.set(classIndex, (boxes.get(classIndex) ?? 0) + 1);
  return ordered(boxes.entries(), String);
}

function ordered(counts: Iterable<[number, number]>, write: (count: number) => string): readonly Present[] {
  return [...counts]
    .filter(([, count]) => count > 0)
    .map(([number, count]) => ({ number, value: write(count), size: count }))
    .sort((first, second) => second.size - first.size || first.number - second.number);
}
