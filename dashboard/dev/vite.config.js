import { defineConfig } from "vite";

// The views on moving synthetic data, to look at while they are written: `npx vite --config dev/vite.config.js`.
// Never part of the page that is shipped: that build starts at `dashboard/index.html`.
export default defineConfig({
  root: import.meta.dirname,
  base: "./",
  build: {
    outDir: process.env.OUT ?? "../dist/dev",
    emptyOutDir: true,
    target: "es2022",
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
  },
  oxc: { jsx: { runtime: "automatic", importSource: "preact" } },
});
