/** The transposition of `shuffle-lz4`: bytes of equal significance beside each other, which compresses better. */

/** Return the lowest byte of every element, then the second byte of every element, … */
export function shuffle(raw: Uint8Array, itemBytes: number): Uint8Array {
  return transpose(raw, raw.length / itemBytes, itemBytes);
}

/** Return the elements that `shuffle` took apart. */
export function unshuffle(planes: Uint8Array, itemBytes: number): Uint8Array {
  return transpose(planes, itemBytes, planes.length / itemBytes);
}

function transpose(table: Uint8Array, rows: number, columns: number): Uint8Array {
  if (rows === 1 || columns === 1) return table;
  const turned = new Uint8Array(table.length);
  for (let column = 0, to = 0; column < columns; column++) {
    for (let from = column; from < table.length; from += columns) turned[to++] = table[from] as number;
  }
  return turned;
}
