/** The data of the page: `openSite` connects, and what comes is in the signals of the site. */

import { PageSite, type SiteConfig } from "./page_site.js";
import { browserPlatform, type Platform } from "./platform.js";
import type { Site } from "./types.js";

export type { SiteConfig } from "./page_site.js";
export type * from "./types.js";

/** Connect to the broker of a configuration; the site fills with what it sends. */
export function openSite(config: SiteConfig, platform: Platform = browserPlatform()): Site {
  return new PageSite(config, platform);
}
