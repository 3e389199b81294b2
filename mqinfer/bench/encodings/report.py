"""Reports what was measured of encodings."""

from __future__ import annotations

import math

from mqinfer.bench.encodings.measure import EncodingFigures, EncodingsMeasurement
from mqinfer.lab.report_files import Panel, Report
from mqinfer.lab.reports import Cell, Grid, machine_sentence

_USUAL = "jpeg:90"
"""The default of `--encoding`: what the thin link is compared with."""
_HEADINGS = ("encoding", "kB a frame", "edge CPU ms", "worker CPU ms", "PSNR dB", "answers changed, %", "p50 ms")
_PANELS = (
    Panel("kB a frame", ["kB a frame"], is_log=True),
    Panel("processor time a frame, ms", ["edge CPU ms", "worker CPU ms"]),
    Panel("end to end, p50 in ms", ["p50 ms"]),
)


def report_encodings(measured: EncodingsMeasurement) -> Report:
    """Return the report, with one row for each encoding."""
    headings = list(_HEADINGS)
    has_link = any(each.link_rate is not None for each in measured.figures)
    usual = next((each.link_rate for each in measured.figures if each.encoding == _USUAL), None)
    if has_link:
        headings += ["results/s over the link", f"times {_USUAL}"]
    rows = [_row(each) + (_link(each, usual) if has_link else []) for each in measured.figures]
    title = ", ".join(f"{key} {value}" for key, value in measured.subject.items() if value)
    return Report(Grid(title, headings, rows, words=1), _PANELS, machine_sentence(measured.machine), measured)


def _row(each: EncodingFigures) -> list[Cell]:
    return [
        each.encoding,
        each.alone.frame_bytes / 1e3,
        each.alone.edge_ms,
        each.alone.worker_ms,
        math.inf if each.alone.psnr_db is None else each.alone.psnr_db,
        each.changed * 100,
        each.p50_ms,
    ]


def _link(each: EncodingFigures, usual: float | None) -> list[Cell]:
    return [each.link_rate, each.link_rate / usual if usual and each.link_rate is not None else None]
