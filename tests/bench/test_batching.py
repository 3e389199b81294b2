import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mqinfer.bench.batching import (
    ADAPTIVE,
    ALONE,
    BatchingMeasurement,
    BatchingOptions,
    BatchingTurn,
    measure_batching,
)
from mqinfer.bench.batching_report import batching_grids, verdicts, write_batching
from mqinfer.cli.app import app
from mqinfer.protocol.errors import ConfigError


def measured(**rates: tuple[float, ...]) -> BatchingMeasurement:
    """Make a run with one caller; settings by `_` for a space."""
    turns = {
        (1, setting.replace("_", " ")): tuple(BatchingTurn(rate, 1.0, 2.0) for rate in each)
        for setting, each in rates.items()
    }
    return BatchingMeasurement(turns, {"cores": "2"}, BatchingOptions(callers=(1,)))


RUN = measured(max_1=(100, 200, 300), fixed_4=(110, 190, 330), adaptive=(99, 190, 400))


def test_the_best_setting_by_hand_is_that_of_the_highest_median() -> None:
    """The adaptive one is judged against it, round by round."""
    assert RUN.best_fixed(1) == ALONE
    assert RUN.ratio(1, ADAPTIVE, ALONE) == pytest.approx(0.99)
    assert [(what, round(ratio, 6), bound) for what, ratio, bound in verdicts(RUN)] == [
        ("one caller, against max 1", 0.99, 0.95),
        ("one caller, against no batching", 0.99, 0.98),
    ]


def test_tables_and_files(tmp_path: Path) -> None:
    """Each setting has its line; the files repeat every round."""
    figures, judged = batching_grids(RUN)
    assert [row[:4] for row in figures.rows] == [
        ["one caller", "max 1", "200", "100 - 300"],
        ["one caller", "fixed 4", "190", "110 - 330"],
        ["one caller", "adaptive", "190", "99 - 400"],
    ]
    assert [row[1] for row in judged.rows] == ["pass", "pass"]
    data, document = write_batching(RUN, tmp_path)
    assert json.loads(data.read_text())["turns"][0]["rounds"][2]["rate"] == 300
    assert "| one caller | adaptive | 190 |" in document.read_text()


def test_the_small_model_must_not_be_slower_than_without_batches() -> None:
    """At every load, because it gains nothing from batches."""
    rates = {
        setting: (BatchingTurn(rate, 1.0, 2.0),)
        for setting, rate in ((ALONE, 100.0), ("fixed 4", 90.0), (ADAPTIVE, 97.0))
    }
    turns = {(8, setting): each for setting, each in rates.items()}
    run = BatchingMeasurement(turns, {}, BatchingOptions(workload="small", callers=(8,)))
    assert verdicts(run) == [("8 callers, against max 1", 0.97, 0.95), ("8 callers, against no batching", 0.97, 0.98)]


def test_a_miss_is_called_one() -> None:
    """Below the bound."""
    run = measured(max_1=(100,), fixed_4=(150,), adaptive=(99,))
    assert [row[1] for row in batching_grids(run)[1].rows] == ["miss", "pass"]


@pytest.mark.parametrize(
    "options", [{"rounds": 0}, {"seconds": 0.0}, {"callers": ()}, {"callers": (0,)}, {"sizes": (1,)}]
)
def test_settings_that_measure_nothing_are_refused(options: dict[str, object]) -> None:
    """No rounds, no time, nobody who asks, or no batch."""
    with pytest.raises(ConfigError, match="measure nothing"):
        BatchingOptions(**options)  # type: ignore[arg-type]


@pytest.mark.broker
@pytest.mark.slow
def test_all_settings_are_measured() -> None:
    """Two short rounds over real processes: each setting serves, and answers at each load."""
    options = BatchingOptions("small", 2, 0.05, 0.05, callers=(1, 4), sizes=(4,))
    measurement = measure_batching(options, lambda _: None)
    assert measurement.settings == (ALONE, "fixed 4", ADAPTIVE)
    assert all(len(turns) == 2 and min(turn.rate for turn in turns) > 0 for turns in measurement.turns.values())


def test_a_workload_that_is_unknown_is_named() -> None:
    """With those that there are."""
    refused = CliRunner().invoke(app, ["bench", "batching", "--workload", "none"])
    assert "unknown workload 'none'; expected one of small" in str(refused.exception)
