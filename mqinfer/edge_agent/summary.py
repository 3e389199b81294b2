"""The end of a run: one JSON file for scripts and one table for people."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rich import box
from rich.table import Table

from mqinfer.client.latency import Percentiles
from mqinfer.edge_agent.sinks.file_errors import writing
from mqinfer.edge_agent.statistics import Snapshot
from mqinfer.protocol.types import Outcome

__all__ = ["RunInfo", "milliseconds", "outcome_words", "ratio_words", "summary", "summary_table", "write_summary"]


@dataclass(frozen=True, slots=True)
class RunInfo:
    """What a run was about.

    Attributes:
        model: Its name.
        version: The version that answered.
        model_hash: Content hash of that version's files.
        broker: URL of the broker, or `local`.
        encoding: How the frames travelled, such as `jpeg:90`.
        files: What the sinks wrote.
    """

    model: str
    version: str
    model_hash: str
    broker: str
    encoding: str
    files: tuple[Path, ...] = ()


def summary(snapshot: Snapshot, run: RunInfo) -> dict[str, object]:
    """Put a run into one JSON object; durations are milliseconds, and null where nothing was measured."""
    return {
        **_counters(snapshot),
        "streams": [{"source": stream.source, **_counters(stream)} for stream in snapshot.streams],
        "model": run.model,
        "version": run.version,
        "model_hash": run.model_hash,
        "broker": run.broker,
        "encoding": run.encoding,
        "files": [str(path) for path in run.files],
    }


def write_summary(path: Path, content: Mapping[str, object]) -> None:
    """Write a summary as JSON.

    Raises:
        ConfigError: The file can't be written.
    """
    with writing(path):
        path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def summary_table(snapshot: Snapshot) -> Table:
    """Lay a run out as a table of at most 80 columns, one line a stream and one for all of them."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, expand=True)
    table.add_column("stream", overflow="ellipsis", no_wrap=True, ratio=1)
    for heading in ("read", "ok", "other", "retries", "/s", "p50\nms", "p99\nms", "sent\nMB", "ratio"):
        table.add_column(heading, justify="right", no_wrap=True)
    for stream in snapshot.streams:
        table.add_row(*_cells(stream))
    if len(snapshot.streams) != 1:
        table.add_section()
        table.add_row(*_cells(snapshot), style="bold")
    return table


def outcome_words(snapshot: Snapshot) -> str:
    """Name the outcomes that occurred, with their counts; `ok` always."""
    return ", ".join([f"{snapshot.outcomes[Outcome.OK]} ok", *_failures(snapshot)])


def ratio_words(snapshot: Snapshot) -> str:
    """Say how many bytes of pixels one byte of message stood for; a dash where nothing was sent."""
    return f"{snapshot.bytes_raw / snapshot.bytes_sent:.1f}" if snapshot.bytes_sent else "-"


def milliseconds(nanoseconds: int | None) -> str:
    """Write a duration in milliseconds with three significant digits or so; a dash where there is none."""
    if nanoseconds is None:
        return "-"
    value = nanoseconds / 1e6
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _cells(snapshot: Snapshot) -> tuple[str, ...]:
    return (
        snapshot.source or "all",
        str(snapshot.frames_read),
        str(snapshot.outcomes[Outcome.OK]),
        "\n".join(_failures(snapshot)) or "0",
        str(snapshot.retries),
        _short(snapshot.frame_rate),
        milliseconds(snapshot.latency.p50),
        milliseconds(snapshot.latency.p99),
        _short(snapshot.bytes_sent / 1e6),
        ratio_words(snapshot),
    )


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 1000 else f"{value:.1f}"


def _failures(snapshot: Snapshot) -> list[str]:
    return [f"{count} {outcome}" for outcome, count in snapshot.outcomes.items() if count and outcome is not Outcome.OK]


def _counters(snapshot: Snapshot) -> dict[str, object]:
    return {
        "frames_read": snapshot.frames_read,
        "requests": snapshot.requests,
        "outcomes": {outcome.value: count for outcome, count in snapshot.outcomes.items()},
        "retries": snapshot.retries,
        "bytes_raw": snapshot.bytes_raw,
        "bytes_sent": snapshot.bytes_sent,
        "seconds": round(snapshot.seconds, 3),
        "latency_ms": {
            **_milliseconds(snapshot.latency),
            "stages": {stage: _milliseconds(percentiles) for stage, percentiles in snapshot.stages.items()},
        },
    }


def _milliseconds(percentiles: Percentiles) -> dict[str, float | None]:
    values = {"p50": percentiles.p50, "p95": percentiles.p95, "p99": percentiles.p99}
    return {name: None if value is None else round(value / 1e6, 4) for name, value in values.items()}
