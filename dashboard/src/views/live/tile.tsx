import { useComputed, useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import type { Tile } from "../../site/types.js";
import { brief, rate } from "../format.js";
import type { Page } from "../page.js";
import { Icon } from "../parts/icon.js";
import { streamName } from "../words.js";
import { useErrorMemory } from "./error_memory.js";
import { Facts } from "./facts.js";
import { Legend } from "./legend.js";
import { Notices } from "./notices.js";
import { Painter } from "./painter.js";
import { TimeSplit } from "./time_split.js";
import { watchVisibility } from "./visibility.js";

/** One stream: the picture is drawn by a `Painter` on the frame's signal, the numbers beside it four times a second. */
export function TileCard(props: { page: Page; tile: Tile; isBrief: boolean; isAlone: boolean }) {
  const { page, tile, isBrief, isAlone } = props;
  const card = useRef<HTMLElement>(null);
  const painter = useSignal<Painter | null>(null);
  const isEnlarged = useComputed(() => page.enlarged.value === tile.key).value;
  const isShown = useSignal(false);
  const lastError = useErrorMemory(tile);
  usePainter(page, tile, card, painter);
  useEffect(() => (card.current ? watchVisibility(card.current, tile, isShown) : undefined), [tile, isShown]);
  return (
    <article
      class={isAlone ? "tile enlarged" : "tile"}
      ref={card}
      aria-label={`${tile.source}, ${tile.model}`}
      data-testid="tile"
      data-key={tile.key}
      data-stale={String(tile.isStale.value)}
      data-cause={tile.cause.value}
    >
      <TileHead page={page} tile={tile} isEnlarged={isEnlarged} />
      <div class="screen">
        <div class="stack">
          <canvas class="picture" data-testid="tile-picture" hidden />
          <canvas class="mask" data-testid="tile-mask" hidden />
          <canvas class="boxes" hidden />
        </div>
        <Notices tile={tile} isShown={isShown} lastError={lastError} />
      </div>
      <div class="beside">
        {!isBrief && <Facts tile={tile} isShown={isShown} />}
        {!isBrief && <TimeSplit tile={tile} isShown={isShown} />}
        <Legend page={page} tile={tile} isShown={isShown} painter={painter} />
      </div>
    </article>
  );
}

function TileHead({ page, tile, isEnlarged }: { page: Page; tile: Tile; isEnlarged: boolean }) {
  return (
    <header>
      <div class="names">
        <h2 title={streamName(tile)}>{brief(tile.source) || "stream"}</h2>
        <p title={tile.model}>
          {brief(tile.client)} <span aria-hidden="true">→</span> {brief(tile.model)}
        </p>
      </div>
      <TileRate tile={tile} />
      <button
        type="button"
        class="quiet"
        aria-label={isEnlarged ? `Back to all streams` : `Enlarge ${brief(tile.source)}`}
        title={isEnlarged ? "Back to all streams (f)" : "Enlarge (f)"}
        onClick={() => {
          page.enlarged.value = isEnlarged ? "" : tile.key;
        }}
      >
        <Icon name={isEnlarged ? "shrink" : "enlarge"} />
      </button>
    </header>
  );
}

function TileRate({ tile }: { tile: Tile }) {
  return (
    <p class="rate" title="Results a second">
      <b>{rate(tile.rate.value)}</b>/s
    </p>
  );
}

/** Draw each frame of the tile as long as the card is on the page. */
function usePainter(
  page: Page,
  tile: Tile,
  card: { readonly current: HTMLElement | null },
  shared: { value: Painter | null },
): void {
  useEffect(() => {
    const element = card.current;
    if (!element) return;
    const part = <T extends HTMLElement>(name: string) => element.querySelector(name) as T;
    const painter = new Painter({
      tile: element,
      stack: part(".stack"),
      picture: part(".picture"),
      mask: part(".mask"),
      boxes: part(".boxes"),
    });
    shared.value = painter;
    const ends = [
      tile.frame.subscribe((frame) => painter.show(frame)),
      tile.classes.subscribe((classes) => painter.setClasses(classes, page.site.selection.peek().className)),
      page.site.selection.subscribe((selection) => painter.setClasses(tile.classes.peek(), selection.className)),
      watchSize(part(".stack"), part(".boxes"), () => painter.redraw()),
    ];
    return () => {
      for (const end of ends) end();
      shared.value = null;
      painter.close();
    };
  }, [page, tile, card, shared]);
}

/** Keep the boxes' canvas at the size of the screen's pixels. */
function watchSize(stack: HTMLElement, boxes: HTMLCanvasElement, onChange: () => void): () => void {
  const observer = new ResizeObserver(() => {
    const scale = window.devicePixelRatio || 1;
    const width = Math.round(stack.clientWidth * scale);
    const height = Math.round(stack.clientHeight * scale);
    if (boxes.width === width && boxes.height === height) return;
    boxes.width = width;
    boxes.height = height;
    onChange();
  });
  observer.observe(stack);
  return () => observer.disconnect();
}
