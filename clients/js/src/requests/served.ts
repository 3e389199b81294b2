/** What workers serve, as messages name it. */

import { insteadOf, nearest } from "../fields/nearest.js";
import type { ServedModel } from "../states/states.js";

/** Return which models there are or, of one that is served, which versions, for a message; empty where none is known. */
export function servedInstead(served: readonly ServedModel[], model: string, version?: string): string {
  const versions = served.filter((each) => each.name === model).map((each) => each.version);
  if (version !== undefined && versions.length > 0)
    return ` (versions of it: ${insteadOf(version, new Set(versions))})`;
  const names = new Set(served.map((each) => each.name));
  return names.size > 0 ? ` (models that workers serve here: ${insteadOf(model, names)})` : "";
}

/** Return whether no worker serves a model, and one serves a model whose name is nearly the same. */
export function isMistyped(served: readonly ServedModel[], model: string): boolean {
  const names = served.map((each) => each.name);
  return !names.includes(model) && nearest(model, names) !== undefined;
}
