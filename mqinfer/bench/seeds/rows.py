"""The rows of the comparison: what a document published, what was measured here, and both joined."""

from __future__ import annotations

import csv
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from statistics import median

_BOUNDS: Mapping[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
"""Operators of published bounds; they get a verdict and no ratio."""


@dataclass(frozen=True, slots=True)
class Published:
    """One row of the documents.

    Attributes:
        table: Table, figure or claim, such as `004.T1`; its first three characters are the document.
        row: Name of the row in the document's own words.
        setting: What was measured there.
        published_on: Hardware of the document.
        published: The figure; None where the document shows it in a picture only, or has no number.
        op: `=`, `~`, or a bound such as `<=`; empty without a figure.
        source: P printed, F read off a figure, R from the authors' public code or results, O another public table, D
            derived from the others, X in a picture only; empty for a claim without a number.
        error: Error of a figure that was read off.
        unit: Unit of the figures.
        comparable: `yes` for a ratio, a count or a share, `partly` for an absolute figure of another machine.
        samples: How many samples the document had.
        state: `cpu` where any machine can measure it, `gpu`, or `no` where nothing is to be measured.
        reason: Why it was not measured.
    """

    table: str
    row: str
    setting: str
    published_on: str
    published: float | None
    op: str
    source: str
    error: float | None
    unit: str
    comparable: str
    samples: int | None
    state: str
    reason: str


@dataclass(frozen=True, slots=True)
class Measured:
    """One figure of an experiment; `of_rounds` makes it of several.

    Attributes:
        table: As `Published.table`.
        row: As `Published.row`; one that no document has stands behind those of its table.
        measured: Median of the rounds.
        low: Least of the rounds.
        high: Greatest of the rounds.
        rounds: Number of rounds.
        samples: Number of samples of all rounds.
        comment: What differs from the document, in one sentence.
        setting: What ran here.
        unit: Unit, for a row that no document has.
    """

    table: str
    row: str
    measured: float
    low: float
    high: float
    rounds: int = 1
    samples: int = 1
    comment: str = ""
    setting: str = ""
    unit: str = ""


@dataclass(frozen=True, slots=True)
class NotMeasured:
    """Why an experiment that went on has no figure for a row of a document."""

    table: str
    row: str
    reason: str


def of_rounds(table: str, row: str, figures: Iterable[float], samples: int = 1, **words: str) -> Measured:
    """Return the row of a figure that was measured in several rounds.

    Args:
        table: As `Measured.table`.
        row: As `Measured.row`.
        figures: One a round.
        samples: Of all rounds.
        words: `comment`, `setting` and `unit`, as of `Measured`.
    """
    rounds = list(figures)
    return Measured(table, row, median(rounds), min(rounds), max(rounds), len(rounds), samples, **words)


@dataclass(frozen=True, slots=True)
class Joined:
    """A published row and what was measured of it."""

    published: Published
    measured: Measured | None
    reason: str

    @property
    def ratio(self) -> float | None:
        """Measured / published, where both exist, can be compared and are no bound."""
        of = self.published
        if self.measured is None or not of.published or of.op in _BOUNDS or not of.comparable:
            return None
        return self.measured.measured / of.published

    @property
    def verdict(self) -> str:
        """Verdict on a published bound: kept, broken or not run; empty for other rows."""
        of = self.published
        if of.op not in _BOUNDS or of.published is None:
            return ""
        if self.measured is None:
            return "not run"
        return "kept" if _BOUNDS[of.op](self.measured.measured, of.published) else "broken"

    @property
    def scale(self) -> float | None:
        """Share of the document's samples that ran here."""
        if self.measured is None or not self.published.samples:
            return None
        return self.measured.samples / self.published.samples

    @property
    def setting(self) -> str:
        """What ran in the document and here, and on what the document's figure was measured."""
        here = f"here {self.measured.setting}" if self.measured and self.measured.setting else ""
        on = f"published on {self.published.published_on}" if self.published.published_on else ""
        return "; ".join(part for part in (self.published.setting, here, on) if part)


def read_published() -> tuple[Published, ...]:
    """Return every row of the documents, in their order."""
    text = files("mqinfer.bench.seeds").joinpath("published.csv").read_text(encoding="utf-8")
    return tuple(map(_parse, csv.DictReader(text.splitlines())))


def _parse(cells: Mapping[str, str]) -> Published:
    figures = {name: _figure(cells[name]) for name in ("published", "error", "samples")}
    return Published(**{**cells, **figures})  # type: ignore[arg-type] # the columns are the fields


def _figure(text: str) -> float | None:
    if not text:
        return None
    return float(text) if "." in text else int(text)


def join(published: Iterable[Published], measured: Iterable[Measured], reasons: Mapping[str, str]) -> list[Joined]:
    """Put what was measured beside what was published.

    Args:
        published: Rows of the documents, those of a table together.
        measured: Rows of the experiments; the last one of a name counts.
        reasons: By table, why its experiment has not run, or not to the end; or by table and row, as `004.T1 N_F=50`.

    Returns:
        The rows in the order of the documents; behind each table those that only the experiment has.
    """
    found = {(each.table, each.row): each for each in measured}
    joined: list[Joined] = []
    tables: dict[str, list[Published]] = {}
    for each in published:
        tables.setdefault(each.table, []).append(each)
    for table, rows in tables.items():
        for each in rows:
            beside = found.pop((table, each.row), None)
            joined.append(Joined(each, beside, "" if beside else _reason(each, reasons)))
        for extra in (each for key, each in found.items() if key[0] == table):
            own = Published(table, extra.row, "", "", None, "", "", None, extra.unit, "", None, "cpu", "")
            joined.append(Joined(own, extra, ""))
    return joined


def _reason(of: Published, reasons: Mapping[str, str]) -> str:
    if of.state == "no":
        return of.reason
    return reasons.get(f"{of.table} {of.row}") or reasons.get(of.table) or of.reason or "no experiment has this row yet"
