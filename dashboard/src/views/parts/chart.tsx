import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import { systemChanges, theme } from "../shell/theme.js";

export interface Line {
  readonly name: string;
  /** Name of the custom property that holds its colour, such as `--part-decode`. */
  readonly colour: string;
  /** NaN where nothing was measured. */
  readonly values: readonly number[];
}

const HEIGHT = 132;

/**
 * Lines over time, or, stacked, areas upon each other.
 *
 * The chart is made anew where lines come or go or the theme changes; otherwise it gets new points alone.
 */
export function Chart(props: {
  label: string;
  unit: string;
  seconds: readonly number[];
  lines: readonly Line[];
  isStacked?: boolean;
}) {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const names = props.lines.map((line) => line.name).join("\n");
  const mode = `${theme.value} ${systemChanges.value}`;
  const read = () => toData(props.seconds, props.lines, props.isStacked ?? false);
  useEffect(() => {
    const element = box.current;
    if (!element) return;
    const made = new uPlot(options(element, props.lines, props.unit, props.isStacked ?? false), read(), element);
    plot.current = made;
    const observer = new ResizeObserver(() => made.setSize({ width: element.clientWidth, height: HEIGHT }));
    observer.observe(element);
    return () => {
      observer.disconnect();
      made.destroy();
      plot.current = null;
    };
  }, [names, mode, props.unit, props.isStacked]);
  const last = props.seconds.at(-1) ?? 0;
  useEffect(() => plot.current?.setData(read()), [last, props.seconds.length]);
  return <div class="chart" ref={box} role="img" aria-label={props.label} />;
}

/** Return uPlot's columns: the times, then each line; of stacked ones the sums, the highest first. */
function toData(seconds: readonly number[], lines: readonly Line[], isStacked: boolean): uPlot.AlignedData {
  if (!isStacked) return [[...seconds], ...lines.map((line) => line.values.map(orNull))];
  const sums = new Array<number>(seconds.length).fill(0);
  const columns = lines.map((line) =>
    seconds.map((_, place) => {
      const value = line.values[place] ?? Number.NaN;
      if (!Number.isFinite(value)) return null;
      sums[place] = (sums[place] ?? 0) + value;
      return sums[place] ?? null;
    }),
  );
  return [[...seconds], ...columns.reverse()];
}

function orNull(value: number): number | null {
  return Number.isFinite(value) ? value : null;
}

function options(element: HTMLElement, lines: readonly Line[], unit: string, isStacked: boolean): uPlot.Options {
  const style = getComputedStyle(document.documentElement);
  const colour = (name: string) => style.getPropertyValue(name).trim() || "gray";
  const axis = {
    stroke: colour("--muted"),
    font: "11px system-ui, sans-serif",
    grid: { stroke: colour("--line"), width: 1 },
    ticks: { show: false },
  };
  const ordered = isStacked ? [...lines].reverse() : lines;
  return {
    width: element.clientWidth || 300,
    height: HEIGHT,
    padding: [8, 24, 8, 0],
    legend: { show: false },
    cursor: { show: false },
    scales: { x: { time: true }, y: { range: (_, __, most) => [0, Math.max(most * 1.1, 1)] } },
    axes: [
      { ...axis, grid: { show: false }, size: 24, space: 70, values: (_, ticks) => ticks.map(clockTime) },
      { ...axis, size: 54, space: 30, values: (_, ticks) => ticks.map((tick) => `${tick}${unit}`) },
    ],
    series: [
      {},
      ...ordered.map((line) => ({
        label: line.name,
        stroke: colour(line.colour),
        width: isStacked ? 0 : 1.5,
        ...(isStacked ? { fill: colour(line.colour) } : {}),
        points: { show: false },
      })),
    ],
  };
}

function clockTime(seconds: number): string {
  const date = new Date(seconds * 1000);
  return [date.getHours(), date.getMinutes(), date.getSeconds()].map((part) => String(part).padStart(2, "0")).join(":");
}
