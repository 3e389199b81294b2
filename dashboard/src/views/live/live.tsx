import { useComputed } from "@preact/signals";
import type { Tile } from "../../site/types.js";
import type { Page } from "../page.js";
import { Empty } from "../parts/empty.js";
import { matches, streamName } from "../words.js";
import { TileCard } from "./tile.js";

const FEW = 3;
const MANY = 12;

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
  return (
    <div class={enlarged ? "tiles one" : `tiles ${sizeOf(tiles.length)}`}>
      {tiles.map((tile) => (
        <TileCard key={tile.key} page={page} tile={tile} />
      ))}
    </div>
  );
}

/** Few tiles are large, and many are small. */
function sizeOf(count: number): string {
  if (count < FEW) return "few";
  return count > MANY ? "many" : "";
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
