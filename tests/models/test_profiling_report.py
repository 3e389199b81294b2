"""Engines for a model, the report, and the whole command on a small model."""

from __future__ import annotations

import csv
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from mqinfer.cli.app import app
from mqinfer.lab.profiling import memory
from mqinfer.lab.profiling import profiling as module
from mqinfer.lab.profiling.profiling import engines_for, find_contenders
from mqinfer.lab.profiling.report import ModelProfile, as_csv, as_grids, as_report
from mqinfer.lab.profiling.results import BatchPoint, Loaded, Profile, Turn
from mqinfer.lab.profiling.verdicts import verdicts
from mqinfer.lab.report_files import write_report
from mqinfer.lab.reports import Grid, print_grid
from mqinfer.metrics.nvml import GpuUse
from mqinfer.models.repository import ModelVersion
from mqinfer.models.repository.config import EnsembleStep, ModelConfig
from mqinfer.protocol.errors import ConfigError, ModelNotLoadable

MB = 1_000_000
WriteOnnx = Callable[..., Path]


def point(batch: int, *milliseconds: float) -> BatchPoint:
    """Make a point with a turn for each time."""
    turns = (Turn(np.full(3, each * 1e6).astype(np.int64), 90 * MB) for each in milliseconds)
    return BatchPoint(batch, tuple(turns))


def found(*profiles: Profile) -> ModelProfile:
    """Make a report of profiles."""
    return ModelProfile("vae", 3, profiles, {"processor": "test", "cores": "2"})


def loaded(engine: str) -> Loaded:
    """Make the report of a loaded model."""
    return Loaded(engine, "cpu", "fp32", 0.25, 60 * MB, 70 * MB)


TENSORFLOW = Profile("tensorflow", loaded("tensorflow 2"), (point(1, 4, 4), point(8, 8, 8)))
RUNTIME = Profile("onnxruntime", loaded("onnxruntime 1"), (point(1, 1, 1), BatchPoint(8, problem="no batch of 8")))
TORCH = Profile("pytorch", problem="pytorch does not read tensorflow_graphdef files")


@pytest.fixture
def graph(tmp_path: Path) -> ModelVersion:
    """A frozen graph that no test opens."""
    path = tmp_path / "model.pb"
    path.write_bytes(b"graph")
    return ModelVersion("graph", 1, path)


def text(grid: Grid) -> str:
    """Print a table, wide enough for every row."""
    console = Console(width=200)
    with console.capture() as capture:
        print_grid(grid, console)
    return capture.get()


def test_engines_by_name() -> None:
    """Aliases, a precision of OpenVINO, and all engines without a list."""
    assert engines_for("torchscript, onnx,openvino:bf16") == ("pytorch", "onnxruntime", "openvino:bf16")
    assert {"tensorflow", "onnxruntime", "openvino", "pytorch"} <= set(engines_for(None))


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ("tensorrt", "expected one of tensorflow"),
        ("tensorflow:bf16", "only openvino has a precision"),
        ("openvino:", "bf16 or fp16"),
        ("onnx,onnxruntime", "an entry is repeated"),
    ],
)
def test_engines_that_are_not_there(names: str, words: str) -> None:
    """The message lists the known engines."""
    with pytest.raises(ConfigError, match=words):
        engines_for(names)


def test_ways_to_a_frozen_graph(graph: ModelVersion, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorFlow and OpenVINO read it, ONNX Runtime gets a conversion, PyTorch can't; a precision is an option."""
    converted = tmp_path / "converted.onnx"
    monkeypatch.setattr(module, "_converted", lambda *_: converted)
    subjects, reasons = find_contenders(graph, ["tensorflow", "onnxruntime", "openvino:bf16", "pytorch"], tmp_path)
    assert [(each.name, each.path, each.engine) for each in subjects] == [
        ("tensorflow", graph.path, "tensorflow"),
        ("onnxruntime", converted, "onnxruntime"),
        ("openvino:bf16", graph.path, "openvino"),
    ]
    assert subjects[2].options.precision == "bf16"
    assert reasons == {"pytorch": "pytorch does not read tensorflow_graphdef files"}


def test_a_conversion_that_fails(graph: ModelVersion, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is the reason of that engine, and the others run."""

    def fail(*_: object) -> Path:
        raise ModelNotLoadable("the converter does not know the operator Foo")

    monkeypatch.setattr(module, "_converted", fail)
    subjects, reasons = find_contenders(graph, ["tensorflow", "onnxruntime"], tmp_path)
    assert [each.name for each in subjects] == ["tensorflow"]
    assert "conversion to ONNX failed: the converter does not know" in reasons["onnxruntime"]


def test_an_ensemble_is_no_model(graph: ModelVersion, tmp_path: Path) -> None:
    """An ensemble is refused, since only its steps have engines."""
    step = EnsembleStep("other", -1, {"x": "a"}, {"y": "b"})
    ensemble = replace(graph, config=ModelConfig(ensemble_scheduling=(step,)))
    with pytest.raises(ConfigError, match="profile its steps"):
        find_contenders(ensemble, ["tensorflow"], tmp_path)


def test_the_table() -> None:
    """The tables have a row for each point, speeds relative to TensorFlow, reasons for missing figures, and memory."""
    printed, memory = map(text, as_grids(found(TENSORFLOW, RUNTIME, TORCH)))
    rows = {tuple(line.split()[:5]) for line in printed.splitlines()}
    assert ("onnxruntime", "cpu", "fp32", "1", "1.00") in rows
    assert "4.00" in printed
    assert "no batch of 8" in printed
    assert "does not read tensorflow_graphdef" in printed
    assert "tensorflow = 1" in printed
    (line,) = [line for line in memory.splitlines() if "onnxruntime" in line]
    assert line.split()[-5:] == ["0.25", "60", "70", "90", "30"]


def test_the_base_is_what_ran() -> None:
    """Without TensorFlow, speeds are relative to the first backend that ran; without any there is none."""
    assert found(TORCH, RUNTIME).base is RUNTIME
    assert found(TORCH).base is None


def test_csv() -> None:
    """Every point has a line with all figures, sizes in bytes; a backend that can't run has a line with the reason."""
    lines = list(csv.DictReader(as_csv(found(TENSORFLOW, RUNTIME, TORCH)).splitlines()))
    assert [(line["backend"], line["batch"], line["problem"]) for line in lines] == [
        ("tensorflow", "1", ""),
        ("tensorflow", "8", ""),
        ("onnxruntime", "1", ""),
        ("onnxruntime", "8", "no batch of 8"),
        ("pytorch", "", TORCH.problem),
    ]
    assert float(lines[1]["inferences_per_s"]) == pytest.approx(1000)
    assert float(lines[2]["speed"]) == pytest.approx(4)
    assert int(lines[2]["peak_bytes"]) == 90 * MB


def test_the_plot(tmp_path: Path) -> None:
    """The plot has a panel for each figure and content; nothing to plot is an error."""
    import cv2

    write_report(as_report(found(TENSORFLOW, RUNTIME, TORCH)), {"plot": tmp_path / "plot.png"})
    picture = cv2.imread(str(tmp_path / "plot.png"))
    assert picture is not None
    assert picture.shape == (420, 1380, 3)
    assert len(np.unique(picture.reshape(-1, 3), axis=0)) > 20
    with pytest.raises(ConfigError, match="nothing to plot"):
        write_report(as_report(found(TORCH)), {"plot": tmp_path / "none.png"})


def test_memory_of_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of this process in the driver's list; 0 where it is not there."""
    used = {1: GpuUse(500 << 20)}
    monkeypatch.setattr(memory, "gpu_use", lambda: used)
    assert memory.gpu_bytes() == 0
    used[os.getpid()] = GpuUse(320 << 20)
    assert memory.gpu_bytes() == 320 << 20


@pytest.mark.slow
def test_the_command(write_onnx: WriteOnnx, repository: Path, tmp_path: Path) -> None:
    """`mqinfer models profile` prints tables with the reasons of unsuitable engines, and writes CSV and plot."""
    write_onnx(repository / "copy" / "1" / "model.onnx", shape=("n", "m"))
    words = ["models", "profile", str(repository), "copy", "--batch", "1,2", "--backend", "onnxruntime,tensorflow"]
    words += ["--shape", "x=-1,7", "--rounds", "2", "--seconds", "0.01", "--output", str(tmp_path / "out")]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert "tensorflow does not read onnx_onnxv1 files" in result.output
    lines = list(csv.DictReader((tmp_path / "out" / "copy-1.csv").read_text().splitlines()))
    assert [line["batch"] for line in lines] == ["1", "2", ""]
    assert float(lines[0]["p50_ms"]) > 0
    assert (tmp_path / "out" / "copy-1.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["none"], "it has: copy"),
        (["copy", "--version", "9"], "no version 9 of it"),
        (["copy", "--batch", "1,x"], "whole numbers"),
        (["copy", "--batch", "4,1"], "ascending"),
        (["copy", "--shape", "7"], "NAME="),
        (["copy", "--backend", "caffe"], "expected one of tensorflow"),
        (["copy", "--device", "tpu"], "cuda"),
    ],
)
def test_wrong_options(words: list[str], message: str, write_onnx: WriteOnnx, repository: Path) -> None:
    """The message names the option and its values, before any process starts."""
    write_onnx(repository / "copy" / "1" / "model.onnx")
    result = CliRunner().invoke(app, ["models", "profile", str(repository), *words])
    assert isinstance(result.exception, ConfigError | ModelNotLoadable)
    assert message in str(result.exception)


def test_verdicts_of_the_autoencoders() -> None:
    """A bound is kept or missed by a share, at the smallest batch with its rows; other networks have none."""
    points = (point(1, 1.0), point(16, 20.0), point(64, 6.0))
    profiles = (TENSORFLOW, Profile("onnxruntime", loaded("onnxruntime 1"), points))
    kept = list(verdicts(replace(found(*profiles), model="conv_vae_12")))
    assert kept == [
        "onnxruntime, 64 events within 5 ms: missed, 6 ms for 64 (+20%)",
        "onnxruntime, one event of 9 jets within 100 ms: kept, 20 ms for 16 (-80%)",
        "onnxruntime, memory: 90 MB with 1 and 90 MB with 64 rows a run, 0 kB more for each",
    ]
    few = replace(found(replace(profiles[1], points=points[:1])), model="graph_vae")
    assert [each.partition(": ")[2] for each in verdicts(few)] == [
        "not measured; add 64 to --batch",
        "not measured; add 9 to --batch",
    ]
    assert list(verdicts(found(*profiles))) == []
