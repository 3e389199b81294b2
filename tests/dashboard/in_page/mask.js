// Returns sequence, size and pixels (base64) of the mask that the tile of a client shows, or null.
(client) => {
  const tile = [...document.querySelectorAll("[data-testid='tile']")].find((each) => each.dataset.key.includes(client));
  const canvas = tile && tile.querySelector("[data-testid='tile-mask']");
  if (!canvas || !canvas.dataset.sequence || canvas.width === 0) return null;
  const { width, height } = canvas;
  const pixels = canvas.getContext("2d").getImageData(0, 0, width, height).data;
  let text = "";
  for (let at = 0; at < pixels.length; at += 8192) text += String.fromCharCode(...pixels.subarray(at, at + 8192));
  return { sequence: Number(canvas.dataset.sequence), width, height, pixels: btoa(text) };
};
