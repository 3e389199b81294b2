/** Lists of rows that stay the same objects while nothing in them changes, so that views draw only what is new. */

/** How a row is made of what it depends on. */
export interface RowSource<T> {
  readonly key: string;
  /** The row is made again when one of these is another value or object. */
  readonly parts: readonly unknown[];
  make(): T;
}

interface Kept<T> {
  readonly parts: readonly unknown[];
  readonly row: T;
}

/** Keeps the last rows, and makes only those whose parts have changed. */
export class RowList<T extends object> {
  #rows = new Map<string, Kept<T>>();
  #list: readonly T[] = [];

  /** Return the rows of these sources; the list before if all are the same. */
  update(sources: readonly RowSource<T>[]): readonly T[] {
    const rows = new Map<string, Kept<T>>();
    for (const source of sources) {
      const known = this.#rows.get(source.key);
      const isSame = known?.parts.every((part, place) => Object.is(part, source.parts[place]));
      rows.set(source.key, known && isSame ? known : { parts: source.parts, row: source.make() });
    }
    this.#rows = rows;
    const list = Array.from(rows.values(), ({ row }) => row);
    const isSame = list.length === this.#list.length && list.every((row, place) => row === this.#list[place]);
    if (!isSame) this.#list = list;
    return this.#list;
  }
}

/** Return a rate as it is shown: with one digit, so that it changes seldom. */
export function shownRate(rate: number): number {
  return rate < 10 ? Math.round(rate * 10) / 10 : Math.round(rate);
}

/** Return a time of start in milliseconds since the epoch; null of a number that is none. */
export function startedMs(bootUs: number, epochMs: number): number | null {
  const ms = bootUs / 1000;
  const isTime = ms > Date.UTC(2015) && ms < epochMs + 86_400_000;
  return isTime ? ms : null;
}
