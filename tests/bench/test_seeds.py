from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from mqinfer.bench.seeds import experiments, on_gpu, pictures, transports
from mqinfer.bench.seeds.experiment import Bench
from mqinfer.bench.seeds.formulas import (
    event_bytes,
    rate_gained,
    time_saved,
)
from mqinfer.bench.seeds.on_gpu import by_kind, read_operations
from mqinfer.bench.seeds.report import write_folder
from mqinfer.bench.seeds.rows import Measured, Published, join, of_rounds, read_published
from mqinfer.cli.bench import app
from mqinfer.lab.model_process import in_process, run_rows
from mqinfer.lab.profiling.arrays import call_memory
from mqinfer.lab.scores import roc
from mqinfer.lab.zoo.small_models import small_16
from mqinfer.models.repository import Repository
from mqinfer.protocol.errors import ModelFailed

GOLDEN = {
    "000.F1": (12, 0, 0),
    "000.F2": (13, 0, 0),
    "000.T1": (2, 2, 1500.0),
    "000.S7a": (1, 1, 1.0),
    "000.S7b": (2, 2, 2.0),
    "000.S7c": (1, 1, 1.0),
    "000.S9": (1, 0, 0),
    "000.S10": (1, 1, 1.0),
    "000.S11": (24, 6, 12.0),
    "000.S12": (2, 0, 0),
    "000.S19a": (3, 3, 3.0),
    "000.S19b": (2, 1, 1.0),
    "000.S19c": (1, 0, 0),
    "000.S21": (1, 0, 0),
    "000.N": (4, 0, 0),
    "001.M": (7, 7, 48234660.3),
    "001.T1": (16, 0, 0),
    "001.T2": (16, 0, 0),
    "001.F1": (1, 0, 0),
    "001.C1": (4, 4, 332.0),
    "001.C2": (1, 0, 0),
    "001.C3": (4, 1, 90.0),
    "001.C4": (20, 2, 2.0),
    "001.C5": (21, 0, 0),
    "001.S4": (1, 1, 1.0),
    "001.S17a": (1, 1, 1.0),
    "001.S17b": (1, 0, 0),
    "001.S18a": (3, 0, 0),
    "001.S18b": (1, 0, 0),
    "001.N": (1, 0, 0),
    "002.T1": (11, 11, 643250.0),
    "002.T2": (10, 10, 647636.0),
    "002.F1": (30, 3, 106.0),
    "002.F2": (30, 3, 103.5),
    "002.T3": (6, 6, 913.309),
    "002.T4": (6, 6, 13288.998),
    "002.F3": (10, 0, 0),
    "002.F4": (1, 0, 0),
    "002.F5": (1, 0, 0),
    "002.F6": (1, 0, 0),
    "002.T5": (28, 28, 17683868.0),
    "002.T6": (27, 27, 199031.705),
    "002.F7": (1, 0, 0),
    "002.F8": (1, 0, 0),
    "002.F9": (1, 0, 0),
    "002.T7": (35, 35, 3751.933),
    "002.T8": (13, 13, 113693.0),
    "002.F10": (1, 0, 0),
    "002.F11": (1, 0, 0),
    "002.F12": (1, 0, 0),
    "002.F13": (1, 0, 0),
    "002.F14": (1, 0, 0),
    "002.F15": (2, 0, 0),
    "002.F16": (2, 0, 0),
    "002.F17": (5, 0, 0),
    "002.F18": (6, 3, 3.0),
    "002.N": (1, 0, 0),
    "002.S23": (1, 0, 0),
    "003.F1": (35, 35, 90.26),
    "003.F2": (1, 1, 1.0),
    "003.F3": (6, 0, 0),
    "003.F4": (1, 1, 1.0),
    "003.F5": (1, 0, 0),
    "003.F6": (1, 0, 0),
    "003.F7": (2, 2, 1.0),
    "003.F8": (1, 0, 0),
    "003.F9": (1, 0, 0),
    "003.S3": (8, 8, 8.0),
    "003.S20": (1, 1, 1.0),
    "003.S25": (1, 0, 0),
    "003.S28a": (1, 1, 0.0),
    "003.S28b": (1, 1, 1.0),
    "003.S28c": (1, 1, 1.0),
    "003.S28d": (1, 0, 0),
    "003.S28e": (1, 0, 0),
    "003.S41": (2, 1, 1.0),
    "004.T1": (72, 72, 14217.09),
    "004.F1": (7, 7, 143170.0),
    "004.F2": (1, 0, 0),
    "004.F3": (1, 0, 0),
    "004.S1": (4, 4, 4.499),
    "004.F4": (6, 6, 1716.62),
    "004.D": (9, 4, 4.0),
}
"""Of each table with figures: rows, published figures, and their sum."""


def figures() -> dict[tuple[str, str], float]:
    """Return every published figure by table and row."""
    return {(row.table, row.row): row.published for row in read_published() if row.published is not None}


def test_each_published_figure_is_that_of_the_list() -> None:
    """Rows, figures and their sum by table are those that were copied from the documents."""
    found: dict[str, list[Published]] = defaultdict(list)
    for row in read_published():
        found[row.table].append(row)
    tables = {table: [row.published for row in rows if row.published is not None] for table, rows in found.items()}
    assert {
        table: (len(found[table]), len(numbers), round(sum(numbers), 3)) for table, numbers in tables.items()
    } == GOLDEN


def test_rows_are_whole() -> None:
    """A row is there once; its words are known; one that is never measured says why."""
    rows = read_published()
    assert len({(row.table, row.row) for row in rows}) == len(rows)
    assert {row.source for row in rows} <= {"P", "F", "R", "O", "D", "X", ""}
    assert {row.op for row in rows} <= {"", "=", "~", "<", "<=", ">", ">="}
    assert {row.comparable for row in rows} <= {"yes", "partly", ""}
    assert all((row.published is None) == (row.source in {"X", ""}) for row in rows)
    assert all((row.op == "") == (row.published is None) for row in rows)
    assert all(row.reason for row in rows if row.state in {"gpu", "no"})
    assert {row.state for row in rows} == {"cpu", "gpu", "no"}


def test_formulas_give_the_published_numbers() -> None:
    """Input sizes, readings of 83 % and the speed-up are the documents'."""
    published = figures()
    assert event_bytes(150_000, graph=False) / 1e6 == published["002.T3", "input"]
    assert event_bytes(80_000, graph=True) / 1e6 == published["002.T4", "input"]
    assert event_bytes(128, graph=False) / 1024 == published["002.T6", "bytes of a batch of 128"]
    assert time_saved(1, 1 / 5.88) == pytest.approx(0.83, abs=0.001)
    assert rate_gained(1.83, 1) == pytest.approx(0.83)
    assert published["004.F4", "one machine"] / published["004.F4", "distributed"] == pytest.approx(5.52, abs=0.005)


def test_a_bound_gets_a_verdict_and_no_ratio() -> None:
    """A ratio is for figures that can be compared; bounds are kept, broken or not run; extra rows stand behind."""
    rows = [row for row in read_published() if row.table in {"002.F1", "002.T1"}]
    measured = [
        of_rounds("002.T1", "conv2d", [160, 161, 160], samples=9),
        of_rounds("002.F1", "ONNX Runtime batch 64", [6.0, 4.0, 5.5]),
        of_rounds("002.F1", "batch 64 twice", [1.0], unit="ms"),
    ]
    joined = {row.published.row: row for row in join(rows, measured, {"002.F1": "interrupted"})}
    assert (joined["conv2d"].ratio, joined["conv2d"].verdict) == (1.0, "")
    bound = joined["ONNX Runtime batch 64"]
    assert (bound.ratio, bound.verdict, bound.measured) == (
        None,
        "broken",
        Measured("002.F1", "ONNX Runtime batch 64", 5.5, 4.0, 6.0, 3),
    )
    assert joined["one event of 9 jets"].verdict == "not run"
    assert joined["TensorFlow batch 1"].reason == "interrupted"
    assert joined["batch 64 twice"].published.source == ""


def bench(tmp_path: Path, *tables: str) -> Bench:
    """Return what an experiment of some tables gets."""
    return Bench(tmp_path, full=False, source=None, tables=frozenset(tables), progress=lambda _: None)


def test_each_experiment_is_of_a_table() -> None:
    """No experiment is registered for a table that no document has or that has nothing to measure, no table twice."""
    tables = {row.table for row in read_published() if row.state != "no"}
    registered = [table for own in experiments.EXPERIMENTS.values() for table in own]
    assert len(registered) == len(set(registered) & tables)


def test_messages_are_measured_by_their_bytes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The forms carry the same tensor: raw bytes are shorter than base64, and that than numbers as text."""
    monkeypatch.setattr(transports, "_SHAPES", ((16, 16, 3),))
    found = {each.row: each.measured for each in transports.messages(bench(tmp_path, "000.S11"))}
    sizes = [found[f"[16x16x3] {form}, bytes"] for form in ("TFS protobuf", "JSON base64", "JSON numbers", "XML")]
    assert 4 * 16 * 16 * 3 < sizes[0] < sizes[1] < sizes[2] < sizes[3]
    assert found["[16x16x3] JSON numbers against OIP protobuf: time to write"] > 1


def test_lz4_and_jpeg_rows_are_those_of_the_documents(tmp_path: Path) -> None:
    """The rows that the documents have are measured, and others stand beside them."""
    found = {(each.table, each.row) for each in pictures.lossless(bench(tmp_path, "000.T1"))}
    assert {("000.T1", "LZ4 compression"), ("000.T1", "LZ4 decoding"), ("000.T1", "LZ4 decoding, mask")} <= found
    assert {("000.S12", "JPEG 224x224 decode on the CPU"), ("001.S17b", "demosaicing a frame of 968x608")} <= found


def test_the_call_holds_its_input(tmp_path: Path) -> None:
    """A call with all rows at once takes at least their bytes; one that draws each batch takes less."""
    (tmp_path / "small" / "1").mkdir(parents=True)
    small_16().write(tmp_path / "small" / "1" / "model.onnx")
    model = Repository(tmp_path).find("small")
    rows = 1_000_000
    whole = in_process(call_memory, model, None, rows, 1000)
    drawn = in_process(call_memory, model, None, rows, 1000, drawn_whole=False)
    assert whole.call_bytes > rows * 16 * 4
    assert drawn.call_bytes < whole.call_bytes / 2
    outputs = in_process(run_rows, model, None, {"input": np.ones((700, 16), np.float32)}, ("output",))
    assert outputs["output"].shape[0] == 700


def failing(_: Bench) -> Iterator[Measured]:
    """Yield one row, and fail."""
    yield of_rounds("002.T1", "conv2d", [160])
    raise ModelFailed("no such engine")


def test_an_experiment_that_fails_keeps_its_rows_and_stops_no_other(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The rows that it yielded stand, those that are lacking have its error, and the folder is written."""
    monkeypatch.setattr(experiments, "EXPERIMENTS", {failing: ("002.T1",)})
    output = tmp_path / "out"
    shown = CliRunner().invoke(app, ["seeds", "002", "--table", "002.T1", "--output", str(output)])
    assert shown.exit_code == 0, shown.output
    assert "no such engine" in shown.output
    lines = (output / "seeds.csv").read_text().splitlines()
    assert lines[0].startswith("seed,table,row,setting,published,published_op,source,error,unit,measured,low,high,")
    assert lines[1].startswith("002,002.T1,conv2d,")
    assert len(lines) == 1 + sum(row.table == "002.T1" for row in read_published())


def test_a_broken_bound_fails_a_strict_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without --strict the exit code is 0."""
    slow = of_rounds("002.F1", "ONNX Runtime batch 64", [50.0])
    monkeypatch.setattr(experiments, "EXPERIMENTS", {lambda _: iter([slow]): ("002.F1",)})
    command = ["seeds", "--table", "002.F1"]
    assert CliRunner().invoke(app, command).exit_code == 0
    assert CliRunner().invoke(app, [*command, "--strict"]).exit_code == 1


def test_an_unknown_table_is_refused() -> None:
    """The error names those that there are."""
    refused = CliRunner().invoke(app, ["seeds", "005"])
    assert refused.exit_code != 0
    assert "004.T1" in str(refused.exception)


def test_plots_are_lines_over_the_batch_and_bars(tmp_path: Path) -> None:
    """A table's rows by batch size are lines, and its other figures of a unit bars."""
    rows = [row for row in read_published() if row.table == "002.F1"]
    names = [(f"{engine} batch {size}", size) for engine in ("TensorFlow", "OpenVINO") for size in (1, 64)]
    measured = [of_rounds("002.F1", name, [size]) for name, size in names]
    measured += [of_rounds("002.F1", f"gain of ONNX Runtime, batch {size}", [size]) for size in (1, 64)]
    joined = join(rows, measured, {})
    written = {path.name for path in write_folder({"processor": "some"}, joined, tmp_path)}
    assert {"seeds.csv", "seeds.json", "seeds.md", "002.F1-lines-ms.png", "002.F1-lines-ms.svg"} <= written


def test_the_area_under_the_curve() -> None:
    """It is the share of the pairs in which the signal has the higher score; equal scores count half."""
    curve = roc([3.0, 2.0, 1.0], [2.0, 0.0])
    assert curve.area == pytest.approx((1 + 1 + 0.5 + 1 + 0 + 1) / 6)
    assert (curve.false[0], curve.true[0], curve.false[-1], curve.true[-1]) == (0, 0, 1, 1)
    assert roc([1.0, 1.0], [1.0]).area == 0.5


def test_memory_operations_of_a_gpu_are_rows_of_the_document() -> None:
    """Copies and memsets are read from a trace as PyTorch's profiler writes it, and each figure is a published row."""
    events = [
        {"cat": "gpu_memcpy", "name": "Memcpy HtoD (Pageable -> Device)", "dur": 2.0, "args": {"bytes": 2048}},
        {"cat": "gpu_memcpy", "name": "Memcpy HtoD (Pageable -> Device)", "dur": 4.0, "args": {"bytes": 4096}},
        {"cat": "gpu_memcpy", "name": "Memcpy DtoH (Device -> Pageable)", "dur": 1.0, "args": {"bytes": 1024}},
        {"cat": "gpu_memset", "name": "Memset (Device)", "dur": 1.0, "args": {"bytes": 512}},
        {"cat": "kernel", "name": "gemm", "dur": 90.0, "args": {}},
        {"name": "process_name", "ph": "M"},
    ]
    found = {(each.table, each.row): each.measured for each in by_kind(read_operations({"traceEvents": events}), "")}
    assert found["002.T5", "HtoD share"] == 75
    assert found["002.T5", "HtoD mean"] == 3000
    assert found["002.T6", "HtoD total"] == 6
    assert found["002.T6", "HtoD rate"] == pytest.approx(6144 / 6000)
    assert found["002.T6", "DtoD operations"] == 0
    assert found.keys() <= {(row.table, row.row) for row in read_published()}


def test_what_needs_a_gpu_says_so_and_keeps_the_rest(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without a GPU the reason is that there is none, and what a formula gives stands."""
    monkeypatch.setattr(on_gpu, "_ask_driver", lambda *_: [])
    found: list[Measured] = []
    reasons: dict[str, str] = {}
    experiments.run_experiments(bench(tmp_path, "002.F4", "002.T6", "002.T8"), found, reasons)
    assert [(each.table, each.row, each.measured) for each in found] == [("002.T6", "bytes of a batch of 128", 150)]
    rows = join([row for row in read_published() if row.table in reasons], found, reasons)
    assert {row.reason for row in rows if row.measured is None} == {"needs an NVIDIA GPU: nvidia-smi shows none here"}
