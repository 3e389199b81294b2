import { brief, count, NOTHING } from "../format.js";

/** Kinds beyond this many are summed up: a stranger may state any number of them. */
const MOST_KINDS = 8;
const GOOD = new Set(["ok"]);
const BAD = new Set(["error", "failed", "errors"]);

/** Counters by kind, such as `ok 1,204 · expired 3`; those that are zero are left out. */
export function Counts({
  values,
  isDropped = false,
}: {
  values: Readonly<Record<string, number>>;
  isDropped?: boolean;
}) {
  const kinds = Object.entries(values).filter(([, value]) => value > 0);
  if (!kinds.length) return <span class="nothing">{isDropped ? "0" : NOTHING}</span>;
  kinds.sort((first, second) => second[1] - first[1]);
  const rest = kinds.slice(MOST_KINDS);
  return (
    <ul class="counts">
      {kinds.slice(0, MOST_KINDS).map(([kind, value]) => (
        <li key={kind} class={isDropped ? "warn" : tone(kind)}>
          {brief(kind, 40)} <b>{count(value)}</b>
        </li>
      ))}
      {rest.length > 0 && (
        <li>
          others <b>{count(rest.reduce((sum, [, value]) => sum + value, 0))}</b>
        </li>
      )}
    </ul>
  );
}

function tone(kind: string): string {
  if (GOOD.has(kind)) return "good";
  return BAD.has(kind) ? "bad" : "";
}
