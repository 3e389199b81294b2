import { startPage } from "../src/views/start.jsx";
import { openFakeSite } from "./fake_site.js";

const options = new URLSearchParams(location.search);
const root = document.getElementById("page");
if (root) {
  startPage(
    openFakeSite({
      tiles: Number(options.get("tiles") ?? 6),
      perSecond: Number(options.get("rate") ?? 20),
      isHostile: options.has("hostile"),
      needsLogin: options.has("login"),
    }),
    root,
  );
}
