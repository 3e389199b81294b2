import type { ClassInfo } from "../../site/types.js";

const COLOURS = 256;
const GOLDEN_RATIO = 0.618033988749895;
const SATURATION = 0.65;
const VALUE = 0.95;
/** Labels are black on colours whose three parts sum to more than this, and white on others. */
const BRIGHT = 400;

/** Names of classes that are no class of things; as in mqinfer/edge_agent/sinks/drawing/overlay.py. */
const BACKGROUND = /^[\W_]*(background|bg|unlabel+ed|unknown|void|ignored?|none|other)[\W_]*$/i;

export type Colour = readonly [number, number, number];

/**
 * Return the colour of a class number that the card gives none: hues the golden ratio apart, so that neighbours differ.
 * The overlays that an edge writes have the same colours.
 */
export function fallbackColour(number: number): Colour {
  return hsvToRgb((number * GOLDEN_RATIO) % 1, SATURATION, VALUE);
}

/**
 * Return the colour of a class: the card's where it has one.
 *
 * Class 0 is black by default, which is that of a background: it has another colour unless its name says that it is one.
 */
export function colourOf(number: number, classes: readonly ClassInfo[]): Colour {
  const known = classes[number];
  const isMistaken = number === 0 && known !== undefined && isBlack(known.colour) && !BACKGROUND.test(known.name);
  return (isMistaken ? undefined : known?.colour) ?? FALLBACK[number % COLOURS] ?? [0, 0, 0];
}

/** Return the colour of a class of objects, which is never black: nobody would see it. */
export function boxColourOf(number: number, classes: readonly ClassInfo[]): Colour {
  const colour = colourOf(number, classes);
  return isBlack(colour) ? (FALLBACK[number % COLOURS] ?? colour) : colour;
}

function isBlack(colour: Colour): boolean {
  return colour.every((part) => part === 0);
}

export function nameOf(number: number, classes: readonly ClassInfo[]): string {
  return classes[number]?.name || `class ${number}`;
}

/** Return whether black is legible on a colour. */
export function isBright(colour: Colour): boolean {
  return colour[0] + colour[1] + colour[2] > BRIGHT;
}

export function css(colour: Colour): string {
  return `rgb(${colour[0]} ${colour[1]} ${colour[2]})`;
}

/**
 * Fill a table from class number to pixel, as 32 bits in the machine's own order of bytes.
 *
 * Args:
 *   table: 256 entries.
 *   classes: Names and colours from the card.
 *   only: Name of the one class to draw; empty for all. The pixels of others are transparent.
 *   colour: Of a class; objects have that of their boxes.
 */
export function fillPixels(table: Uint32Array, classes: readonly ClassInfo[], only: string, colour = colourOf): void {
  const bytes = new Uint8Array(table.buffer, table.byteOffset, table.byteLength);
  for (let number = 0; number < COLOURS; number++) {
    const isDrawn = !only || nameOf(number, classes) === only;
    const [red, green, blue] = isDrawn ? colour(number, classes) : [0, 0, 0];
    bytes.set([red, green, blue, isDrawn ? 255 : 0], 4 * number);
  }
}

/** Return the colour of a level, 0 to 254, as the overlays that an edge writes: Turbo, from blue to red. */
export function levelColour(level: number): Colour {
  const x = level / 254;
  const part = (factors: readonly number[]) => {
    const value = factors.reduceRight((sum, factor) => sum * x + factor, 0);
    return Math.round(255 * Math.min(1, Math.max(0, value)));
  };
  return [part(TURBO[0]), part(TURBO[1]), part(TURBO[2])];
}

/** Factors of the powers of a level, for red, green and blue. */
const TURBO = [
  [0.13572138, 4.6153926, -42.66032258, 132.13108234, -152.94239396, 59.28637943],
  [0.09140261, 2.19418839, 4.84296658, -14.18503333, 4.27729857, 2.82956604],
  [0.1066733, 12.64194608, -60.58204836, 110.36276771, -89.90310912, 27.34824973],
] as const;

/** Pixels of the levels; 255 is transparent. */
export const LEVEL_PIXELS = new Uint32Array(COLOURS);
for (let level = 0; level < COLOURS - 1; level++) {
  new Uint8Array(LEVEL_PIXELS.buffer).set([...levelColour(level), 255], 4 * level);
}

/** The levels from left to right, as a background. */
export const LEVEL_GRADIENT = `linear-gradient(to right, ${[0, 32, 64, 96, 128, 160, 192, 224, 254]
  .map((level) => css(levelColour(level)))
  .join(", ")})`;

function hsvToRgb(hue: number, saturation: number, value: number): Colour {
  const sector = Math.floor(hue * 6);
  const part = hue * 6 - sector;
  const low = value * (1 - saturation);
  const falling = value * (1 - saturation * part);
  const rising = value * (1 - saturation * (1 - part));
  const wheel: readonly Colour[] = [
    [value, rising, low],
    [falling, value, low],
    [low, value, rising],
    [low, falling, value],
    [rising, low, value],
    [value, low, falling],
  ];
  const [red, green, blue] = wheel[sector % 6] ?? [0, 0, 0];
  return [Math.round(255 * red), Math.round(255 * green), Math.round(255 * blue)];
}

const FALLBACK: readonly Colour[] = Array.from({ length: COLOURS }, (_, number) => fallbackColour(number));
