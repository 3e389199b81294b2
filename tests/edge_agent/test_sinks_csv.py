"""CSV tables: read back by the standard library, whatever the texts in them."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mqinfer.bags.frame import Frame
from mqinfer.client.result import InferResult
from mqinfer.edge_agent.frames.times import STAGES, FrameTimes, Offset
from mqinfer.edge_agent.frames.view import FrameView
from mqinfer.edge_agent.sinks.csv_sink import CsvSink
from mqinfer.edge_agent.sinks.factory import SinkSet
from mqinfer.edge_agent.sinks.jsonl_sink import JsonlSink
from mqinfer.images.picture import RawImage
from mqinfer.images.placement import Placement
from mqinfer.protocol.card import ClassInfo
from mqinfer.protocol.datatypes import Array
from mqinfer.protocol.errors import ConfigError
from mqinfer.protocol.states import ServedModel
from mqinfer.protocol.types import ErrorInfo, Outcome, Timings

CLASSES = (ClassInfo("car", (255, 0, 0)), ClassInfo("road", (0, 255, 0)))
CAPTURE_NS = 1_700_000_000_123_456_789
BOXES: dict[str, Array] = {
    "boxes": np.array([[1, 2, 3, 4], [5, 6, 7.5, 8]], np.float32),
    "scores": np.array([0.5, 0.875], np.float32),
    "classes": np.array([1, 0], np.int64),
}
MASK: dict[str, Array] = {"mask": np.array([[0, 0, 0, 1], [0, 0, 0, 1]], np.uint8)}
AS_TEXT = {
    "=cmd()": "'=cmd()",
    "+1": "'+1",
    "-1": "'-1",
    "@x": "'@x",
    "\N{FULLWIDTH EQUALS SIGN}cmd()": "'\N{FULLWIDTH EQUALS SIGN}cmd()",
    "\N{FULLWIDTH PLUS SIGN}1": "'\N{FULLWIDTH PLUS SIGN}1",
    "\N{SMALL EQUALS SIGN}1": "'\N{SMALL EQUALS SIGN}1",
    "\N{FULLWIDTH COMMERCIAL AT}x": "'\N{FULLWIDTH COMMERCIAL AT}x",
    "\N{MINUS SIGN}1": "'\N{MINUS SIGN}1",
    "  =cmd()": "'  =cmd()",
    "<script>alert(1)</script>": "<script>alert(1)</script>",
    'a "b", c': 'a "b", c',
    "a\nb\r\x1b[31m\0": r"a\nb\r\x1b[31m\x00",
    "\udc80": r"\udc80",
    "x" * 10_000: "x" * 10_000,
}
NASTY = tuple(AS_TEXT)
TIMES = FrameTimes(15, {"edge_read": 5, "inference": 10}, Offset(-3, 2))


def frame_of(number: int, source: str = "/camera", frame_id: str = "optical") -> Frame:
    """Make a frame whose pixels nobody reads."""
    image = RawImage("rgb8", 8, 16, 48, is_bigendian=False, data=b"")
    return Frame(source, number, CAPTURE_NS + number, CAPTURE_NS + number + 7, frame_id, image)


def result_of(
    outputs: dict[str, Array], outcome: Outcome = Outcome.OK, message: str = "too late", worker: str = "gpu.0"
) -> InferResult:
    """Make a result."""
    error = None if outcome is Outcome.OK else ErrorInfo("timeout", message)
    timings = Timings(inference=12_000_000)
    return InferResult("1", outcome, "net", "3", "sha256:a", outputs, error, worker, "worker", timings, attempts=1)


def view_of(
    outputs: dict[str, Array], size: tuple[int, int] = (16, 8), classes: Sequence[ClassInfo] = CLASSES
) -> FrameView:
    """Show outputs of a frame that the model sees as it is."""
    served = ServedModel("net", "3", precision="int8", backend="openvino 2026", device="cpu")
    pixels, placement = np.zeros((size[1], size[0], 3), np.uint8), Placement.of(size, size)
    return FrameView(pixels, placement, outputs, served=served, times=TIMES, classes=classes)


def read(path: Path) -> list[dict[str, Any]]:
    """Read a table; each line is a row, and each row has all columns."""
    text = path.read_text(encoding="utf-8")
    rows = list(csv.DictReader(text.splitlines()))
    assert len(rows) == text.count("\n") - 1
    assert all(None not in row and None not in row.values() for row in rows)
    return rows


def test_each_frame_and_each_box_is_a_row(tmp_path: Path) -> None:
    """Integers exactly, also beyond a float64; boxes in the frame's pixels; the engine of the worker."""
    sink = CsvSink(tmp_path)
    sink.write(frame_of(0), view_of(BOXES), result_of(BOXES))
    sink.write(frame_of(1), view_of({}), result_of({}, Outcome.EXPIRED))
    paths = sink.close()
    assert [path.name for path in paths] == ["results.csv", "detections.csv"]
    answered, failed = read(paths[0])
    assert int(answered["capture_time_ns"]) == CAPTURE_NS
    assert (answered["outcome"], answered["error"], answered["detections"]) == ("ok", "", "2")
    assert (answered["precision"], answered["backend"], answered["device"]) == ("int8", "openvino 2026", "cpu")
    assert (answered["worker"], answered["latency_ms"], answered["total_ns"]) == ("gpu.0", "12.0", "15")
    stages = {name: answered[f"{name}_ns"] for name in STAGES if answered[f"{name}_ns"]}
    assert stages == {"edge_read": "5", "inference": "10"}
    assert (answered["clock_offset_ns"], answered["clock_uncertainty_ns"]) == ("-3", "2")
    assert (failed["outcome"], failed["error"], failed["message"]) == ("expired", "timeout", "too late")
    boxes = [(row["sequence"], row["class"], row["score"], row["left"], row["bottom"]) for row in read(paths[1])]
    assert boxes == [("0", "car", "0.875", "5.0", "8.0"), ("0", "road", "0.5", "1.0", "4.0")]


def test_classes_have_a_table_of_their_own(tmp_path: Path) -> None:
    """The share of each class of a mask; the score of the best of a classifier."""
    sink = CsvSink(tmp_path)
    sink.write(frame_of(0), view_of(MASK, (4, 2)), result_of(MASK))
    scores: dict[str, Array] = {"scores": np.array([[-3.5, 1.25]], np.float32)}
    sink.write(frame_of(1), view_of(scores), result_of(scores))
    frames, classes = map(read, sink.close())
    found = [(row["sequence"], row["class"], row["share"], row["score"]) for row in classes]
    assert found == [
        ("0", "car", "0.75", ""),
        ("0", "road", "0.25", ""),
        ("1", "road", "", "1.25"),
        ("1", "car", "", "-3.5"),
    ]
    assert (frames[1]["top_class"], frames[1]["top_score"]) == ("road", "1.25")


def test_hostile_texts_are_texts(tmp_path: Path) -> None:
    """In names of classes, sources, frames and workers and in messages: no formula, no control character."""
    sink = CsvSink(tmp_path)
    outputs: dict[str, Array] = {
        "boxes": np.zeros((len(NASTY), 4)),
        "scores": np.linspace(1, 0, len(NASTY)),
        "classes": np.arange(len(NASTY)),
    }
    classes = [ClassInfo(name, (0, 0, 0)) for name in NASTY]
    sink.write(frame_of(0), view_of(outputs, classes=classes), result_of(outputs))
    for name in NASTY:
        sink.write(frame_of(1, name, name), view_of({}), result_of({}, Outcome.ERROR, name, name))
    frames, boxes = map(read, sink.close())
    assert [row["class"] for row in boxes] == list(AS_TEXT.values())
    for column in ("source", "frame_id", "worker", "message"):
        assert [row[column] for row in frames[1:]] == list(AS_TEXT.values())


def test_the_tables_say_what_the_json_lines_say(tmp_path: Path) -> None:
    """Same frames, same figures: one of the two files is enough."""
    sinks = SinkSet([CsvSink(tmp_path), JsonlSink(tmp_path)])
    sinks.write(frame_of(0), view_of(BOXES), result_of(BOXES))
    sinks.close()
    (row,) = read(tmp_path / "results.csv")
    for name in ("results.jsonl", "times.jsonl"):
        line = json.loads((tmp_path / name).read_text(encoding="utf-8"))
        for key in set(line) - {"outputs", "detections", "timings", "times", "error"}:
            assert row[key] == ("" if line[key] is None else str(line[key]))


def test_the_tables_of_an_earlier_run_are_kept(tmp_path: Path) -> None:
    """Also one that this run does not write."""
    for outputs in (BOXES, MASK):
        sink = CsvSink(tmp_path)
        sink.write(frame_of(0), view_of(outputs, (4, 2)), result_of(outputs))
        sink.close()
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"results.csv", "results.1.csv", "detections.1.csv", "classes.csv"}


KILLED = """
import os
import sys
from tests.edge_agent.test_sinks_csv import *
sink = CsvSink(Path(sys.argv[1]))
for number in range(5):
    sink.write(frame_of(number), view_of(BOXES), result_of(BOXES))
os.kill(os.getpid(), 9)
"""


def test_a_killed_run_leaves_whole_tables(tmp_path: Path) -> None:
    """Every row that was written is there."""
    ended = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False, timeout=60)
    assert ended.returncode == -9
    assert [row["sequence"] for row in read(tmp_path / "results.csv")] == [str(number) for number in range(5)]
    assert len(read(tmp_path / "detections.csv")) == 10


def test_a_full_disk_is_reported_by_the_files_name(tmp_path: Path) -> None:
    """The other kinds of files go on."""
    (tmp_path / "csv").mkdir()
    (tmp_path / "csv" / "detections.csv").symlink_to("/dev/full")
    sinks = SinkSet([CsvSink(tmp_path / "csv"), JsonlSink(tmp_path)])
    for number in range(3):
        sinks.write(frame_of(number), view_of(BOXES), result_of(BOXES))
    sinks.close()
    assert isinstance(sinks.failure, ConfigError)
    assert "detections.csv: No space left" in str(sinks.failure)
    assert len((tmp_path / "results.jsonl").read_text(encoding="utf-8").splitlines()) == 3
