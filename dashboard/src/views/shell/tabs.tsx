import { useComputed } from "@preact/signals";
import { openView, type Page } from "../page.js";
import { VIEWS, type ViewName } from "../words.js";

const NAMES: Readonly<Record<ViewName, string>> = {
  live: "Live",
  streams: "Streams",
  workers: "Workers",
  models: "Models",
  log: "Log",
};

/** The five views as tabs: arrows go from one to the next, each has a link. */
export function Tabs({ page }: { page: Page }) {
  const lost = useComputed(
    () => page.site.workers.value.filter(({ status }) => status === "lost" || status === "crashed").length,
  ).value;
  return (
    <div class="tabs" role="tablist" aria-label="Views" onKeyDown={onKey}>
      {VIEWS.map((name) => (
        <Tab key={name} page={page} name={name} lost={name === "workers" ? lost : 0} />
      ))}
    </div>
  );
}

function Tab({ page, name, lost }: { page: Page; name: ViewName; lost: number }) {
  const isOpen = page.view.value === name;
  return (
    <button
      type="button"
      role="tab"
      id={`tab-${name}`}
      data-testid={`tab-${name}`}
      aria-selected={isOpen}
      aria-controls={`view-${name}`}
      tabIndex={isOpen ? 0 : -1}
      onClick={() => openView(page, name)}
    >
      {NAMES[name]}
      {lost > 0 && (
        <span class="alarm">
          {lost} <span class="unseen">lost</span>
        </span>
      )}
    </button>
  );
}

function onKey(event: KeyboardEvent): void {
  const tabs = [...(event.currentTarget as HTMLElement).querySelectorAll<HTMLElement>("[role=tab]")];
  const place = tabs.indexOf(document.activeElement as HTMLElement);
  const moves: Readonly<Record<string, number>> = {
    ArrowRight: place + 1,
    ArrowLeft: place - 1,
    Home: 0,
    End: tabs.length - 1,
  };
  const target = moves[event.key];
  if (target === undefined) return;
  event.preventDefault();
  const tab = tabs[(target + tabs.length) % tabs.length];
  tab?.focus();
  tab?.click();
}
