import type { ComponentType } from "preact";
import { Live } from "./live/live.js";
import { Log } from "./log.js";
import { Models } from "./models/models.js";
import type { Page } from "./page.js";
import { Filters } from "./shell/filters.js";
import { Banner, Header } from "./shell/header.js";
import { Help } from "./shell/help.js";
import { Login } from "./shell/login.js";
import { StatusBar } from "./shell/status_bar.js";
import { Tabs } from "./shell/tabs.js";
import { Streams } from "./streams.js";
import { VIEWS, type ViewName } from "./words.js";
import { Workers } from "./workers.js";

const PANELS: Readonly<Record<ViewName, ComponentType<{ page: Page }>>> = {
  live: Live,
  streams: Streams,
  workers: Workers,
  models: Models,
  log: Log,
};

/** The whole page. Only the view that is open is there; the others cost nothing. */
export function App({ page }: { page: Page }) {
  return (
    <>
      <header class="shell">
        <Header page={page} />
        <Tabs page={page} />
        <Filters page={page} />
      </header>
      <main>
        <Banner page={page} />
        {VIEWS.map((name) => (
          <Panel key={name} name={name} page={page} />
        ))}
      </main>
      <StatusBar page={page} />
      <Help page={page} />
      <Login page={page} />
    </>
  );
}

function Panel({ name, page }: { name: ViewName; page: Page }) {
  const isOpen = page.view.value === name;
  const View = PANELS[name];
  return (
    <section
      id={`view-${name}`}
      data-testid={`view-${name}`}
      role="tabpanel"
      aria-labelledby={`tab-${name}`}
      hidden={!isOpen}
    >
      {isOpen && <View page={page} />}
    </section>
  );
}
