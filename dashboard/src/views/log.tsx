import { useComputed, useSignal } from "@preact/signals";
import { useEffect, useMemo, useRef } from "preact/hooks";
import type { LogCount, LogEntry } from "../site/types.js";
import { brief, count, timeOfDay } from "./format.js";
import type { Page } from "./page.js";
import { Empty } from "./parts/empty.js";
import { Icon } from "./parts/icon.js";
import { jsonTokens } from "./parts/json_text.js";
import { matches } from "./words.js";

const KINDS = ["result", "error", "state", "refused"] as const;
/** Entries that are drawn: as many as a person may look through. */
const MOST_ENTRIES = 300;

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
        <Sampling page={page} />
        {entries.length ? (
          <ol>
            {entries.slice(0, MOST_ENTRIES).map((entry) => (
              <Line key={entry.id} entry={entry} opened={opened} />
            ))}
          </ol>
        ) : (
          <Empty title="No entry matches">Change the filter or the kinds above.</Empty>
        )}
        {entries.length > MOST_ENTRIES && (
          <p class="more">
            The first {MOST_ENTRIES} of {entries.length} are shown. Use the filter to find the others.
          </p>
        )}
      </div>
      {opened.value && <Detail entry={opened.value} onClose={() => close(opened)} />}
    </div>
  );
}

/** What of all that came the list has: never silent. */
function Sampling({ page: { site } }: { page: Page }) {
  const { result, refused } = site.logCounts.value;
  const unread = site.dropped.value["slow page"] ?? 0;
  const isSampled = (counts: LogCount | undefined) => counts !== undefined && counts.listed < counts.came;
  return (
    <p class="sampling" data-testid="log-sampling">
      {isSampled(result) ? `${listed(result, "results")}: at most 20 a second, shared among the streams. ` : ""}
      {isSampled(refused) ? `${listed(refused, "refused messages")}: at most 4 a second. ` : ""}
      Every error and change of state that came is listed; errors of one stream with one code are one line with their
      number. The last 200 lines of each kind are kept, 50 of refused messages.
      {unread > 0 &&
        ` ${count(unread)} messages were not read, since more came than this page can read: their errors are not here.`}
    </p>
  );
}

function listed(counts: LogCount | undefined, what: string): string {
  return `${count(counts?.listed ?? 0)} of ${count(counts?.came ?? 0)} ${what} were listed`;
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
        <span class="summary">
          <Repeated entry={entry} />
          {brief(entry.summary, 300)}
        </span>
      </button>
    </li>
  );
}

/** How many messages a line stands for, where there are several. */
function Repeated({ entry }: { entry: LogEntry }) {
  if (entry.count < 2) return null;
  if (entry.kind === "error") {
    return <b title={`Since ${timeOfDay(entry.firstMs)}`}>{`${count(entry.count)} × `}</b>;
  }
  return (
    <b class="skipped" title="Not listed, of the same stream">{`${count(entry.count - 1)} before it not listed · `}</b>
  );
}

/** What a result says, above its message. */
function Answer({ entry }: { entry: LogEntry }) {
  const lines = useMemo(() => entry.answer?.() ?? [], [entry.id]);
  if (!lines.length) return null;
  return (
    <dl class="answer" data-testid="log-answer">
      {lines.map(({ name, value }, place) => (
        <div key={place}>
          <dt>{brief(name)}</dt>
          <dd>{brief(value)}</dd>
        </div>
      ))}
    </dl>
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
      <Answer entry={entry} />
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

/** Return what filter, selection and kinds leave. */
function chosen(page: Page, kinds: ReadonlySet<LogEntry["kind"]>): readonly LogEntry[] {
  const { stream, model } = page.site.selection.value;
  const words = `${page.filter.value} ${model} ${stream.replace("/", " ")}`;
  return page.site.log.value.filter((entry) => kinds.has(entry.kind) && matches(words, entry.summary, entry.kind));
}
