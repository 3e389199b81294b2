// Clicks the tab of a view, and returns how many frames and milliseconds pass until it is there.
(view) =>
  new Promise((done) => {
    const began = performance.now();
    let frames = 0;
    const look = () => {
      const found = document.querySelector(`[data-testid='view-${view}']`);
      if ((found && found.checkVisibility()) || frames > 300) done({ frames, ms: performance.now() - began });
      else {
        frames += 1;
        requestAnimationFrame(look);
      }
    };
    document.querySelector(`[data-testid='tab-${view}']`).click();
    look();
  });
