"""What a run looks like while it runs: a live display on a terminal, plain lines elsewhere."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.bar import Bar
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from mqinfer.client.latency import Percentiles
from mqinfer.edge_agent.statistics import ReplayStatistics, Snapshot
from mqinfer.edge_agent.summary import milliseconds, outcome_words, ratio_words
from mqinfer.protocol.types import Outcome

__all__ = ["Goal", "plain_line", "progress", "render"]

_log = logging.getLogger("mqinfer.edge_agent")

_LIVE_PERIOD_S = 0.25
_PLAIN_PERIOD_S = 5.0


@dataclass(frozen=True, slots=True)
class Goal:
    """What the display measures the run against.

    Attributes:
        total: Frames to expect, or None where nobody knows.
        window: Requests that may be in flight at once, or None to leave it out.
        title: First line of the display.
    """

    total: int | None = None
    window: int | None = None
    title: str = ""


@contextmanager
def progress(statistics: ReplayStatistics, goal: Goal = Goal(), console: Console | None = None) -> Iterator[None]:
    """Show a run while the body runs, and its last state at the end.

    Args:
        statistics: What to show.
        goal: What to measure it against.
        console: Where to; standard error by default. On a terminal the display is redrawn four times a second, on
            anything else a line is printed every five seconds.
    """
    console = console or Console(stderr=True)
    show = _live if console.is_terminal else _plain
    stop = threading.Event()
    thread = threading.Thread(
        target=_guarded, args=(show, statistics, goal, console, stop), name="mqinfer-progress", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def render(snapshot: Snapshot, goal: Goal) -> Group:
    """Draw a snapshot for a terminal of 80 columns or more."""
    parts: list[Text | Table] = [Text(goal.title, style="bold")] if goal.title else []
    parts += [_headline(snapshot, goal), _facts(snapshot, goal)]
    if snapshot.latency.p50 is not None or snapshot.stages:
        parts.append(_latencies(snapshot))
    return Group(*parts)


def plain_line(snapshot: Snapshot, goal: Goal) -> str:
    """Put a snapshot into one line for a log."""
    return (
        f"{_count(snapshot, goal)} frames, {snapshot.frame_rate:.1f}/s, {_in_flight(snapshot, goal)} in flight, "
        f"{outcome_words(snapshot)}, p50 {milliseconds(snapshot.latency.p50)} ms, "
        f"p99 {milliseconds(snapshot.latency.p99)} ms, {_bytes(snapshot)}"
    )


_Show = Callable[[ReplayStatistics, Goal, Console, threading.Event], None]


def _guarded(show: _Show, statistics: ReplayStatistics, goal: Goal, console: Console, stop: threading.Event) -> None:
    """Run the display; a terminal that went away must not end the run that it shows."""
    try:
        show(statistics, goal, console, stop)
    except Exception:  # noqa: BLE001 - a thread's root
        _log.exception("the progress display failed; the run goes on without it")


def _live(statistics: ReplayStatistics, goal: Goal, console: Console, stop: threading.Event) -> None:
    with Live(render(statistics.snapshot(), goal), console=console, auto_refresh=False) as live:
        while not stop.wait(_LIVE_PERIOD_S):
            live.update(render(statistics.snapshot(), goal), refresh=True)
        live.update(render(statistics.snapshot(), goal), refresh=True)


def _plain(statistics: ReplayStatistics, goal: Goal, console: Console, stop: threading.Event) -> None:
    while not stop.wait(_PLAIN_PERIOD_S):
        _print_line(console, plain_line(statistics.snapshot(), goal))
    _print_line(console, plain_line(statistics.snapshot(), goal))


def _print_line(console: Console, line: str) -> None:
    console.print(line, soft_wrap=True, highlight=False, markup=False)


def _headline(snapshot: Snapshot, goal: Goal) -> Table:
    """Frames done, with a bar where the total is known, and the rate."""
    row = Table.grid(padding=(0, 2))
    cells: list[Text | ProgressBar] = [Text(f"{_count(snapshot, goal)} frames", style="bold")]
    if goal.total:
        cells.append(ProgressBar(total=goal.total, completed=min(snapshot.done, goal.total), width=28))
        cells.append(Text(f"{min(snapshot.done / goal.total, 1.0):4.0%}"))
    cells.append(Text(f"{snapshot.frame_rate:.1f} frames/s", style="cyan"))
    row.add_row(*cells)
    return row


def _facts(snapshot: Snapshot, goal: Goal) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", min_width=8)
    grid.add_column()
    bad = sum(count for outcome, count in snapshot.outcomes.items() if outcome is not Outcome.OK)
    grid.add_row("outcomes", Text(outcome_words(snapshot), style="yellow" if bad else "green"))
    retries = f", {snapshot.retries} retries" if snapshot.retries else ""
    grid.add_row("window", f"{_in_flight(snapshot, goal)} in flight, {snapshot.frames_read} read{retries}")
    grid.add_row("bytes", _bytes(snapshot))
    return grid


def _latencies(snapshot: Snapshot) -> Table:
    """Median and 99th percentile by stage, with a bar for the share of the slowest one."""
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


def _count(snapshot: Snapshot, goal: Goal) -> str:
    return f"{snapshot.done}/{goal.total}" if goal.total else str(snapshot.done)


def _in_flight(snapshot: Snapshot, goal: Goal) -> str:
    return f"{snapshot.in_flight}/{goal.window}" if goal.window else str(snapshot.in_flight)


def _bytes(snapshot: Snapshot) -> str:
    """Say what the frames were and what was sent of them, in megabytes (10^6 bytes)."""
    raw, sent = snapshot.bytes_raw / 1e6, snapshot.bytes_sent / 1e6
    return f"{raw:.1f} MB raw, {sent:.1f} MB sent (ratio {ratio_words(snapshot)})"
