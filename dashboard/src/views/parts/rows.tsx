import type { ComponentChildren } from "preact";

/** More lines than this are not drawn; the filter reaches them. */
export const MOST_ROWS = 200;

/** A table in a box of its own that scrolls sideways; narrow pages show each line as a card. */
export function Rows(props: {
  caption: string;
  columns: readonly Column[];
  total: number;
  children: ComponentChildren;
}) {
  return (
    <>
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reachable by keyboard */}
      <section class="table-box" aria-label={props.caption} tabIndex={0}>
        <table>
          <caption class="unseen">{props.caption}</caption>
          <thead>
            <tr>
              {props.columns.map(({ name, title, isNumber }) => (
                <th key={name} scope="col" class={isNumber ? "number" : undefined} title={title}>
                  {name}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>{props.children}</tbody>
        </table>
      </section>
      {props.total > MOST_ROWS && (
        <p class="more">
          The first {MOST_ROWS} of {props.total} are shown. Use the filter to find the others.
        </p>
      )}
    </>
  );
}

export interface Column {
  readonly name: string;
  readonly title?: string;
  readonly isNumber?: boolean;
}
