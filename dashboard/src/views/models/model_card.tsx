import type { ComponentChildren } from "preact";
import type { ModelRow, Series } from "../../site/types.js";
import { brief, milliseconds, NOTHING, rate } from "../format.js";
import { css } from "../live/palette.js";
import { Chart, type Line } from "../parts/chart.js";
import { Swatch } from "../parts/swatch.js";
import { PARTS } from "../parts/time_parts.js";

const MOST_ITEMS = 12;
const MOST_CLASSES = 20;
const LONGEST = 120;

/** One model: its speed as numbers and charts, then what its card states. */
export function ModelCard({ row }: { row: ModelRow }) {
  return (
    <article class="model" data-testid="model-row" data-name={row.name} aria-label={row.name}>
      <header>
        <h2>{brief(row.name)}</h2>
        <p>
          {[row.backend, row.precision]
            .filter(Boolean)
            .map((text) => brief(text, 60))
            .join(" · ") || NOTHING}
        </p>
      </header>
      <dl class="speed">
        <Figure name="rate" value={rate(row.rate)} unit="/s" />
        <Figure name="p50" value={milliseconds(row.p50Ms)} />
        <Figure name="p95" value={milliseconds(row.p95Ms)} />
        <Figure name="p99" value={milliseconds(row.p99Ms)} />
      </dl>
      <Charts row={row} />
      <CardFacts row={row} />
    </article>
  );
}

function Charts({ row }: { row: ModelRow }) {
  const stages = toLines(row.stages);
  return (
    <div class="charts">
      <figure>
        <figcaption>Results a second</figcaption>
        <Chart
          label={`Results a second of ${row.name}`}
          unit=""
          seconds={row.rates.seconds}
          lines={rateLines(row.rates)}
        />
      </figure>
      <figure>
        <figcaption>Time by stage, mean of each second</figcaption>
        <Chart
          label={`Milliseconds by stage of ${row.name}`}
          unit=" ms"
          seconds={row.stages.seconds}
          lines={stages}
          isStacked
        />
        <ul class="parts">
          {stages.map((line) => (
            <li key={line.name}>
              <i class={line.colour.slice(2)} aria-hidden="true" />
              {line.name} <b>{milliseconds(lastOf(line.values))}</b>
            </li>
          ))}
        </ul>
      </figure>
    </div>
  );
}

function CardFacts({ row }: { row: ModelRow }) {
  const labels = Object.entries(row.labels).map(([label, version]) => `${label} → ${version}`);
  const traffic = Object.entries(row.traffic).map(([version, share]) => `${version}: ${share} %`);
  return (
    <dl class="card-facts">
      <Item name="versions">{list(row.versions)}</Item>
      {labels.length > 0 && <Item name="labels">{list(labels)}</Item>}
      {traffic.length > 0 && <Item name="traffic">{list(traffic)}</Item>}
      <Item name="served by">{row.servedBy.length ? list(row.servedBy) : <span class="bad">nobody</span>}</Item>
      <Item name="inputs" isCode>
        {list(row.inputs)}
      </Item>
      <Item name="outputs" isCode>
        {list(row.outputs)}
      </Item>
      <Item name="hash" isCode>
        {brief(row.hash, LONGEST) || NOTHING}
      </Item>
      {row.classes.length > 0 && (
        <Item name="classes">
          <ul class="legend">
            {row.classes.slice(0, MOST_CLASSES).map((each, place) => (
              <li key={place} title={css(each.colour)}>
                <Swatch colour={each.colour} />
                {brief(each.name, 40)}
              </li>
            ))}
            {row.classes.length > MOST_CLASSES && <li class="more">and {row.classes.length - MOST_CLASSES} more</li>}
          </ul>
        </Item>
      )}
    </dl>
  );
}

function Figure({ name, value, unit = "" }: { name: string; value: string; unit?: string }) {
  return (
    <div>
      <dt>{name}</dt>
      <dd>
        {value}
        {unit && value !== NOTHING && <small>{unit}</small>}
      </dd>
    </div>
  );
}

function Item({ name, isCode, children }: { name: string; isCode?: boolean; children: ComponentChildren }) {
  return (
    <div>
      <dt>{name}</dt>
      <dd class={isCode ? "code" : undefined}>{children}</dd>
    </div>
  );
}

function list(texts: readonly string[]): string {
  const shown = texts.slice(0, MOST_ITEMS).map((text) => brief(text, LONGEST));
  if (texts.length > shown.length) shown.push(`and ${texts.length - shown.length} more`);
  return shown.join(", ") || NOTHING;
}

function rateLines(series: Series): Line[] {
  return Object.entries(series.values)
    .slice(0, 1)
    .map(([name, values]) => ({ name, colour: "--accent", values }));
}

/** Return the stages in the order in which they pass; those that never took time are left out. */
function toLines(series: Series): Line[] {
  return PARTS.flatMap(({ key, name, className }) => {
    const values = series.values[key];
    return values?.some((value) => value > 0) ? [{ name, colour: `--${className}`, values }] : [];
  });
}

function lastOf(values: readonly number[]): number | null {
  return values.findLast((value) => Number.isFinite(value)) ?? null;
}
