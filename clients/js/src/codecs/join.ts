/** Return pieces one behind another. */
export function joined(pieces: readonly Uint8Array[]): Uint8Array {
  const found = new Uint8Array(pieces.reduce((sum, piece) => sum + piece.length, 0));
  let at = 0;
  for (const piece of pieces) {
    found.set(piece, at);
    at += piece.length;
  }
  return found;
}
