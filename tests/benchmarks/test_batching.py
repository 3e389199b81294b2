import json

import pytest
from typer.testing import CliRunner

from benchmarks.batching import (
    ADAPTIVE,
    ALONE,
    BatchingMeasurement,
    BatchingOptions,
    BatchingTurn,
    measure_batching,
    report_batching,
)
from benchmarks.commands import app
from mqinfer.lab.reports import as_json
from mqinfer.protocol.errors import ConfigError


def measured(**rates: tuple[float, ...]) -> BatchingMeasurement:
    """Make a run with one caller; settings by `_` for a space."""
    turns = {
        (1, setting.replace("_", " ")): tuple(BatchingTurn(rate, 1.0, 2.0) for rate in each)
        for setting, each in rates.items()
    }
    return BatchingMeasurement(turns, {"cores": "2"}, BatchingOptions(callers=(1,)))


RUN = measured(max_1=(100, 200, 300), fixed_4=(110, 190, 330), adaptive=(99, 190, 400))


def test_each_setting_has_its_row() -> None:
    """With medians, the least and the most, and the median of the rounds' ratios; JSON repeats every round."""
    assert RUN.ratio(1, ADAPTIVE, ALONE) == pytest.approx(0.99)
    report = report_batching(RUN)
    assert [list(row[:5]) for row in report.grid.rows] == [
        [1, "max 1", 200, 100, 300],
        [1, "fixed 4", 190, 110, 330],
        [1, "adaptive", 190, 99, 400],
    ]
    assert json.loads(as_json(report.whole))["turns"][0]["rounds"][2]["rate"] == 300


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
    refused = CliRunner().invoke(app, ["batching", "--workload", "none"])
    assert "no workload is called 'none'; expected one of small" in str(refused.exception)
