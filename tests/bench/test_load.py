"""`mqinfer bench load` measures a real worker through a real broker, and its table, files and plot agree."""

from __future__ import annotations

import asyncio
import csv
import json
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.main import get_command
from typer.testing import CliRunner, Result

from mqinfer.bench.contestants.driving import Load, drive
from mqinfer.bench.site_load import LoadTurn
from mqinfer.cli.app import app
from mqinfer.cli.bench import app as bench_app
from mqinfer.protocol.errors import NoWorker

pytestmark = pytest.mark.broker


@pytest.fixture
def load(
    broker_url: str, serve: Callable[..., object], write_echo: Callable[..., Path], unique: Callable[[str], str]
) -> Callable[..., Result]:
    """Serve an echo model, and measure it: `load(options, fail_every=2)`; `MODEL` among the options is its name."""

    def measure(*options: str, inputs: tuple[tuple[str, str, list[int]], ...] = (), **model: object) -> Result:
        name = unique("echo").replace("-", "_")
        serve(broker_url, write_echo(name, *inputs, **model), name)
        given = [name if each == "MODEL" else each for each in options]
        return CliRunner().invoke(app, ["bench", "load", name, "--broker", broker_url, "--seconds", "0.2", *given])

    return measure


def test_each_load_has_its_row(load: Callable[..., Result], tmp_path: Path) -> None:
    """Callers and rates, with latencies that ascend, and parts whose sum is the latency; the plot names the parts."""
    files = {kind: tmp_path / f"a.{kind}" for kind in ("csv", "markdown")}
    plot = tmp_path / "a.svg"
    named = [f"--{kind}={path}" for kind, path in files.items()]
    found = load("--callers", "1,3", "--rate", "50", "--plot", str(plot), *named, "--json", delay_ms=5)
    assert found.exit_code == 0, found.output
    rows = list(csv.DictReader(StringIO(files["csv"].read_text())))
    assert [(row["callers"], row["requests/s due"]) for row in rows] == [("1", ""), ("3", ""), ("", "50.0")]
    for row in rows:
        p50, p90, p95, p99 = (float(row[f"p{each} ms"]) for each in (50, 90, 95, 99))
        assert 5 <= p50 <= p90 <= p95 <= p99
        assert float(row["inference ms"]) >= 5
        assert float(row["results/s"]) > 0
        assert row["failed"] == "0"
    turns = json.loads(found.stdout)["turns"]
    assert [turn["results/s"] for turn in turns] == [float(row["results/s"]) for row in rows]
    assert "| callers | requests/s due |" in files["markdown"].read_text()
    drawn = plot.read_text()
    for words in ("p99 ms", "worker queue ms", "3 callers", "50.0 requests/s due"):
        assert words in drawn


def test_failures_are_counted_by_reason(load: Callable[..., Result], tmp_path: Path) -> None:
    """They are neither results nor in the latencies."""
    table = tmp_path / "a.csv"
    found = load("--callers", "2", "--csv", str(table), fail_every=3)
    assert found.exit_code == 0, found.output
    (row,) = csv.DictReader(StringIO(table.read_text()))
    assert int(row["failed"]) == int(row["failed: model_failed"]) > 0
    for words in ("callers", "p99", "worker queue"):
        assert words in found.stdout
    assert float(row["results/s"]) > 0


def test_a_load_of_which_nothing_comes_back() -> None:
    """Its row has failures, and no latency; at a rate each request is due in its turn."""

    async def refuse(_: int) -> None:
        await asyncio.sleep(0)
        raise NoWorker("none")

    for load in (Load(2, 0.05), Load(1 << 30, 0.05, rate=200.0)):
        turn = asyncio.run(drive([refuse], load))
        failed = turn.failures["no_worker"]
        assert failed > 0
        row = LoadTurn(load, turn, {}).row(["no_worker"])
        assert (row["results/s"], row["failed"], row["failed: no_worker"]) == (0, failed, failed)
        assert (row["p50 ms"], row["network ms"]) == (None, None)
    assert failed <= 10


def test_a_picture_is_what_each_request_carries(load: Callable[..., Result], tmp_path: Path) -> None:
    """As `mqinfer infer` takes it; without one a model of any size says how to give one."""
    picture = tmp_path / "a.npy"
    np.save(picture, np.zeros((1, 8, 12, 3), np.uint8))
    image = (("x", "UINT8", [-1, -1, -1, 3]),)
    found = load("--callers", "1", "--input", str(picture), inputs=image)
    assert found.exit_code == 0, found.output
    refused = load("--callers", "1", inputs=image)
    assert "has the shape [-1, -1, -1, 3]" in str(refused.exception)
    assert "--input x=FILE" in str(refused.exception)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--callers", "1.5"], "--callers '1.5': expected whole numbers"),
        (["--rate", "a,2"], "--rate 'a,2': expected numbers"),
        (["--callers", "0"], "--callers '0': expected whole numbers above 0"),
        (["--rate", "nan"], "--rate 'nan': expected numbers above 0"),
        (["--plot", "a.doc"], "ends with one of .png"),
        (["--csv", "nowhere/a.csv"], "there is no folder nowhere"),
    ],
)
def test_what_can_not_be_measured(options: list[str], words: str) -> None:
    """It is refused before anything is sent."""
    refused = CliRunner().invoke(app, ["bench", "load", "any", "--broker", "mqtt://127.0.0.1:1", *options])
    assert words in str(refused.exception)


def test_every_bench_has_the_same_files() -> None:
    """Each keeps its table as CSV and Markdown, draws it, and prints it as JSON; `seeds` has a folder for its many."""
    benches: Any = get_command(bench_app)
    for command in (each for name, each in benches.commands.items() if name != "seeds"):
        assert {"--csv", "--markdown", "--plot", "--json"} <= {name for each in command.params for name in each.opts}
