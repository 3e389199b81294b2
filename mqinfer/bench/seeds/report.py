"""Renders the comparison: tables by document and table, a summary, and a folder with the table and the plots."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path

from mqinfer.bench.seeds.rows import Joined
from mqinfer.lab.report_files import Panel, Report, write_report
from mqinfer.lab.reports import (
    Cell,
    Grid,
    as_csv,
    as_json,
    as_markdown,
    machine_sentence,
    plain_markdown,
    shown,
    write_files,
)

_HEADINGS = ("row", "published", "measured", "low - high", "unit", "ratio", "of machines", "")
_SERIES = re.compile(r"(?P<series>.+?),? (?:batch )(?P<over>\d+)")
"""Rows that are drawn as lines over the batch size; the others of a table are bars."""


def as_grids(rows: Sequence[Joined]) -> Iterator[Grid]:
    """Yield the summary, and a table for each of the documents' tables."""
    yield _summary(rows)
    for table, own in _by_table(rows):
        yield Grid(table, _HEADINGS, [_line(row) for row in own], words=1, ends_in_words=True)


def _summary(rows: Sequence[Joined]) -> Grid:
    headings = ("document", "rows", "measured", "kept", "broken", "need a GPU", "nothing to measure", "other reason")
    lines: list[Sequence[Cell]] = []
    for seed, part in groupby(rows, key=lambda row: row.published.table[:3]):
        own = list(part)
        states = Counter(row.published.state for row in own if row.measured is None)
        judged = Counter(row.verdict for row in own)
        measured = len(own) - states.total()
        lines.append(
            [seed, len(own), measured, judged["kept"], judged["broken"], states["gpu"], states["no"], states["cpu"]]
        )
    return Grid("Rows of the documents", headings, lines, words=1)


def _by_table(rows: Sequence[Joined]) -> Iterator[tuple[str, list[Joined]]]:
    for table, part in groupby(rows, key=lambda row: row.published.table):
        yield table, list(part)


def _line(row: Joined) -> Sequence[Cell]:
    of, found = row.published, row.measured
    op = "" if of.op in {"", "="} else f"{of.op} "
    published = (
        "picture" if of.source == "X" else "" if of.published is None else f"{op}{shown(of.published)} ({of.source})"
    )
    kinds = [row.ratio if of.comparable == kind else None for kind in ("yes", "partly")]
    if found is None:
        return [of.row, published, None, "", of.unit, *kinds, row.reason]
    span = f"{shown(found.low)} - {shown(found.high)}" if found.rounds > 1 else ""
    return [
        of.row,
        published,
        found.measured,
        span,
        of.unit,
        *kinds,
        ", ".join(filter(None, (row.verdict, found.comment))),
    ]


def _record(row: Joined) -> dict[str, Cell]:
    """Return every column of a row; what was not measured has no figure, and the reason as its comment."""
    of, found = row.published, row.measured
    return {
        "seed": of.table[:3],
        "table": of.table,
        "row": of.row,
        "setting": row.setting,
        "published": of.published,
        "published_op": of.op,
        "source": of.source,
        "error": of.error,
        "unit": of.unit,
        **{name: getattr(found, name, None) for name in ("measured", "low", "high", "rounds", "samples")},
        "scale": row.scale,
        "ratio": row.ratio,
        "comparable": of.comparable,
        "verdict": row.verdict,
        "comment": found.comment if found else row.reason,
    }


def as_whole(machine: Mapping[str, str], rows: Sequence[Joined]) -> str:
    """Return everything as JSON."""
    return as_json({"machine": machine, "rows": [_record(row) for row in rows]})


def write_folder(machine: Mapping[str, str], rows: Sequence[Joined], folder: Path) -> list[Path]:
    """Write `seeds.csv`, `seeds.json`, `seeds.md`, and a plot for each table with at least two figures of a unit.

    Raises:
        ConfigError: The folder can't be written.
        MissingExtra: matplotlib is not installed.
    """
    records, about = list(map(_record, rows)), machine_sentence(machine)
    whole = Grid("", list(records[0]), [list(each.values()) for each in records], words=4)
    document = "\n\n".join([*map(as_markdown, as_grids(rows)), plain_markdown(about)]) + "\n"
    texts = {"seeds.csv": as_csv(whole), "seeds.json": as_whole(machine, rows), "seeds.md": document}
    written = list(write_files(folder, texts))
    for table, own in _by_table(rows):
        for report, kind in _plots(table, own, about):
            paths = [folder / f"{table}-{kind}{suffix}" for suffix in (".png", ".svg")]
            for path in paths:
                write_report(report, {"plot": path})
            written += paths
    return written


def _plots(table: str, rows: Sequence[Joined], about: str) -> Iterator[tuple[Report, str]]:
    """Yield what is drawn of a table: for each unit lines over the batch size, and bars of the other rows."""
    title, units = f"{table}. {about}", dict[str, list[tuple[str, float]]]()
    for row in rows:
        if row.measured:
            units.setdefault(row.published.unit, []).append((row.published.row, row.measured.measured))
    for unit, figures in units.items():
        suffix = f"-{re.sub('[^a-z0-9]+', '-', unit.lower())}"
        places = [_SERIES.fullmatch(name) for name, _ in figures]
        pairs = zip(places, figures, strict=True)
        lines = [(found["series"], int(found["over"]), figure) for found, (_, figure) in pairs if found]
        bars = [pair for found, pair in zip(places, figures, strict=True) if not found]
        drawn: Mapping[str, tuple[Sequence[Sequence[Cell]], Sequence[str], Panel]] = {
            "lines": (lines, ("series", "batch", unit), Panel(unit, [unit], over="batch", by="series", is_log=True)),
            "bars": (bars, ("row", unit), Panel(unit, [unit])),
        }
        for kind, (cells, headings, panel) in drawn.items():
            if len(cells) > 1:
                yield Report(Grid(title, headings, cells, words=1), (panel,), about, None), f"{kind}{suffix}"
