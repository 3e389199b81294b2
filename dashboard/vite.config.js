import { defineConfig } from "vite";

// The built page is package data of the Python package, so that a user of the wheel needs no node.
export default defineConfig({
  base: "./",
  build: {
    outDir: "../mqinfer/dashboard/page",
    emptyOutDir: true,
    target: "es2022",
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
  },
  oxc: { jsx: { runtime: "automatic", importSource: "preact" } },
});
