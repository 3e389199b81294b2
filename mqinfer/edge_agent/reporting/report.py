"""Report a run: a live display or plain lines while it runs; a JSON file and a table at its end."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path

from rich import box
from rich.bar import Bar
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from mqinfer.edge_agent.collecting.collector import Collected
from mqinfer.edge_agent.frames.published import PublishedCounts
from mqinfer.edge_agent.frames.times import Offset
from mqinfer.edge_agent.output_files import set_aside, writing
from mqinfer.edge_agent.reporting.statistics import ReplayStatistics, Snapshot
from mqinfer.metrics.histogram import Percentiles
from mqinfer.protocol.errors import MqinferError
from mqinfer.protocol.types import Outcome, Stage

_LONGEST_MESSAGE = 500
"""Characters of an error's message that are shown."""


class Ending(StrEnum):
    """How a run ended."""

    COMPLETE = "complete"
    """The whole source was read, or a source without end was stopped."""
    INTERRUPTED = "interrupted"
    """A signal ended it before the end of the recording."""
    INCOMPLETE = "incomplete"
    """The source broke off or is damaged; what was read has its outcome."""
    FAILED = "failed"
    """An error ended it, or left a kind of files incomplete."""


@dataclass(frozen=True, slots=True)
class Redacted:
    """What was made unreadable before any frame was sent.

    Attributes:
        frames: Frames with a box or more.
        boxes: Their boxes.
    """

    frames: int
    boxes: int


@dataclass(frozen=True, slots=True)
class Reading:
    """What became of frames beside their requests.

    Attributes:
        missed: Frames of joined topics that were left out, those that live sources lost and those that could not be
            redacted, by topic and reason; None for recordings that are neither joined nor redacted.
        redacted: What was made unreadable; None where that was not asked for.
        points: How many points beside pictures were read, not finite and left out, by topic and these words.
        collected: Frames of all models of the run that were kept since they matter; None where none are.
    """

    missed: Mapping[tuple[str, str], int] | None = None
    redacted: Redacted | None = None
    points: Mapping[tuple[str, str], int] = field(default_factory=dict)
    collected: Collected | None = None


@dataclass(frozen=True, slots=True)
class SessionReport:
    """One model's run, once it has ended.

    Attributes:
        snapshot: The counters; they add up.
        model: Its name.
        version: Version of the model.
        model_hash: Content hash of that version's files.
        broker: URL of the broker, or `local`.
        encoding: Codec of the frames, such as `jpeg:90`.
        files: Files that the sinks wrote.
        spool_damaged: Frames that were damaged in the spool, and set aside there.
        ended: How it ended.
        broke_off: Why it ended early or a kind of files is incomplete: the source broke off, no frame can succeed, a
            file can't be written, or there was no connection or it failed for good; None if all is well.
        is_stopped: Whether a signal ended a source without end, which is its regular end.
        clocks: How far each worker's clock is ahead of this one.
        reading: What became of frames beside their requests.
        previews: Previews that were published and dropped; None where none were asked for.
        answers: The same of answers in words, of the sink `mqtt`.
    """

    snapshot: Snapshot
    model: str
    version: str
    model_hash: str
    broker: str
    encoding: str
    files: tuple[Path, ...] = ()
    spool_damaged: int = 0
    ended: Ending = Ending.COMPLETE
    broke_off: MqinferError | None = None
    is_stopped: bool = False
    clocks: Mapping[str, Offset] = field(default_factory=dict)
    reading: Reading = Reading()
    previews: PublishedCounts | None = None
    answers: PublishedCounts | None = None

    @property
    def reason(self) -> str:
        """Why it ended early, or what is incomplete; empty if all is well."""
        return str(self.broke_off or "")


def summary(run: SessionReport) -> dict[str, object]:
    """Return a run as one JSON object; durations are milliseconds, and null if nothing was measured.

    `ended` is `complete`, `interrupted`, `incomplete` or `failed`, and `reason` the error, or null. `failures` holds
    the frames without a result by error code, each with its count and the first message; frames that a newer one
    superseded are among the `outcomes` only.
    """
    return {
        "ended": run.ended.value,
        "reason": run.reason or None,
        **_counters(run.snapshot),
        "streams": [{"source": stream.source, **_counters(stream)} for stream in run.snapshot.streams],
        "model": run.model,
        "version": run.version,
        "model_hash": run.model_hash,
        "broker": run.broker,
        "encoding": run.encoding,
        "files": [str(path) for path in run.files],
        "spool_damaged": run.spool_damaged,
        **_reading(run.reading),
        "previews": run.previews and {"published": run.previews.published, "dropped": dict(run.previews.dropped)},
        "answers": run.answers and asdict(run.answers),
        "clocks": {worker: _clock(offset) for worker, offset in run.clocks.items()},
    }


def write_summary(path: Path, content: Mapping[str, object]) -> None:
    """Write a summary as JSON; the file of an earlier run is kept under a number.

    Raises:
        ConfigError: The file cannot be written.
    """
    with writing(path):
        set_aside(path)
        path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def summary_table(snapshot: Snapshot) -> Table:
    """Make a table of at most 80 columns, with one row for each stream and one for all of them."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column("stream", overflow="fold")
    for heading in ("read", "ok", "other", "retries", "frames\n/s", "p50\nms", "p99\nms", "sent\nMB", "raw:\nsent"):
        table.add_column(heading, justify="right", no_wrap=True)
    for stream in snapshot.streams:
        table.add_row(*_cells(stream))
    if len(snapshot.streams) != 1:
        table.add_section()
        table.add_row(*_cells(snapshot), style="bold")
    return table


def failure_lines(snapshot: Snapshot) -> list[str]:
    """Return why frames failed, one line for each error code: `12 x not_authorized: the broker does not allow ...`."""
    return [f"{failure.count} x {printable(f'{failure.code}: {failure.message}')}" for failure in snapshot.failures]


def printable(text: str) -> str:
    """Return text from outside as one line that a terminal shows as it is, cut to a bound."""
    plain = "".join(letter if letter.isprintable() else " " for letter in text[: _LONGEST_MESSAGE + 1])
    return plain if len(plain) <= _LONGEST_MESSAGE else plain[:_LONGEST_MESSAGE] + "…"


def outcome_words(snapshot: Snapshot) -> str:
    """List the outcomes that occurred with their counts, and `ok` always."""
    return ", ".join([f"{snapshot.outcomes[Outcome.OK]} ok", *_failures(snapshot)])


def answer_words(snapshot: Snapshot) -> str:
    """List who answered, with counts; empty where workers answered all."""
    answered = {stage: count for stage, count in snapshot.answered.items() if count}
    return (
        ", ".join(f"{count} {stage}" for stage, count in answered.items()) if answered.keys() - {Stage.WORKER} else ""
    )


def ratio_words(snapshot: Snapshot) -> str:
    """Return bytes of pixels per byte sent; a dash if nothing was sent."""
    return f"{snapshot.bytes_raw / snapshot.bytes_sent:.1f}" if snapshot.bytes_sent else "-"


def milliseconds(nanoseconds: int | None) -> str:
    """Return a duration in milliseconds with about three digits; a dash for None."""
    if nanoseconds is None:
        return "-"
    value = nanoseconds / 1e6
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _cells(snapshot: Snapshot) -> tuple[str | Text, ...]:
    return (
        Text(printable(snapshot.source) or "all"),  # a name from a recording is no markup
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
        "answered": {stage.value: count for stage, count in snapshot.answered.items()},
        "failures": [asdict(failure) for failure in snapshot.failures],
        "retries": snapshot.retries,
        "bytes_raw": snapshot.bytes_raw,
        "bytes_sent": snapshot.bytes_sent,
        "seconds": round(snapshot.seconds, 3),
        "latency_ms": {
            **_milliseconds(snapshot.latency),
            "stages": {stage: _milliseconds(percentiles) for stage, percentiles in snapshot.stages.items()},
        },
        "frame_latency_ms": _milliseconds(snapshot.frame_latency),
    }


def _reading(reading: Reading) -> dict[str, object]:
    return {
        "missed": None if reading.missed is None else _by_topic(reading.missed),
        "points": _by_topic(reading.points) or None,
        "redacted": reading.redacted and asdict(reading.redacted),
        "collected": reading.collected and asdict(reading.collected),
    }


def _by_topic(counts: Mapping[tuple[str, str], int]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for (topic, what), count in sorted(counts.items()):
        found.setdefault(topic, {})[what] = count
    return found


def missed_lines(run: SessionReport) -> list[str]:
    """Return why frames were left out or lost, one line for each topic and reason."""
    found = sorted((run.reading.missed or {}).items())
    return [f"{count} x {printable(f'{topic}: {why}')}; not sent" for (topic, why), count in found]


def published_words(run: SessionReport) -> dict[str, str]:
    """Return what was published and redacted, what became of points, and why other things were not published."""
    asked = {"previews": run.previews, "answers": run.answers}
    words = {what: _published(counts) for what, counts in asked.items() if counts is not None}
    for topic, counts in _by_topic(run.reading.points).items():
        words[f"points of {printable(topic)}"] = ", ".join(f"{count} {what}" for what, count in counts.items())
    if redacted := run.reading.redacted:
        words["redacted"] = f"{redacted.boxes} boxes in {redacted.frames} frames"
    if collected := run.reading.collected:
        kept = [f"{count} {why}" for why, count in collected.kept.items()]
        dropped = [f"{count} not kept ({why})" for why, count in collected.dropped.items()]
        words["collected"] = ", ".join([f"{collected.frames} frames", *kept, *dropped])
    return words


def _published(counts: PublishedCounts) -> str:
    dropped = [f"{count} dropped ({why})" for why, count in sorted(counts.dropped.items()) if count]
    cut = [f"{count} without {what}, for their size" for what, count in sorted(counts.cut.items())]
    return ", ".join([f"{counts.published} published", *dropped, *cut])


def _clock(offset: Offset) -> dict[str, float]:
    return {"offset_ms": round(offset.offset / 1e6, 3), "uncertainty_ms": round(offset.uncertainty / 1e6, 3)}


def _milliseconds(percentiles: Percentiles) -> dict[str, float | None]:
    values = {"p50": percentiles.p50, "p95": percentiles.p95, "p99": percentiles.p99}
    return {name: None if value is None else round(value / 1e6, 4) for name, value in values.items()}


_log = logging.getLogger("mqinfer.edge_agent")

_LIVE_PERIOD_S = 0.25


@dataclass(frozen=True, slots=True)
class RunExtent:
    """The expected extent of a run.

    Attributes:
        total: Number of frames, or None if it is unknown.
        title: First line of the display.
    """

    total: int | None = None
    title: str = ""


Shown = Sequence[tuple[ReplayStatistics, RunExtent]]
"""The runs that a display shows, one for each model."""


@contextmanager
def progress(runs: Shown, console: Console | None = None) -> Iterator[None]:
    """Show runs while the body runs, and their final state; nothing where there is no terminal, such as in a journal.

    Args:
        runs: Their counters, and their expected extent.
        console: Standard error by default. The display is redrawn four times a second.
    """
    console = console or Console(stderr=True, markup=False, emoji=False)
    if not console.is_terminal:
        yield
        return
    stop = threading.Event()
    thread = threading.Thread(target=_guarded, args=(runs, console, stop), name="mqinfer-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def render(snapshot: Snapshot, goal: RunExtent) -> Group:
    """Draw a snapshot for a terminal of 80 columns or more."""
    parts: list[Text | Table] = [Text(printable(goal.title), style="bold")] if goal.title else []
    parts += [_headline(snapshot, goal), _facts(snapshot)]
    if snapshot.latency.p50 is not None or snapshot.stages:
        parts.append(_latencies(snapshot))
    return Group(*parts)


def plain_line(snapshot: Snapshot, goal: RunExtent) -> str:
    """Return a snapshot as one line for a log."""
    latency = f"p50 {milliseconds(snapshot.latency.p50)} ms, p99 {milliseconds(snapshot.latency.p99)} ms"
    counts = f"{snapshot.frames_read} read, {snapshot.pending} pending, {outcome_words(snapshot)}"
    done = f"{_count(snapshot, goal)} frames, {snapshot.frame_rate:.1f}/s"
    answered = f", answered: {words}" if (words := answer_words(snapshot)) else ""
    return f"{done}, {counts}{answered}, {latency}, {_bytes(snapshot)}{_worst(snapshot)}"


def _guarded(runs: Shown, console: Console, stop: threading.Event) -> None:
    """Run the display, and log its failure: a closed terminal must not end the run."""
    try:
        _live(runs, console, stop)
    except Exception:  # noqa: BLE001 - a thread's root
        _log.exception("the progress display failed; the run goes on without it")


def _live(runs: Shown, console: Console, stop: threading.Event) -> None:
    def drawn() -> Group:
        return Group(*(render(statistics.snapshot(), goal) for statistics, goal in runs))

    with Live(drawn(), console=console, auto_refresh=False) as live:
        while not stop.wait(_LIVE_PERIOD_S):
            live.update(drawn(), refresh=True)
        live.update(drawn(), refresh=True)


def _headline(snapshot: Snapshot, goal: RunExtent) -> Table:
    """Draw the frames done, a bar if the total is known, and the rate."""
    row = Table.grid(padding=(0, 2))
    cells: list[Text | ProgressBar] = [Text(f"{_count(snapshot, goal)} frames", style="bold")]
    if goal.total:
        cells.append(ProgressBar(total=goal.total, completed=min(snapshot.done, goal.total), width=28))
        cells.append(Text(f"{min(snapshot.done / goal.total, 1.0):4.0%}"))
    cells.append(Text(f"{snapshot.frame_rate:.1f} frames/s", style="cyan"))
    row.add_row(*cells)
    return row


def _facts(snapshot: Snapshot) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", min_width=8)
    grid.add_column()
    bad = sum(count for outcome, count in snapshot.outcomes.items() if outcome is not Outcome.OK)
    grid.add_row("outcomes", Text(outcome_words(snapshot), style="yellow" if bad else "green"))
    if words := answer_words(snapshot):
        grid.add_row("answered", words)
    if snapshot.failures:
        first = printable(failure_lines(snapshot)[0])
        grid.add_row("failed", Text(first, style="yellow", no_wrap=True, overflow="ellipsis"))
    retries = f", {snapshot.retries} retries" if snapshot.retries else ""
    grid.add_row("frames", f"{snapshot.frames_read} read, {snapshot.pending} pending{retries}")
    grid.add_row("bytes", _bytes(snapshot))
    return grid


def _latencies(snapshot: Snapshot) -> Table:
    """Draw median and 99th percentile of each stage, with bars of the medians."""
    table = Table(box=None, padding=(0, 2), pad_edge=False, header_style="dim")
    table.add_column("latency, ms", min_width=16)
    table.add_column("p50", justify="right", min_width=7)
    table.add_column("p99", justify="right", min_width=7)
    table.add_column("")
    table.add_row("submit to result", *_pair(snapshot.latency), style="bold")
    shown = {stage: percentiles for stage, percentiles in snapshot.stages.items() if percentiles.p99}
    slowest = max((percentiles.p50 or 0 for percentiles in shown.values()), default=0)
    for stage, percentiles in shown.items():
        bar = Bar(max(slowest, 1), 0, percentiles.p50 or 0, width=28, color="cyan")
        table.add_row(stage.replace("_", " "), *_pair(percentiles), bar)
    return table


def _pair(percentiles: Percentiles) -> tuple[str, str]:
    return milliseconds(percentiles.p50), milliseconds(percentiles.p99)


def _worst(snapshot: Snapshot) -> str:
    return f", {failure_lines(snapshot)[0]}" if snapshot.failures else ""


def _count(snapshot: Snapshot, goal: RunExtent) -> str:
    return f"{snapshot.done}/{goal.total}" if goal.total else str(snapshot.done)


def _bytes(snapshot: Snapshot) -> str:
    """Return size of the pixels, size of the messages and their ratio, in megabytes (10^6 bytes)."""
    raw, sent = snapshot.bytes_raw / 1e6, snapshot.bytes_sent / 1e6
    return f"{raw:.1f} MB raw, {sent:.1f} MB sent (ratio {ratio_words(snapshot)})"
