import type { Colour } from "../live/palette.js";
import { css } from "../live/palette.js";

/** A small square in a class's colour. The colour is set as a property, which the page's policy allows. */
export function Swatch({ colour }: { colour: Colour }) {
  return <i class="swatch" aria-hidden="true" style={{ backgroundColor: css(colour) }} />;
}
