// Returns what the page shows, for the report of a test that waited in vain.
() => ({
  text: document.body.innerText,
  isHidden: document.hidden,
  scrolled: window.scrollY,
  tiles: [...document.querySelectorAll("[data-testid='tile']")].map((tile) => ({
    ...tile.dataset,
    top: tile.getBoundingClientRect().top,
    bottom: tile.getBoundingClientRect().bottom,
  })),
});
