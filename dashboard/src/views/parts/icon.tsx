const PATHS = {
  enlarge: "M9 3H3v6M15 3h6v6M9 21H3v-6M15 21h6v-6",
  shrink: "M4 9h5V4M20 9h-5V4M4 15h5v5M20 15h-5v5",
  pause: "M8 5v14M16 5v14",
  play: "M7 4l12 8-12 8z",
  step: "M5 5l9 7-9 7zM19 5v14",
  help: "M9 9a3 3 0 1 1 4.5 2.6c-1 .6-1.5 1.2-1.5 2.4M12 17.5v.5",
  auto: "M12 3a9 9 0 1 0 0 18zM12 3a9 9 0 0 1 0 18",
  dark: "M20 14.5A8.5 8.5 0 0 1 9.5 4a8.5 8.5 0 1 0 10.5 10.5z",
  light:
    "M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8M12 2v2M12 20v2M2 12h2M20 12h2M5 5l1.5 1.5M17.5 17.5L19 19M5 19l1.5-1.5M17.5 6.5L19 5",
  close: "M6 6l12 12M18 6L6 18",
  brand: "M4 18V7l8 6 8-6v11",
} as const;

export type IconName = keyof typeof PATHS;

/** A drawing of lines in the colour of the text; what it means stands in the button's own name. */
export function Icon({ name }: { name: IconName }) {
  return (
    <svg class={`icon icon-${name}`} viewBox="0 0 24 24" aria-hidden="true" focusable="false">
      <path d={PATHS[name]} />
    </svg>
  );
}
