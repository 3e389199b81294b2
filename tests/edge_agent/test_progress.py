import io
import threading

from rich.console import Console

from mqinfer.client.result import InferResult
from mqinfer.edge_agent.frames.times import EdgeStage
from mqinfer.edge_agent.reporting.report import RunExtent, plain_line, progress, render
from mqinfer.edge_agent.reporting.statistics import ReplayStatistics
from mqinfer.protocol.types import Capture, Outcome, Timings


def some_run() -> ReplayStatistics:
    """Make statistics of a run in progress: nine outcomes, one frame pending."""
    statistics = ReplayStatistics()
    for number in range(10):
        statistics.frame_read("/camera")
        statistics.stage("/camera", EdgeStage.DEMOSAIC, 3_000_000)
        statistics.request_sent("/camera")
        outcome = Outcome.EXPIRED if number == 4 else Outcome.OK
        timings = Timings(transmission=2_000_000, inference=120_000_000)
        if number < 9:
            result = InferResult(
                "0" * 32, outcome, "road", attempts=1, bytes_sent=10**5, timings=timings, capture=Capture("/camera")
            )
            statistics.finished(result, bytes_raw=18 * 10**5)
    return statistics


def drawn(goal: RunExtent, statistics: ReplayStatistics) -> str:
    """Render statistics as an 80-column terminal shows them, without colours."""
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system=None)
    with console.capture() as captured:
        console.print(render(statistics.snapshot(), goal))
    return captured.get()


def test_display_shows_what_matters_in_eighty_columns() -> None:
    """Count, share, pending frames, outcomes, bytes and stages are there, and no line is too long."""
    text = drawn(RunExtent(total=20, title="road through mqtt://127.0.0.1"), some_run())
    assert max(map(len, text.splitlines())) <= 80
    for expected in (
        "9/20 frames",
        "45%",
        "1 pending",
        "8 ok, 1 expired",
        "16.2 MB raw, 0.9 MB sent",
        "ratio 18.0",
        "demosaic",
        "inference",
    ):
        assert expected in text


def test_display_of_an_empty_run() -> None:
    """Before the first frame nothing is divided by zero and no empty table is drawn."""
    text = drawn(RunExtent(), ReplayStatistics())
    assert "0 frames" in text
    assert "latency" not in text


def test_plain_line_says_it_in_one_line() -> None:
    """A log gets the same facts."""
    line = plain_line(some_run().snapshot(), RunExtent(total=20))
    assert line.startswith("9/20 frames, ")
    assert "1 pending, 8 ok, 1 expired, p50 12" in line


def test_without_a_terminal_nothing_is_printed() -> None:
    """A journal has the log alone."""
    output = io.StringIO()
    with progress([(some_run(), RunExtent(total=20))], Console(file=output, width=20)):
        pass
    assert not output.getvalue()


def test_on_a_terminal_the_last_state_stays() -> None:
    """The live display ends with what was counted last, and its thread is gone."""
    output = io.StringIO()
    statistics = ReplayStatistics()
    with progress(
        [(statistics, RunExtent(total=1))], Console(file=output, width=80, force_terminal=True, color_system=None)
    ):
        assert any(thread.name == "mqinfer-progress" for thread in threading.enumerate())
        statistics.request_sent("/camera")
        statistics.finished(InferResult("0" * 32, Outcome.OK, "road", capture=Capture("/camera")), bytes_raw=1)
    assert "1/1 frames" in output.getvalue()
    assert not any(thread.name == "mqinfer-progress" for thread in threading.enumerate())


def test_a_display_that_fails_does_not_end_the_run() -> None:
    """A pipe that was closed at the other end costs the display and nothing else."""
    output = io.StringIO()
    console = Console(file=output, width=80, force_terminal=True)
    output.close()
    with progress([(some_run(), RunExtent())], console):
        pass
