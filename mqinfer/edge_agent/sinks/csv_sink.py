"""Write results as CSV tables."""

from __future__ import annotations

import csv
import unicodedata
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TextIO

from mqinfer.bags.frame import Frame
from mqinfer.client.result import InferResult
from mqinfer.edge_agent.frames.times import STAGES
from mqinfer.edge_agent.frames.view import FrameView
from mqinfer.edge_agent.output_files import set_aside, writing
from mqinfer.edge_agent.sinks.jsonl_sink import describe_result, describe_times
from mqinfer.logs import printable

_KEY = ("source", "sequence", "capture_time_ns")
"""Identifies a frame in each table."""
_FRAME = (
    *_KEY,
    *("log_time_ns", "frame_id", "outcome", "error", "message", "model_name", "model_version", "model_hash", "stage"),
    *("worker", "precision", "backend", "device", "id", "attempts", "bytes_sent", "latency_ms"),
    *("total_ns", *(f"{stage}_ns" for stage in STAGES), "clock_offset_ns", "clock_uncertainty_ns"),
    *("detections", "top_class", "top_score"),
)
_DETECTION = (*_KEY, "detection", "id", "class", "score", "left", "top", "right", "bottom")
_KEYPOINT = (*_KEY, "detection", "id", "keypoint", "x", "y", "score")
_CLASS = (*_KEY, "class", "share", "score")
_FORMULA = ("=", "+", "-", "@", "\N{MINUS SIGN}")
"""Spreadsheets run a text that begins so, be it in another width, such as U+FF1D, or behind spaces."""


class CsvSink:
    """Writes tables in UTF-8 with a heading, and one line a row, whatever the texts in it.

    - `results.csv`: one row a frame, whatever its outcome; the stages of its time sum to `total_ns`;
    - `detections.csv`: one row a box, in pixels of the recorded frame; those of a frame are numbered from 0, the best;
    - `keypoints.csv`: one row for each key point of a box, which goes by that number;
    - `classes.csv`: one row for each class of a mask, with its share of the pixels, or of the best classes of a
      classifier, with its score.

    The last three are there for models that have such outputs. A text that a spreadsheet would take for a formula has
    an apostrophe before it, and control characters are written as escape sequences.

    Args:
        directory: For the files.

    Raises:
        ConfigError: A file cannot be created.
    """

    def __init__(self, directory: Path) -> None:
        self._frames = _Table(directory / "results.csv", _FRAME)
        self._boxes = _Table(directory / "detections.csv", _DETECTION)
        self._points = _Table(directory / "keypoints.csv", _KEYPOINT)
        self._shares = _Table(directory / "classes.csv", _CLASS)
        self._frames.open()

    def write(self, frame: Frame, view: FrameView, result: InferResult) -> None:
        """Append the rows of a result.

        Raises:
            ConfigError: A file cannot be written.
        """
        described: dict[str, Any] = describe_result(frame, view, result)
        described |= describe_times(frame, view, result)
        boxes, top = described.pop("detections", ()), described.pop("top", ())
        self._frames.add(_frame_row(described, result, len(boxes), top))
        for number, each in enumerate(boxes):
            own = described | {"id": None, "detection": number} | each
            self._boxes.add(own | dict(zip(("left", "top", "right", "bottom"), each["box"], strict=True)))
            for name, (x, y, score) in each.get("keypoints", {}).items():
                self._points.add(own | {"keypoint": name, "x": x, "y": y, "score": score})
        for output in described["outputs"].values():
            for name, share in output.get("class_shares", {}).items():
                self._shares.add(described | {"class": name, "share": share})
        for each in top:
            self._shares.add(described | {"class": each["class"], "score": each["score"]})

    def close(self) -> tuple[Path, ...]:
        """Finish the files, and return their paths.

        Raises:
            ConfigError: A file cannot be written.
        """
        tables = (self._frames, self._boxes, self._points, self._shares)
        with ExitStack() as closing:  # closes all, also if one fails
            for table in tables:
                closing.callback(table.close)
        return tuple(table.path for table in tables if table.file)


def _frame_row(
    described: Mapping[str, Any], result: InferResult, boxes: int, top: Sequence[Mapping[str, Any]]
) -> dict[str, object]:
    """Return the row of a frame."""
    times = described["times"]
    durations = {"total": times["total"], **times["stages"]}
    durations |= {f"clock_{each}": value for each, value in times.get("clock", {}).items()}
    timings = {f"{stage}_ns": duration for stage, duration in durations.items()}
    error = {"error": result.error.code, "message": result.error.message} if result.error else {"error": None}
    best = {"top_class": top[0]["class"], "top_score": top[0]["score"]} if top else {}
    return {**described, **timings, **error, **best, "detections": boxes}


class _Table:
    """One file, opened with its first row; that of an earlier run is set aside at once."""

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        self.path = path
        self.file: TextIO | None = None
        self._columns = columns
        with writing(path):
            set_aside(path)

    def open(self) -> Any:
        """Open the file if it is not open, and return its writer."""
        if self.file is None:
            with writing(self.path):
                self.file = self.path.open("w", encoding="utf-8", newline="", buffering=1)
                self._rows = csv.writer(self.file, lineterminator="\n")
                self._rows.writerow(self._columns)
        return self._rows

    def add(self, row: Mapping[str, object]) -> None:
        """Append a row; what is not among the columns is left out."""
        rows = self.open()
        with writing(self.path):
            rows.writerow([_cell(row.get(column)) for column in self._columns])

    def close(self) -> None:
        """Close the file, if it is open."""
        if self.file is not None:
            with writing(self.path):
                self.file.close()


def _cell(value: object) -> object:
    """Return a value as it is; a text on one line, and never as a formula."""
    if not isinstance(value, str):
        return value
    begins = unicodedata.normalize("NFKC", value.lstrip()[:1])
    return f"'{printable(value)}" if begins.startswith(_FORMULA) else printable(value)
