import { useComputed, useSignal } from "@preact/signals";
import { useEffect, useMemo, useRef } from "preact/hooks";
import type { LogEntry } from "../site/types.js";
import { brief, timeOfDay } from "./format.js";
import type { Page } from "./page.js";
import { Empty } from "./parts/empty.js";
import { Icon } from "./parts/icon.js";
import { jsonTokens } from "./parts/json_text.js";
import { matches } from "./words.js";

const KINDS = ["result", "error", "state", "refused"] as const;
const MOST_ENTRIES = 150;

/** The last results and errors, newest first; it stands still while the page is paused. */
export function Log({ page }: { page: Page }) {
  const kinds = useSignal<ReadonlySet<LogEntry["kind"]>>(new Set(KINDS));
  const opened = useSignal<LogEntry | null>(null);
  const entries = useComputed(() => chosen(page, kinds.value)).value;
  if (!page.site.log.value.length) {
    return (
      <Empty title="Nothing logged yet" command="mqinfer watch MODEL">
        Results, errors and changes of state appear here as they come. The same in a terminal:
      </Empty>
    );
  }
  return (
    <div class={opened.value ? "log has-detail" : "log"}>
      <div class="entries">
        <fieldset class="kinds">
          <legend class="unseen">Kinds of entries</legend>
          {KINDS.map((kind) => (
            <Kind key={kind} kind={kind} kinds={kinds} />
          ))}
        </fieldset>
        {entries.length ? (
          <ol>
            {entries.map((entry) => (
              <Line key={entry.id} entry={entry} opened={opened} />
            ))}
          </ol>
        ) : (
          <Empty title="No entry matches">Change the filter or the kinds above.</Empty>
        )}
      </div>
      {opened.value && <Detail entry={opened.value} onClose={() => close(opened)} />}
    </div>
  );
}

function Kind(props: { kind: LogEntry["kind"]; kinds: { value: ReadonlySet<LogEntry["kind"]> } }) {
  const { kind, kinds } = props;
  const isOn = kinds.value.has(kind);
  const toggle = () => {
    const next = new Set(kinds.value);
    if (!next.delete(kind)) next.add(kind);
    kinds.value = next;
  };
  return (
    <label class={`kind ${kind}`}>
      <input type="checkbox" checked={isOn} onChange={toggle} />
      {kind}
    </label>
  );
}

function Line({ entry, opened }: { entry: LogEntry; opened: { value: LogEntry | null } }) {
  const isOpen = opened.value?.id === entry.id;
  return (
    <li data-testid="log-row" data-kind={entry.kind}>
      <button type="button" aria-expanded={isOpen} onClick={() => (opened.value = isOpen ? null : entry)}>
        <time>{timeOfDay(entry.timeMs)}</time>
        <span class={`kind ${entry.kind}`}>{entry.kind}</span>
        <span class="summary">{brief(entry.summary, 300)}</span>
      </button>
    </li>
  );
}

/** One entry as JSON. Every piece is a text node: what a stranger sent is never markup. */
function Detail({ entry, onClose }: { entry: LogEntry; onClose: () => void }) {
  const tokens = useMemo(() => jsonTokens(entry.detail), [entry]);
  const box = useRef<HTMLElement>(null);
  useEffect(() => box.current?.focus(), [entry]);
  return (
    <section
      class="detail"
      aria-label="Entry"
      ref={box}
      tabIndex={-1}
      onKeyDown={(event) => event.key === "Escape" && onClose()}
    >
      <header>
        <span class={`kind ${entry.kind}`}>{entry.kind}</span>
        <time>{timeOfDay(entry.timeMs)}</time>
        <button type="button" class="quiet" aria-label="Close the entry" title="Close (Esc)" onClick={onClose}>
          <Icon name="close" />
        </button>
      </header>
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reachable by keyboard */}
      <pre tabIndex={0} data-testid="log-detail">
        {tokens.map((token, place) => (
          <span key={place} class={`json-${token.kind}`}>
            {token.text}
          </span>
        ))}
      </pre>
    </section>
  );
}

function close(opened: { value: LogEntry | null }): void {
  opened.value = null;
}

/** Return what filter, selection and kinds leave, so many as a person may look through. */
function chosen(page: Page, kinds: ReadonlySet<LogEntry["kind"]>): readonly LogEntry[] {
  const { stream, model } = page.site.selection.value;
  const source = stream.slice(stream.indexOf("/") + 1);
  const words = `${page.filter.value} ${model} ${source}`;
  return page.site.log.value
    .filter((entry) => kinds.has(entry.kind) && matches(words, entry.summary, entry.kind))
    .slice(0, MOST_ENTRIES);
}
