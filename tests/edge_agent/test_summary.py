import json
from pathlib import Path

import pytest
from rich.console import Console

from mqinfer.client.result import InferResult
from mqinfer.edge_agent.frames.times import EdgeStage
from mqinfer.edge_agent.reporting.report import (
    RunExtent,
    SessionReport,
    failure_lines,
    milliseconds,
    plain_line,
    render,
    summary,
    summary_table,
    write_summary,
)
from mqinfer.edge_agent.reporting.statistics import ReplayStatistics, Snapshot
from mqinfer.protocol.errors import ConfigError
from mqinfer.protocol.types import Capture, ErrorInfo, Outcome, Timings

RUN = ("road", "1", "sha256:00", "mqtt://127.0.0.1:1883", "jpeg:90", (Path("out/results.jsonl"),))
COUNTERS = {
    "frames_read",
    "requests",
    "outcomes",
    "answered",
    "failures",
    "retries",
    "bytes_raw",
    "bytes_sent",
    "seconds",
    "latency_ms",
    "frame_latency_ms",
}
FACTS = {
    "streams",
    *("clocks", "missed", "answers", "previews", "points", "redacted"),
    "model",
    "version",
    "model_hash",
    "broker",
    "encoding",
    "files",
    "spool_damaged",
    "ended",
    "reason",
}


def two_streams() -> Snapshot:
    """Make a snapshot of a run over two streams, one of which expired."""
    statistics = ReplayStatistics()
    for source, outcome in (("/camera/front", Outcome.OK), ("/camera/rear", Outcome.EXPIRED)):
        statistics.frame_read(source)
        statistics.stage(source, EdgeStage.DEMOSAIC, 3_000_000)
        statistics.request_sent(source)
        capture = Capture(source)
        timings = Timings(inference=20_000_000, transmission=5_000_000)
        result = InferResult("0" * 32, outcome, "road", attempts=1, bytes_sent=1000, timings=timings, capture=capture)
        statistics.finished(result, bytes_raw=9000)
    return statistics.snapshot()


def test_summary_has_exactly_the_promised_keys() -> None:
    """Others script against these names, in total and by stream."""
    content = summary(SessionReport(two_streams(), *RUN))
    assert set(content) == COUNTERS | FACTS
    streams = content["streams"]
    assert isinstance(streams, list)
    assert [stream["source"] for stream in streams] == ["/camera/front", "/camera/rear"]
    assert all(set(stream) == COUNTERS | {"source"} for stream in streams)


def test_summary_survives_a_trip_through_json(tmp_path: Path) -> None:
    """All six outcomes stand there, durations are milliseconds, nothing is a type that JSON lacks."""
    path = tmp_path / "summary.json"
    write_summary(path, summary(SessionReport(two_streams(), *RUN)))
    content = json.loads(path.read_text(encoding="utf-8"))
    assert content["outcomes"] == {
        "ok": 1,
        "error": 0,
        "expired": 1,
        "superseded": 0,
        "rejected": 0,
        "cancelled": 0,
    }
    assert content["latency_ms"]["p50"] == pytest.approx(25, rel=1 / 128)
    assert content["latency_ms"]["stages"]["edge_demosaic"]["p95"] == pytest.approx(3, rel=1 / 128)
    assert content["streams"][1]["latency_ms"]["p50"] is None
    assert content["files"] == ["out/results.jsonl"]


def test_a_summary_that_cannot_be_written_names_the_file(tmp_path: Path) -> None:
    """A folder that is not there is one clear message."""
    path = tmp_path / "missing" / "summary.json"
    with pytest.raises(ConfigError, match=r"cannot write .*summary\.json: No such file"):
        write_summary(path, {})


def test_table_fits_into_eighty_columns() -> None:
    """Every stream and the total have a line, and nothing is wider than an ordinary terminal."""
    console = Console(width=80, record=True, file=None, quiet=False, force_terminal=False)
    with console.capture() as captured:
        console.print(summary_table(two_streams()))
    lines = captured.get().splitlines()
    assert max(map(len, lines)) <= 80
    assert sum(name in line for line in lines for name in ("/camera/front", "/camera/rear", "all ")) == 3


def test_no_name_is_cut() -> None:
    """A long name takes several lines of a narrow terminal, and one of a wide one."""
    statistics, name = ReplayStatistics(), "/camera/front/left/image_rect_color/compressed/of/the/second/vehicle"
    statistics.request_sent(name)
    for width, is_whole in ((60, False), (10_000, True)):
        console = Console(width=width, force_terminal=False)
        with console.capture() as captured:
            console.print(summary_table(statistics.snapshot()))
        assert "…" not in captured.get()
        assert (name in captured.get()) == is_whole


@pytest.mark.parametrize(
    ("nanoseconds", "words"),
    [(None, "-"), (0, "0.00"), (1_234_000, "1.23"), (12_340_000, "12.3"), (123_456_789, "123")],
)
def test_milliseconds_are_short(nanoseconds: int | None, words: str) -> None:
    """About three digits, whatever the size."""
    assert milliseconds(nanoseconds) == words


def test_text_from_outside_is_no_markup() -> None:
    """Names and messages with brackets are shown as they are, and control characters do not reach the terminal."""
    statistics = ReplayStatistics()
    statistics.request_sent("/[red]cam")
    error = ErrorInfo("bad_tensor", "[[input]] is\n[/b]\x1b[2J wrong")
    result = InferResult("", Outcome.ERROR, "m", error=error, capture=Capture("/[red]cam"))
    statistics.finished(result, bytes_raw=0)
    snapshot = statistics.snapshot()
    console = Console(width=100, force_terminal=False)
    with console.capture() as captured:
        console.print(summary_table(snapshot))
        console.print(render(snapshot, RunExtent()))
    assert captured.get().count("/[red]cam") == 1
    assert "1 x bad_tensor: [[input]] is [/b] [2J wrong" in captured.get()
    assert failure_lines(snapshot) == ["1 x bad_tensor: [[input]] is [/b] [2J wrong"]
    assert plain_line(snapshot, RunExtent()).endswith(", 1 x bad_tensor: [[input]] is [/b] [2J wrong")
