import { useComputed, useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import type { Tile } from "../../site/types.js";
import type { Page } from "../page.js";
import { Empty } from "../parts/empty.js";
import { matches, streamName } from "../words.js";
import { TileCard } from "./tile.js";
import { type Wall, wallOf } from "./wall.js";

const FEW = 3;
/** More tiles than this are a wall: pictures and classes, and what else there is of each where it is enlarged. */
const MOST_WHOLE = 4;

/** Pixels between the wall and the page's foot. */
const BELOW = 10;

/** A grid of tiles, one a stream and model; or one of them, enlarged. */
export function Live({ page }: { page: Page }) {
  const shown = useComputed(() => chosen(page)).value;
  if (!page.site.tiles.value.length) {
    return (
      <Empty
        title="No results yet"
        command="mqinfer replay drive.bag --topic /camera/image_raw --model MODEL --preview 2"
      >
        Results appear here as workers publish them. An edge with previews brings the pictures too:
      </Empty>
    );
  }
  if (!shown.length) return <Empty title="No stream matches">Change the filter or the selection above.</Empty>;
  const enlarged = shown.find((tile) => tile.key === page.enlarged.value);
  const tiles = enlarged ? [enlarged] : shown;
  return <Grid page={page} tiles={tiles} />;
}

function Grid({ page, tiles }: { page: Page; tiles: readonly Tile[] }) {
  const box = useRef<HTMLDivElement>(null);
  const isWall = tiles.length > MOST_WHOLE;
  const wall = useWall(box, isWall ? tiles.length : 0);
  const size = isWall ? "wall" : tiles.length < FEW ? "few" : "";
  const style = wall ? { "--columns": String(wall.columns), "--row": `${wall.rowHeight}px` } : {};
  return (
    <div class={tiles.length === 1 ? "tiles one" : `tiles ${size}`} data-testid="tiles" ref={box} style={style}>
      {tiles.map((tile) => (
        <TileCard key={tile.key} page={page} tile={tile} isBrief={isWall} isAlone={tiles.length === 1} />
      ))}
    </div>
  );
}

/** Return the grid that fills the window below a box's top with so many tiles; null for none. */
function useWall(box: { readonly current: HTMLElement | null }, count: number): Wall | null {
  const wall = useSignal<Wall | null>(null);
  useEffect(() => {
    const main = box.current?.closest("main");
    if (!box.current || !main || !count) {
      wall.value = null;
      return;
    }
    const element = box.current;
    const measure = () => {
      const top = element.getBoundingClientRect().top + window.scrollY;
      const foot = document.querySelector(".status-bar")?.clientHeight ?? 0;
      const next = wallOf(count, element.clientWidth, window.innerHeight - top - foot - BELOW);
      if (JSON.stringify(next) !== JSON.stringify(wall.peek())) wall.value = next;
    };
    const observer = new ResizeObserver(measure);
    observer.observe(main);
    addEventListener("resize", measure);
    return () => {
      observer.disconnect();
      removeEventListener("resize", measure);
    };
  }, [box, count, wall]);
  return wall.value;
}

/** Return the tiles that filter and selection leave. */
export function chosen(page: Page): readonly Tile[] {
  const { stream, model } = page.site.selection.value;
  return page.site.tiles.value.filter(
    (tile) =>
      (!stream || streamName(tile) === stream) &&
      (!model || tile.model === model) &&
      matches(page.filter.value, tile.source, tile.client, tile.model),
  );
}
