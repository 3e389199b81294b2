import { useComputed } from "@preact/signals";
import type { Selection } from "../../site/types.js";
import { brief } from "../format.js";
import type { Page } from "../page.js";
import { streamName } from "../words.js";

/** A list of choices longer than this is no help; the filter finds the others. */
const MOST_CHOICES = 200;

/** What to show: words, and one stream, model or class. */
export function Filters({ page }: { page: Page }) {
  const { site } = page;
  const choices = useComputed(() => choicesOf(page)).value;
  const selection = site.selection.value;
  const isAny = Boolean(page.filter.value || selection.stream || selection.model || selection.className);
  const reset = () => {
    page.filter.value = "";
    site.select({ stream: "", model: "", className: "" });
  };
  return (
    <search class="filters" aria-label="What to show">
      <input
        id="filter"
        type="search"
        data-testid="filter"
        placeholder="Filter   /"
        aria-label="Filter"
        maxLength={200}
        autocomplete="off"
        spellcheck={false}
        value={page.filter.value}
        onInput={(event) => {
          page.filter.value = event.currentTarget.value;
        }}
        onKeyDown={(event) => leave(event, page)}
      />
      <Choice name="stream" label="Stream" value={selection.stream} choices={choices.streams} page={page} />
      <Choice name="model" label="Model" value={selection.model} choices={choices.models} page={page} />
      {page.view.value === "live" && (
        <Choice name="className" label="Class" value={selection.className} choices={choices.classes} page={page} />
      )}
      {page.view.value === "live" && (
        <button
          type="button"
          class="quiet"
          aria-pressed={selection.hasIds}
          title="Follow objects over the frames (i)"
          onClick={() => site.select({ hasIds: !selection.hasIds })}
        >
          Ids
        </button>
      )}
      {isAny && (
        <button type="button" class="quiet" data-testid="reset" onClick={reset}>
          Show all
        </button>
      )}
    </search>
  );
}

function Choice(props: {
  name: Exclude<keyof Selection, "hasIds">;
  label: string;
  value: string;
  choices: readonly string[];
  page: Page;
}) {
  const { name, label, value, page } = props;
  const choices = !value || props.choices.includes(value) ? props.choices : [value, ...props.choices];
  return (
    <select
      aria-label={label}
      data-testid={`select-${name}`}
      class={value ? "set" : ""}
      value={value}
      onChange={(event) => page.site.select({ [name]: event.currentTarget.value })}
    >
      <option value="">{label}: all</option>
      {choices.map((choice) => (
        <option key={choice} value={choice}>
          {brief(choice, 80)}
        </option>
      ))}
    </select>
  );
}

function choicesOf({ site }: Page) {
  const tiles = site.tiles.value;
  const streams = [...tiles.map(streamName), ...site.streams.value.map(streamName)];
  const models = [...tiles.map((tile) => tile.model), ...site.models.value.map((model) => model.name)];
  const classes = tiles.flatMap((tile) => tile.classes.value.slice(0, MOST_CHOICES).map((each) => each.name));
  return { streams: sorted(streams), models: sorted(models), classes: sorted(classes) };
}

function sorted(texts: readonly string[]): readonly string[] {
  return [...new Set(texts)]
    .filter(Boolean)
    .slice(0, MOST_CHOICES)
    .sort((first, second) => first.localeCompare(second, "en", { numeric: true }));
}

function leave(event: KeyboardEvent, page: Page): void {
  if (event.key === "Escape") page.filter.value = "";
  if (event.key === "Escape" || event.key === "Enter") (event.currentTarget as HTMLElement).blur();
}
