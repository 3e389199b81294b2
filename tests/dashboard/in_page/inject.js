// Puts into the page what would run or load in one without a policy.
async () => {
  window.injected = [];
  const blocked = new Promise((done) => {
    const all = new Set();
    document.addEventListener("securitypolicyviolation", (event) => {
      all.add(event.effectiveDirective);
      if (all.size >= 3) done([...all].sort());
    });
  });
  const script = document.createElement("script");
  script.textContent = "window.injected.push('script')";
  document.body.append(script);
  const box = document.createElement("div");
  box.innerHTML = "<img src=x onerror=\"window.injected.push('handler')\">";
  document.body.append(box);
  const image = new Image();
  image.src = "http://198.51.100.1/pixel.png";
  const frame = document.createElement("iframe");
  frame.src = "http://198.51.100.1/";
  document.body.append(frame);
  return { blocked: await blocked, injected: window.injected };
};
