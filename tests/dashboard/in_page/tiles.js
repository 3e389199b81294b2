// Returns whether so many tiles have drawn a frame, and scrolls to the first that has not.
(count) => {
  const tiles = [...document.querySelectorAll("[data-testid='tile']")];
  const waiting = tiles.filter((tile) => !tile.dataset.sequence);
  waiting[0]?.scrollIntoView({ block: "nearest" });
  return tiles.length - waiting.length >= count;
};
