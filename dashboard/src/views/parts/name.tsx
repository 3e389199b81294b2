import { Fragment } from "preact";
import { brief } from "../format.js";

/** A name in a narrow place: it goes on in the next line behind `/`, `_`, `-`, `.` or `:` before it breaks elsewhere. */
export function Name({ text, most = 200 }: { text: string; most?: number }) {
  const parts = brief(text, most).match(/[^/_.:-]*[/_.:-]+|[^/_.:-]+/g) ?? [];
  return parts.map((part, place) => (
    <Fragment key={place}>
      {part}
      <wbr />
    </Fragment>
  ));
}
