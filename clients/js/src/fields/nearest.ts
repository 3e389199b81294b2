/** What an error says in place of a name that is not there: the names that are, and the one that was probably meant. */

import { ConfigError } from "../errors.js";
import { shown } from "./fields.js";

const MOST_LISTED = 20;
/** Letters that a mistyped name has too few, too many or wrong, at most; of a short name a third. */
const MOST_WRONG = 3;
/** Letters of a name that another one begins with, at least, to be taken for it. */
const SHORTEST_BEGIN = 3;

/**
 * Refuse an option that there is not: without types it would be ignored in silence.
 *
 * @throws ConfigError: Of the first one.
 */
export function checkOptions(options: object, known: readonly string[]): void {
  for (const name of Object.keys(options)) {
    if (known.includes(name)) continue;
    throw new ConfigError(`there is no option ${shown(name)}; expected some of ${insteadOf(name, known)}`);
  }
}

/** Return the known name that is nearly a wrong one; undefined where none is. */
export function nearest(name: string, known: readonly string[]): string | undefined {
  let [found, least]: [string | undefined, number] = [undefined, Math.min(MOST_WRONG, name.length / 3)];
  for (const each of known) {
    if (each === name || Math.abs(each.length - name.length) > least) continue;
    const wrong = distance(name, each);
    if (wrong < least || (wrong === least && found === undefined)) [found, least] = [each, wrong];
  }
  return found;
}

/** Return the names that there are, a bounded number of them, and which was probably meant. */
export function insteadOf(name: string, known: Iterable<string>): string {
  const names = [...known].sort();
  const more = names.length > MOST_LISTED ? ` and ${names.length - MOST_LISTED} more` : "";
  const near = nearest(name, names) ?? names.find((each) => isBegin(each, name) || isBegin(name, each));
  return `${names.slice(0, MOST_LISTED).join(", ")}${more}${near ? `; did you mean "${near}"?` : ""}`;
}

function isBegin(begin: string, name: string): boolean {
  return begin.length >= SHORTEST_BEGIN && begin !== name && name.startsWith(begin);
}

/** Return how many letters have to be changed, added or left out. */
function distance(one: string, other: string): number {
  let row = Array.from({ length: other.length + 1 }, (_, place) => place);
  for (let at = 1; at <= one.length; at++) {
    const next = [at];
    for (let place = 1; place <= other.length; place++) {
      const kept = (row[place - 1] ?? 0) + (one[at - 1] === other[place - 1] ? 0 : 1);
      next.push(Math.min(kept, (row[place] ?? 0) + 1, (next[place - 1] ?? 0) + 1));
    }
    row = next;
  }
  return row[other.length] ?? 0;
}
