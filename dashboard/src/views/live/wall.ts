/** How a wall of tiles fills the window: pictures as large as all of them can be at once. */

export interface Wall {
  readonly columns: number;
  /** Height of a row of tiles, in pixels. */
  readonly rowHeight: number;
}

/** Pixels between tiles, and those of a tile that are no picture. */
const GAP = 8;
const FOOT = 26;
const SHAPE = 16 / 9;
/** Narrower pictures, in pixels, show too little: the wall scrolls instead. */
const NARROWEST = 160;
const MOST_COLUMNS = 16;

/** Return the grid in which so many pictures are largest; of equal ones that with the fewest empty places. */
export function wallOf(count: number, width: number, height: number): Wall {
  let best: Wall | null = null;
  let [largest, fewest] = [0, 0];
  for (let columns = 1; columns <= Math.min(count, MOST_COLUMNS); columns++) {
    const rows = Math.ceil(count / columns);
    const rowHeight = Math.floor((height - GAP * (rows - 1)) / rows);
    const picture = Math.floor(Math.min(cellWidth(width, columns), (rowHeight - FOOT) * SHAPE));
    const empty = rows * columns - count;
    if (picture < largest || (picture === largest && empty >= fewest)) continue;
    best = { columns, rowHeight };
    [largest, fewest] = [picture, empty];
  }
  return best && largest >= NARROWEST ? best : scrolling(width);
}

function scrolling(width: number): Wall {
  const columns = Math.max(1, Math.floor((width + GAP) / (NARROWEST + GAP)));
  return { columns, rowHeight: Math.round(cellWidth(width, columns) / SHAPE) + FOOT };
}

function cellWidth(width: number, columns: number): number {
  return (width - GAP * (columns - 1)) / columns;
}
