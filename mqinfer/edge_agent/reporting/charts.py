"""Draw columns of several parts over time, or over scores, as inline SVG, for a page without scripts.

Only shapes are SVG, stretched to the width of the page; texts around them are HTML, so they keep their size on a
narrow screen. Colours are the page's classes `c0` to `c12`, but for parts with a colour of their own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from mqinfer.logs import printable

_HEIGHT = 1000
_LINES = 4


@dataclass(frozen=True, slots=True)
class Axis:
    """What the columns of a chart run over.

    Attributes:
        width: Of a column.
        unit: Of the widths.
        start: Where the first column begins.
    """

    width: float
    unit: str = "s"
    start: float = 0.0

    def at(self, column: float) -> str:
        """Return where a column begins."""
        return f"{round(self.start + column * self.width, 2):.9g} {self.unit}".rstrip()


def stacked(
    columns: Sequence[Mapping[str, float]],
    parts: Sequence[str],
    axis: Axis,
    unit: str,
    colours: Mapping[str, str] | None = None,
) -> str:
    """Return a chart of columns, each a stack of parts.

    Args:
        columns: Height of each part by name; a part that is absent has none.
        parts: Their names from the bottom up, each with the next colour.
        axis: What the columns run over.
        unit: Of the heights.
        colours: Of parts that have their own.
    """
    highest = max((sum(column.values()) for column in columns), default=0)
    top = top_of(float(f"{highest:.4g}"))  # shares that were rounded may add up to 100.0001
    shapes = [
        f'<path {paint(number, part, colours or {})} d="{path}"/>'
        for number, part in enumerate(parts)
        if (path := _path(columns, parts[:number], part, top))
    ]
    grid = "".join(f"M0 {_HEIGHT * line // _LINES}H{len(columns)}" for line in range(_LINES + 1))
    spans = [f"{axis.at(index)} to {axis.at(index + 1)}" for index in range(len(columns))]
    tips = [
        f'<rect x="{index}" width="1" height="{_HEIGHT}"><title>{_tip(column, parts, spans[index], unit)}'
        "</title></rect>"
        for index, column in enumerate(columns)
    ]
    levels = "".join(f"<span>{top * line / _LINES:g}</span>" for line in range(_LINES, -1, -1))
    places = "".join(f"<span>{escape(axis.at(len(columns) * part / 4))}</span>" for part in range(5))
    return (
        f'<div class="chart"><div class="unit">{escape(unit)}</div><div class="levels">{levels}</div>'
        f'<svg viewBox="0 0 {max(len(columns), 1)} {_HEIGHT}" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(unit)}"><path class="grid" d="{grid}"/>{"".join(shapes)}'
        f'<g class="tips">{"".join(tips)}</g></svg><div class="times">{places}</div></div>'
    )


def paint(number: int, part: str, colours: Mapping[str, str]) -> str:
    """Return the attribute that gives a part its own colour, or else that of its number."""
    return f'fill="{colours[part]}"' if part in colours else f'class="c{number}"'


def top_of(highest: float) -> float:
    """Return a round number at or above the highest column, whose quarters are round too."""
    if not (math.isfinite(highest) and highest > 0):
        return 1.0
    unit = 10.0 ** math.floor(math.log10(highest))
    return next(unit * step for step in (1, 2, 4, 6, 8, 10, 12) if unit * step >= highest)


def _path(columns: Sequence[Mapping[str, float]], below: Sequence[str], part: str, top: float) -> str:
    """Return the rectangles of one part."""
    drawn = []
    for index, column in enumerate(columns):
        start = sum(column.get(each, 0.0) for each in below) / top * _HEIGHT
        height = column.get(part, 0.0) / top * _HEIGHT
        if height > 0:
            drawn.append(f"M{index} {_HEIGHT - start:.0f}v{-height:.1f}h1v{height:.1f}z")
    return "".join(drawn)


def _tip(column: Mapping[str, float], parts: Sequence[str], span: str, unit: str) -> str:
    lines = [f"{part}: {column[part]:.4g}" for part in parts if column.get(part)]
    return escape("\n".join([f"{span}, {unit}: {sum(column.values()):.4g}", *map(printable, lines)]))
