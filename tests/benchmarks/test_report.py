import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.report import as_json, as_markdown, grids, print_report, write_report
from benchmarks.results import Measurement, Round, Rounds
from benchmarks.targets import GATEWAY_TARGETS, judge
from mqinfer.bench.contestants import BareGrpc, Direct, Gateway, SocketFloor
from mqinfer.bench.contestants.over_mqtt import OverMqtt
from mqinfer.protocol.errors import ConfigError


def series(contestant: str, *rates: float, latency_ms: float = 1.0) -> Rounds:
    """Make the rounds of one contestant with small tensors."""
    cpu = {"client": 0.2, "server": 0.3, "broker": 0.1} if contestant == OverMqtt.name else {"client": 0.4}
    stages = {"transmission": 0.25, "inference": 0.5} if contestant == OverMqtt.name else {}
    return Rounds("small", contestant, tuple(Round(rate, latency_ms, cpu, stages, stages) for rate in rates))


def measurement_of(*found: Rounds) -> Measurement:
    """Make a run."""
    return Measurement(found, {"cores": "2"}, {"rounds": "3", "seconds": "1.5", "callers": "8"})


RUN = measurement_of(
    series(Direct.name, 10_000, 11_000, 12_000),
    series(BareGrpc.name, 1000, 2000, 4000),
    series(OverMqtt.name, 1600, 3200, 6400, latency_ms=0.4),
    series(SocketFloor.name, 6400, 6400, 6400, latency_ms=0.2),
)


def test_ratio_is_the_median_of_the_rounds_ratios() -> None:
    """A round that another program slowed down for both is no outlier in the ratio."""
    assert RUN.ratio("small", OverMqtt.name, BareGrpc.name, lambda each: each.rate) == pytest.approx(1.6)
    assert RUN.ratio("small", OverMqtt.name, Direct.name, lambda each: each.rate) == pytest.approx(3200 / 11_000)
    assert RUN.ratio("frame", OverMqtt.name, BareGrpc.name, lambda each: each.rate) is None


def test_a_series_has_medians() -> None:
    """Of rates, and of every entry of a mapping."""
    found = RUN.find("small", BareGrpc.name)
    assert found is not None
    assert found.rate == 2000
    assert found.median_of(lambda each: each.cpu_s) == {"client": 0.4}


@pytest.mark.parametrize(
    ("rate", "latency", "expected"),
    [(1100, 1.1, [True, True]), (1099, 1.1, [False, True]), (1100, 1.11, [True, False])],
)
def test_targets_pass_at_their_bound_and_not_before(rate: float, latency: float, expected: list[bool]) -> None:
    """Throughput of at least 1.1 times, latency of at most 1.1 times; other workloads are not judged."""
    run = measurement_of(series(BareGrpc.name, 1000), series(OverMqtt.name, rate, latency_ms=latency))
    verdicts = judge(run, OverMqtt.name, BareGrpc.name, SocketFloor.name)
    assert [verdict.target.workload for verdict in verdicts] == ["small", "small"]
    assert [verdict.passed for verdict in verdicts] == expected


def test_the_gateway_is_judged_by_its_own_targets() -> None:
    """Half of bare gRPC's throughput passes with small tensors, and twice its time; the report says so."""
    run = measurement_of(series(BareGrpc.name, 1000), series(Gateway.name, 500, latency_ms=2.01))
    verdicts = judge(run, Gateway.name, BareGrpc.name, SocketFloor.name, GATEWAY_TARGETS)
    assert [verdict.passed for verdict in verdicts] == [True, False]
    assert "gateway against bare grpc.aio" in as_markdown(run)


def test_a_target_that_was_not_measured_is_not_passed() -> None:
    """Without the other contestant there is no ratio, and no pass."""
    verdicts = judge(measurement_of(series(OverMqtt.name, 9)), OverMqtt.name, BareGrpc.name, SocketFloor.name)
    assert [(verdict.passed, verdict.of_floor) for verdict in verdicts] == [(False, None), (False, None)]


def test_markdown_holds_every_table() -> None:
    """Each grid is a Markdown table whose rows have as many cells as its head, with the circumstances above."""
    text = as_markdown(RUN)
    assert text.startswith("# The path, measured\n")
    assert "Medians of 3 rounds of 1.5 s" in text
    assert "cores 2" in text
    for grid in grids(RUN):
        assert f"## {grid.title}" in text
        assert all(len(row) == len(grid.headings) for row in grid.rows)
    assert "| small | mqinfer | 3,200 | 29% | 0.400 | 200 | 100 | 300 |  |" in text
    assert "| together | 0.750 |" in text
    assert "| small tensors, 8 callers, requests/s | pass | 1.60x | >= 1.1x | >= 2.6x | 0.50x |" in text


def test_json_holds_every_round_and_verdict() -> None:
    """Another program finds all that was measured."""
    content = json.loads(as_json(RUN))
    assert [each["rate"] for each in content["series"][1]["rounds"]] == [1000, 2000, 4000]
    assert [verdict["passed"] for verdict in content["targets"]] == [True, True]


def test_tables_are_printed() -> None:
    """The terminal shows contestants, targets and stages."""
    console = Console(file=io.StringIO(), width=150)
    with console.capture() as captured:
        print_report(RUN, console)
    for expected in ("bare grpc.aio", "1.60x", "transmission", "mean time by stage in ms, 8 callers"):
        assert expected in captured.get()


def test_files_are_written_or_the_folder_is_named(tmp_path: Path) -> None:
    """Two files, in a folder that is made; a file in its place is one clear message."""
    assert [path.name for path in write_report(RUN, tmp_path / "new" / "out")] == ["bench.json", "bench.md"]
    first = (tmp_path / "new" / "out" / "bench.json").read_bytes()
    write_report(RUN, tmp_path / "new" / "out")
    assert (tmp_path / "new" / "out" / "bench.1.json").read_bytes() == first
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"cannot write .*file"):
        write_report(RUN, tmp_path / "file")
