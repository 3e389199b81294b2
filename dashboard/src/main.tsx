import { render } from "preact";
import { openSite, type SiteConfig } from "./site/index.js";
import { Empty } from "./views/parts/empty.js";
import { startPage } from "./views/start.js";

/** Read what the server says of the broker, connect, and draw. */
async function start(root: Element): Promise<void> {
  const response = await fetch("./config.json", { cache: "no-store" });
  if (!response.ok) throw new Error(`the server answered config.json with status ${response.status}`);
  startPage(openSite((await response.json()) as SiteConfig), root);
}

const root = document.getElementById("page");
if (root) {
  start(root).catch((error: unknown) => {
    const reason = error instanceof Error ? error.message : String(error);
    render(<Empty title="The page cannot start">{reason}. Reload it when `mqinfer dashboard` runs.</Empty>, root);
  });
}
