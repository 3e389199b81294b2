"""NoScope's experiment: its settings, and its tables from figures of which each is known."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks.noscope.experiment import Component, Setting, SettingResult, _run, reference_only, settings_of
from benchmarks.noscope.preparing import NoScopeOptions, PreparedExperiment
from benchmarks.noscope.report import Measured, grids, notes, write_measured
from mqinfer.judging.settings import CascadeSettings, DifferenceDetector, Reference, RunsAt, SmallModel
from mqinfer.lab.cascade.calibration import Calibration, FrontierPoint, Goal
from mqinfer.lab.cascade.scores import Costs
from mqinfer.lab.cascade.simulation import Thresholds
from mqinfer.protocol.errors import ConfigError, ModelFailed
from mqinfer.protocol.types import Stage

SMALL = SmallModel("small", 0.1, repository=Path("models"))
CASCADE = CascadeSettings(Reference("reference"), "car", DifferenceDetector(1.0), SMALL)
NAMES = [
    "reference in the client",
    "cascade in the client",
    "reference, 1 worker",
    "reference, 2 workers",
    "cascade, small on the edge, 1 worker",
    "cascade, 1 worker of small, 1 worker",
    "cascade, 2 workers of small, 1 worker",
    "cascade, small on the edge, 2 workers",
    "cascade, 1 worker of small, 2 workers",
    "cascade, 2 workers of small, 2 workers",
    "without difference detector",
    "without small model",
    "one request at a time",
]


def test_each_part_is_left_out_once() -> None:
    """The grid has both placements of the small model; without a part nothing is measured without it."""
    settings = {setting.name: setting for setting in settings_of(CASCADE)}
    assert list(settings) == NAMES
    assert settings["reference in the client"].cascade == reference_only(CASCADE)
    assert settings["without difference detector"].cascade.difference is None
    assert settings["without small model"].cascade.small is None
    assert settings["one request at a time"].window == 1
    in_cloud = settings["cascade, 2 workers of small, 1 worker"]
    assert (in_cloud.references, in_cloud.smalls) == (1, 2)
    assert in_cloud.cascade.small is not None
    assert in_cloud.cascade.small.placement is RunsAt.CLOUD
    bare = {setting.name for setting in settings_of(reference_only(CASCADE))}
    assert not {name for name in bare if "of small" in name or name.startswith("without")}


def measured() -> Measured:
    """Make a run of four frames: 10 s and 12 s for the baseline, a second less for each setting behind it."""

    def turn(setting: Setting, seconds: float) -> SettingResult:
        answers = (True, True, False, False) if setting.name != "one request at a time" else (True,) * 4
        stages = {Stage.REUSE.value: 1, Stage.EDGE.value: 2, Stage.WORKER.value: 1}
        return SettingResult(setting, seconds, answers, stages, 250.0, 1.5, (Component("client", 1, 3.25, 120.0),))

    settings = settings_of(CASCADE)
    turns = [turn(setting, 10.0 if not number else 10.0 - 0.5 * number) for number, setting in enumerate(settings)]
    point = FrontierPoint(Thresholds(1.0, 0.1, 0.9), 0.99, 0.99, 0.97, 3.0, 0.25, 0.5, 0.25, 100.0)
    calibration = Calibration(Goal(), point, (point,), 400, Costs())
    truth = (True, True, True, False)
    prepared = PreparedExperiment(CASCADE, calibration, Path("models"), Path("frames"), truth, 0.875)
    return Measured(prepared, (*turns, turn(settings[0], 12.0)), {"cores": "2"})


def test_tables_compare_with_the_baseline_before_and_after() -> None:
    """Speed-up against the mean of both; accuracy against the reference's own answers; a miss is called one."""
    rows, table_1, parts, components = grids(measured())
    by_name = {row[0]: row[1:] for row in rows.rows}
    assert by_name["cascade in the client"] == ["9.5", "1.16x", "1", "2", "1", "250", "1.5", "1.0000", "pass"]
    assert by_name["one request at a time"][-2:] == ["0.5000", "miss"]
    assert [list(row) for row in table_1.rows] == [
        ["on the edge", "8.0", "6.5"],
        ["1 in the cloud", "7.5", "6.0"],
        ["2 in the cloud", "7.0", "5.5"],
    ]
    assert {row[0]: row[2] for row in parts.rows} == {
        "difference detector": "0.77x",
        "small model": "0.69x",
        "both: the cascade": "1.31x",
        "reference outside the client": "1.46x",
        "second reference worker": "1.23x",
        "several requests in flight": "0.62x",
        "nothing is missing": "1.00x",
    }
    assert components.rows[0] == ["reference in the client", "client", "1", "3.2", "120"]


def test_files_have_figures_and_notes(tmp_path: Path) -> None:
    """Everything as JSON; the tables with what a reader must know below them."""
    data, document = write_measured(measured(), tmp_path)
    assert len(json.loads(data.read_text())["turns"]) == len(NAMES) + 1
    text = document.read_text()
    assert all(note in text for note in notes(measured()))
    assert "right about 75.00% of the frames" in text
    assert "2.75 times as fast as the reference" in text


def test_a_client_that_fails_is_quoted(tmp_path: Path) -> None:
    """With the end of its messages; one that ends well is measured."""
    with pytest.raises(ModelFailed, match="ended with 3: no such model"):
        _run([sys.executable, "-c", "import sys; print('no such model', file=sys.stderr); sys.exit(3)"], tmp_path)
    took = _run([sys.executable, "-c", "sum(range(10**7))"], tmp_path)
    assert (took.name, took.processes) == ("client", 1)
    assert took.cpu_s > 0


@pytest.mark.parametrize("options", [{"frames": 0}, {"side": 64}, {"side": 100}])
def test_sizes_that_fit_no_network_are_refused(options: dict[str, int]) -> None:
    """No frames, a side that is too small, and one that is no multiple of 32."""
    with pytest.raises(ConfigError, match="a multiple of 32"):
        NoScopeOptions(**options)  # type: ignore[arg-type]
