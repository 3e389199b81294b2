// Notes in `window.lostAt` when each row of a worker whose name begins so becomes `lost`.
(name) => {
  window.lostAt = {};
  const look = () => {
    for (const { dataset } of document.querySelectorAll("[data-testid='worker-row']")) {
      if (dataset.status === "lost" && dataset.name.startsWith(name)) window.lostAt[dataset.name] ??= Date.now();
    }
  };
  new MutationObserver(look).observe(document.body, { subtree: true, childList: true, attributes: true });
};
