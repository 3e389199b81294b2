import { useComputed } from "@preact/signals";
import type { ModelRow } from "../../site/types.js";
import type { Page } from "../page.js";
import { Empty } from "../parts/empty.js";
import { matches } from "../words.js";
import { ModelCard } from "./model_card.js";

/** Charts cost time to draw: of more models than this the filter finds the others. */
const MOST_MODELS = 24;

/** The models that workers serve, with how fast they are. */
export function Models({ page }: { page: Page }) {
  const rows = useComputed(() => chosen(page)).value;
  if (!page.site.models.value.length) {
    return (
      <Empty title="No models" command="mqinfer worker --broker mqtt://127.0.0.1 --repository models">
        A worker publishes a card of each model that it serves:
      </Empty>
    );
  }
  if (!rows.length) return <Empty title="No model matches">Change the filter or the selection above.</Empty>;
  return (
    <>
      <div class="models">
        {rows.slice(0, MOST_MODELS).map((row) => (
          <ModelCard key={row.name} row={row} />
        ))}
      </div>
      {rows.length > MOST_MODELS && (
        <p class="more">
          The first {MOST_MODELS} of {rows.length} are shown. Use the filter to find the others.
        </p>
      )}
    </>
  );
}

function chosen(page: Page): readonly ModelRow[] {
  const { model } = page.site.selection.value;
  return page.site.models.value.filter(
    (row) => (!model || row.name === model) && matches(page.filter.value, row.name, row.backend, ...row.servedBy),
  );
}
