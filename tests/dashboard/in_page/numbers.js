// Reads the number of each frame of which a tile draws mask and picture, from the pixels of both of its canvases. Runs in the page.
async ({ count, rows, columns, levels, palette, keys, timeoutMs }) => {
  const seen = [];
  const last = new Map();
  const end = performance.now() + timeoutMs;

  // After the frame's own callbacks: what a person would see.
  const painted = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done, 0)));

  const read = (canvas, levelOf) => {
    const { width, height } = canvas;
    const pixels = canvas.getContext("2d").getImageData(0, 0, width, height).data;
    let number = 0;
    for (let block = rows * columns - 1; block >= 0; block--) {
      const x = Math.floor((((block % columns) + 0.5) * width) / columns);
      const y = Math.floor(((Math.floor(block / columns) + 0.5) * height) / rows);
      const at = 4 * (y * width + x);
      const level = levelOf([...pixels.slice(at, at + 4)]);
      if (level < 0) return -1;
      number = number * 4 + level;
    }
    return number;
  };
  const greyLevel = ([red]) => levels.findIndex((each) => Math.abs(each - red) < 25);
  const maskLevel = ([red, green, blue, alpha]) =>
    alpha === 255 ? palette.findIndex((each) => each[0] === red && each[1] === green && each[2] === blue) : -1;

  while (seen.length < count && performance.now() < end) {
    await painted();
    for (const tile of document.querySelectorAll("[data-testid='tile']")) {
      const { key, sequence } = tile.dataset;
      if (!keys.some((each) => key.includes(each))) continue;
      const mask = tile.querySelector("[data-testid='tile-mask']");
      const picture = tile.querySelector("[data-testid='tile-picture']");
      if (!mask?.dataset.sequence || !picture?.dataset.sequence) continue;
      const state = `${sequence} ${mask.dataset.sequence} ${picture.dataset.sequence}`;
      if (last.get(key) === state) continue;
      const row = { key, sequence, mask: mask.dataset.sequence, picture: picture.dataset.sequence };
      row.inMask = read(mask, maskLevel);
      row.inPicture = read(picture, greyLevel);
      last.set(key, state);
      seen.push(row);
      if (seen.length >= count) break;
    }
  }
  return seen;
};
