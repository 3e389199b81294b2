import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import msgspec
import pytest
from typer.testing import CliRunner

from mqinfer.bench.comparing import (
    ComparedSeries,
    CompareOptions,
    Comparison,
    LinkOptions,
    report_comparison,
)
from mqinfer.bench.contestants.driving import DrivenTurn, Load, drive, merged, rotated
from mqinfer.bench.contestants.site import CONTESTANTS, Contestant, Pids, Site, chosen
from mqinfer.bench.contestants.ways import Target
from mqinfer.bench.thin_link import ThinLink, is_lost
from mqinfer.bench.workloads import Workload, load_workloads
from mqinfer.cli.bench import TurnOptions, app
from mqinfer.cli.exit_codes import ExitCode, exit_code
from mqinfer.lab.reports import as_json
from mqinfer.lab.zoo import build
from mqinfer.protocol.errors import ConfigError, ModelFailed


class Served:
    """A contestant whose every request takes the same time of a clock that only it moves."""

    def __init__(self, seconds: float) -> None:
        """Begin at zero."""
        self.now, self._seconds = 0.0, seconds

    def clock(self) -> float:
        """Return the time."""
        return self.now

    async def ask(self, _: int) -> None:
        """Let the time of a request pass."""
        self.now += self._seconds

    def rounds(self, count: int, load: Load) -> list[DrivenTurn]:
        """Take turns."""
        turns = [asyncio.run(drive([self.ask], load, self.clock)) for _ in range(count)]
        return [replace(turn, cpu_s={"client": 0.1}, peaks={"client": 1}) for turn in turns]


def compared(name: str, rounds: list[DrivenTurn]) -> ComparedSeries:
    """Make the rounds of a contestant with small tensors."""
    return ComparedSeries("small", name, 1, 1, 1, rounds)


@pytest.mark.parametrize("load", [Load(seconds=0.3), Load(seconds=1e9, samples=100)])
def test_equals_are_equal_and_a_delay_shows_as_what_it_is(load: Load) -> None:
    """Two contestants of 3 ms have a ratio of 1 within 3 %; one that takes 2 ms more has 3/5 within 5 %."""
    first, second, slowed = (compared("x", Served(each).rounds(3, load)) for each in (0.003, 0.003, 0.005))
    assert second.ratio(first) == pytest.approx(1, rel=0.03)
    assert slowed.ratio(first) == pytest.approx(3 / 5, rel=0.05)
    assert max(slowed.rounds[0].times) == pytest.approx(0.005)


def test_a_round_that_was_slow_for_both_is_no_outlier() -> None:
    """The ratio is the median of the rounds' ratios, over the rounds that both have."""

    def rounds(*rates: int) -> list[DrivenTurn]:
        return [DrivenTurn(1.0, [0.001] * rate, [rate]) for rate in rates]

    base = compared("x", rounds(100, 20, 110))
    assert compared("y", rounds(150, 30, 165)).ratio(base) == pytest.approx(1.5)
    assert compared("y", rounds(150)).ratio(base) == pytest.approx(1.5)
    assert compared("y", []).ratio(base) is None


def test_many_results_take_no_more_memory_than_some() -> None:
    """All are counted; of their times a share stays that stands for them."""
    clock = Served(0.0)

    async def ask(number: int) -> None:
        clock.now += number % 100 + 1

    turn = asyncio.run(drive([ask], Load(seconds=1e9, samples=30_000), clock.clock))
    assert (turn.results, len(turn.times)) == (30_000, 10_000)
    assert sorted(turn.times)[5000] == pytest.approx(50, abs=3)
    assert turn.rate == pytest.approx(1 / 50.5)


def test_turns_of_several_processes_are_one() -> None:
    """Their results, failures and drops together, for as long as the longest took."""
    one, other = DrivenTurn(1.0, [0.1], [1], {"x": 2}, 3), DrivenTurn(2.0, [0.2, 0.3], [2], {"x": 1}, 0)
    assert merged([one, other]) == DrivenTurn(2.0, [0.1, 0.2, 0.3], [1, 2], {"x": 3}, 3)


def test_a_newer_frame_replaces_one_that_waits() -> None:
    """While one request is on its way, of nine frames the newest waits: eight are dropped, and each has an end."""
    ticks, asked, started, release = iter(range(10_000)), list[int](), asyncio.Event(), asyncio.Event()

    async def ask(number: int) -> None:
        asked.append(number)
        started.set()
        if number == 0:
            await release.wait()

    async def run() -> DrivenTurn:
        turn = asyncio.create_task(drive([ask], Load(1, 1e9, 10, 1000), lambda: next(ticks) / 100))
        await started.wait()
        for _ in range(100):  # all frames are due at once
            await asyncio.sleep(0)
        release.set()
        return await turn

    turn = asyncio.run(run())
    assert asked == [0, 9]
    assert (len(turn.times), turn.dropped, turn.vehicles) == (2, 8, [2])


def test_failures_are_counted_by_code() -> None:
    """They are no results, and end no turn."""

    async def ask(number: int) -> None:
        if number % 2:
            raise ModelFailed("odd")

    turn = asyncio.run(drive([ask, ask], Load(seconds=1e9, samples=10)))
    assert (len(turn.times), turn.failures, sum(turn.vehicles)) == (5, {"model_failed": 5}, 5)


@pytest.mark.parametrize(("vehicles", "index"), [([5, 5, 5, 5], 1.0), ([9, 0, 0], 1 / 3), ([2, 1], 0.9), ([0, 0], 0.0)])
def test_jains_index_says_how_evenly_vehicles_are_served(vehicles: list[int], index: float) -> None:
    """1 where all have as many results, 1/n where one of n has all."""
    assert DrivenTurn(1.0, [], vehicles).jain == pytest.approx(index)


def test_a_turn_of_so_many_requests_reaches_the_clients() -> None:
    """What --samples asks for is the same once it was a line to a process."""
    load = TurnOptions(samples=5).chosen().load
    assert msgspec.json.decode(msgspec.json.encode(load), type=Load) == load
    assert load.samples == 5


def test_none_always_follows_the_same() -> None:
    """Each round begins with another contestant."""
    assert [list(rotated("abc", number)) for number in range(3)] == [list("abc"), list("bca"), list("cab")]
    assert list(rotated([], 1)) == []


def test_a_link_loses_the_share_of_packets_that_it_is_told() -> None:
    """One packet in ten, and of ten packets together nearly two in three."""
    random = Random(1)  # noqa: S311 - no secret
    lost = [sum(is_lost(random, 0.1, size) for _ in range(4000)) / 4000 for size in (100, 14_480)]
    assert lost == pytest.approx([0.1, 1 - 0.9**10], abs=0.03)


def test_contestants_are_known_by_name() -> None:
    """All by default, each once; one that is not there is named beside those that are."""
    assert [each.name for each in chosen(())] == list(CONTESTANTS)
    assert [each.name for each in chosen(("script", "mqtt", "script"))] == ["script", "mqtt"]
    with pytest.raises(ConfigError, match="no contestant is called 'quic'; there are bare-grpc, in-process, mqtt"):
        chosen(("quic",))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["quic"], "no contestant is called 'quic'"),
        (["--workload", "huge"], "no workload is called 'huge'"),
        (["--recording", "x.mcap"], "--recording and --model belong together"),
        (["--vehicles", "0"], "--vehicles '0': expected whole numbers above 0"),
        (["--workers", "one"], "--workers 'one': expected whole numbers"),
        (["--recording", "x.mcap", "--model", "seg", "--repository", "none"], "none: there is no such folder"),
        (["--csv", "none/x.csv"], "there is no folder none"),
    ],
)
def test_bad_input_is_named_before_anything_starts(words: list[str], message: str) -> None:
    """The option, and what was expected."""
    result = CliRunner().invoke(app, ["compare", *words])
    assert result.exit_code != 0
    assert message in str(result.exception)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Workload:
    """Build the smallest workload."""
    folder = tmp_path_factory.mktemp("models")
    build(folder, ["small_16"])
    return load_workloads(folder, ["small"])[0]


def options(tmp_path: Path) -> CompareOptions:
    """Return two short rounds of two callers."""
    return CompareOptions(load=Load(seconds=0.05), callers=(2,), rounds=2, triton=tmp_path)


@pytest.mark.broker
@pytest.mark.slow
def test_contestants_take_turns_and_one_that_is_missing_is_a_row(small: Workload, tmp_path: Path) -> None:
    """Over real processes: each has every figure of its parts, and a reason stands where there is none."""
    names = ("bare-grpc", "in-process", "mqtt", "grpc", "rest-json", "tfs-grpc", "script", "mqtt-jpeg", "triton")
    lines = list[str]()
    comparison = Comparison([small], chosen(names), options(tmp_path), lines.append)
    comparison.run()
    report = report_comparison(comparison, options(tmp_path))
    rows = {row[1]: dict(zip(report.grid.headings, row, strict=True)) for row in report.grid.rows}
    assert list(rows) == list(names)
    assert "carries pictures in bytes" in str(rows["mqtt-jpeg"]["why not"])
    assert f"no nvidia-pytriton in {tmp_path}" in str(rows["triton"]["why not"])
    for name in names[:-2]:
        assert rows[name]["failed"] == 0
        assert float(rows[name]["results/s"] or 0) > 0
        assert (rows[name]["kB up"] is None) is (name == "in-process")
        assert (rows[name]["broker MiB"] is None) is (name in {"bare-grpc", "in-process"})
    assert rows["bare-grpc"]["times bare-grpc"] == 1
    assert float(rows["rest-json"]["kB up"] or 0) > float(rows["tfs-grpc"]["kB up"] or 0)
    assert any("turn 14 of 14" in line for line in lines)
    turns = json.loads(as_json(report.whole))["found"][2]["rounds"]
    assert [sum(turn["vehicles"]) > 0 for turn in turns] == [True, True]


@pytest.mark.broker
@pytest.mark.slow
def test_what_was_measured_before_an_interrupt_is_kept(small: Workload, tmp_path: Path) -> None:
    """Ctrl-C after the third turn of four: both have a row, of two rounds and of one."""

    def interrupt_at(turn: str) -> Callable[[str], None]:
        def report(line: str) -> None:
            if turn in line:
                raise KeyboardInterrupt

        return report

    comparison = Comparison([small], chosen(("in-process", "mqtt")), options(tmp_path), interrupt_at("turn 3 of 4"))
    with pytest.raises(KeyboardInterrupt):
        comparison.run()
    assert sorted(len(each.rounds) for each in comparison.found) == [1, 2]
    assert [row[1] for row in report_comparison(comparison, options(tmp_path)).grid.rows] == ["in-process", "mqtt"]


@pytest.mark.broker
@pytest.mark.slow
def test_a_thin_link_is_what_its_clients_wait_for(small: Workload) -> None:
    """With 30 ms each way no result comes in less than 60, and every vehicle has its share."""
    shaped = CompareOptions(
        (2,), load=Load(seconds=1e9, samples=8), callers=(1,), rounds=1, link=LinkOptions(delay_ms=30)
    )
    comparison = Comparison([small], chosen(("mqtt",)), shaped, lambda _: None)
    comparison.run()
    (found,) = comparison.found
    assert min(found.rounds[0].times) >= 0.06
    assert sum(found.rounds[0].vehicles) == 8
    assert found.traffic is not None
    assert 64 < found.traffic[0] < 2000, "a request of 64 bytes of numbers, and nothing of the connection"


def test_a_model_that_no_contestant_can_serve_is_an_error_with_every_reason(tmp_path: Path) -> None:
    """And with the exit code of what can't be done as it was asked for."""
    words = ["compare", "mqtt-jpeg", "triton", "--workload", "small", "--triton", str(tmp_path), "--rounds", "1"]
    error = CliRunner().invoke(app, words).exception
    assert isinstance(error, ConfigError)
    assert "no contestant was measured: mqtt-jpeg: model 'small_16' takes float32 [1, 16]" in str(error)
    assert f"; triton: there is no nvidia-pytriton in {tmp_path}" in str(error)
    assert exit_code(error) == ExitCode.USAGE


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Have programs take SIGINT: what a shell starts in the background ignores it, and so do its children."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.broker
@pytest.mark.slow
@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_prints_what_was_measured(tmp_path: Path) -> None:
    """As a terminal sends it, to each process: no traceback, the table and the file, within seconds."""
    command = [*(sys.executable, "-m", "mqinfer", "bench", "compare", "in-process", "mqtt", "bare-grpc", "script")]
    command += ["--workload", "small", "--rounds", "500", "--seconds", "0.05", "--callers", "1"]
    command += ["--csv", str(tmp_path / "found.csv")]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as bench:
        assert bench.stderr is not None
        lines = list[str]()
        while sum("results/s" in line for line in lines) < 6:
            lines.append(bench.stderr.readline())
            assert lines[-1], "".join(lines)
        os.killpg(bench.pid, signal.SIGINT)
        printed, said = bench.communicate(timeout=60)
    assert bench.returncode == 0, said
    assert "Traceback" not in said
    assert "interrupted; what was measured follows" in said
    rows = (tmp_path / "found.csv").read_text().splitlines()
    assert [row.split(",")[1] for row in rows[1:]] == ["in-process", "mqtt", "bare-grpc", "script"]
    assert "in-process" in printed


@pytest.mark.full
@pytest.mark.broker
@pytest.mark.slow
def test_a_known_delay_shows_as_what_it_is(small: Workload) -> None:
    """Over real processes: behind 100 ms each way the fastest request takes 200 ms more, within 5 %."""

    def behind_link(site: Site) -> tuple[Target, Pids]:
        target, pids = site.mqtt
        link = site.use(ThinLink(target.port))
        link.shape(0.1, 0.0)
        return Target("mqtt", link.port), pids

    how = CompareOptions(load=Load(seconds=2.5), callers=(1,), rounds=3)
    comparison = Comparison([small], [*chosen(["mqtt"]), Contestant("delayed", behind_link)], how, print)
    comparison.run()
    # The fastest ones: a busy machine only adds to the others.
    plain, delayed = (min(min(one.times) for one in each.rounds) for each in comparison.found)
    assert delayed - plain == pytest.approx(0.2, rel=0.05)
