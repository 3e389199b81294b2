import { render } from "preact";
import type { Site } from "../site/types.js";
import { App } from "./app.js";
import { startClock } from "./clock.js";
import { keepAddress, openPage } from "./page.js";
import { listenToKeys } from "./shell/keys.js";
import { applyTheme } from "./shell/theme.js";
import "uplot/dist/uPlot.min.css";
import "../style/tokens.css";
import "../style/base.css";
import "../style/shell.css";
import "../style/foot.css";
import "../style/dialogs.css";
import "../style/beside.css";
import "../style/live.css";
import "../style/wall.css";
import "../style/tables.css";
import "../style/models.css";
import "../style/log.css";

/** Draw a site into an element of the document, for as long as the document is open. */
export function startPage(site: Site, root: Element): void {
  const page = openPage(site);
  applyTheme();
  startClock();
  listenToKeys(page);
  keepAddress(page);
  render(<App page={page} />, root);
}
