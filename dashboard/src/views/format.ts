/** Numbers as the page writes them: few digits, always with a unit, and none that jumps in width without need. */

/** What stands for a value that nobody has stated. */
export const NOTHING = "–";

const GROUPED = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

export function count(value: number | null): string {
  if (value === null || !Number.isFinite(value)) return NOTHING;
  if (Math.abs(value) < 1e6) return GROUPED.format(value);
  return Math.abs(value) < 1e9 ? `${(value / 1e6).toFixed(2)} M` : `${(value / 1e9).toFixed(2)} G`;
}

/** Write results a second, without the unit. */
export function rate(value: number | null): string {
  if (value === null || !Number.isFinite(value)) return NOTHING;
  return value < 1000 ? value.toFixed(1) : GROUPED.format(value);
}

export function milliseconds(value: number | null): string {
  if (value === null || !Number.isFinite(value)) return NOTHING;
  if (value >= 1000) return `${(value / 1000).toFixed(value < 10_000 ? 2 : 1)} s`;
  if (value >= 100) return `${value.toFixed(0)} ms`;
  return `${value.toFixed(value < 1 ? 2 : 1)} ms`;
}

/** Write a share of a whole in per cent. */
export function share(part: number): string {
  if (!Number.isFinite(part)) return NOTHING;
  return part > 0 && part < 0.005 ? "<1 %" : `${Math.round(100 * part)} %`;
}

/** Write how long something took or how long ago it was. */
export function duration(ms: number | null): string {
  if (ms === null || !Number.isFinite(ms)) return NOTHING;
  const seconds = Math.max(0, ms) / 1000;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 100) return `${seconds.toFixed(0)} s`;
  const minutes = seconds / 60;
  if (minutes < 100) return `${minutes.toFixed(0)} min`;
  return minutes < 48 * 60 ? `${(minutes / 60).toFixed(0)} h` : `${(minutes / 1440).toFixed(0)} days`;
}

const DAY_MS = 86_400_000;
const LATEST_MS = 8.64e15;

/** Write the time of day by the browser's clock; the date too where it was not today. */
export function timeOfDay(ms: number | null, nowMs = Date.now()): string {
  if (ms === null || !(Math.abs(ms) < LATEST_MS)) return NOTHING;
  const date = new Date(ms);
  const time = [date.getHours(), date.getMinutes(), date.getSeconds()].map(twoDigits).join(":");
  if (Math.abs(nowMs - ms) < DAY_MS) return time;
  return `${date.getFullYear()}-${twoDigits(date.getMonth() + 1)}-${twoDigits(date.getDate())} ${time}`;
}

function twoDigits(value: number): string {
  return String(value).padStart(2, "0");
}

/** Return the beginning of a hash, enough to tell two models apart. */
export function shortHash(hash: string): string {
  return hash.replace(/^[a-z0-9]+:/, "").slice(0, 8);
}

/** Cut a text that would take the page's room. */
export function brief(text: string, most = 200): string {
  return text.length > most ? `${text.slice(0, most)}…` : text;
}

/** Make a sentence of a reason, such as `the connection was closed`. */
export function sentence(text: string): string {
  const end = /[.!?…]$/.test(text) ? "" : ".";
  return text.charAt(0).toUpperCase() + text.slice(1) + end;
}
