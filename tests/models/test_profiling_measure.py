"""Measurement: inputs, processes, and processes that fail."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from mmap import mmap
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqinfer.lab.profiling.child import Plan, Subject, TurnRunner
from mqinfer.lab.profiling.inputs import RandomInputs
from mqinfer.lab.profiling.measure import measure
from mqinfer.lab.profiling.memory import peak_bytes, reset_peak, resident_bytes
from mqinfer.lab.profiling.results import BatchPoint, Loaded, Profile, Turn, ratio
from mqinfer.models.engines import choose_loader
from mqinfer.models.load_options import LoadOptions
from mqinfer.protocol.datatypes import Array, Datatype, dtype_of
from mqinfer.protocol.errors import ConfigError
from mqinfer.protocol.types import TensorSpec

MIB = 1 << 20
QUICK = Plan(batches=(1, 3), rounds=2, seconds=0.001, least=2, warm_up=1)

WriteOnnx = Callable[..., Path]


def allocate() -> None:
    """Use 64 MiB for a moment: not from the heap, which may hold as much that another test freed, or keep it."""
    block = mmap(-1, 64 * MIB)
    np.frombuffer(block, np.uint8).fill(1)
    block.close()


class Bulky:
    """Inputs whose creation causes a peak of memory."""

    def make(self, specs: Sequence[TensorSpec], batch: int) -> dict[str, Array]:
        """Allocate 64 MiB for a moment, then return random inputs."""
        allocate()
        return RandomInputs().make(specs, batch)


def turn(*milliseconds: float, peak: int = MIB) -> Turn:
    """Make a turn of runs with these latencies."""
    return Turn((np.array(milliseconds) * 1e6).astype(np.int64), peak)


def profile(name: str, *turns: Turn, batch: int = 4) -> Profile:
    """Make a profile of one point."""
    return Profile(name, Loaded("engine 1", "cpu", "fp32", 0.1, MIB, 2 * MIB), (BatchPoint(batch, turns),))


@given(
    st.sampled_from([each for each in Datatype if each is not Datatype.BYTES]),
    st.lists(st.sampled_from([-1, 1, 3]), max_size=3),
    st.integers(1, 5),
)
def test_inputs_fit_the_model(datatype: Datatype, rest: list[int], batch: int) -> None:
    """Inputs have the datatype and batch size, dynamic axes of 1, and the same numbers each time."""
    spec = TensorSpec("x", datatype, (-1, *rest))
    made = RandomInputs().make([spec], batch)["x"]
    assert made.dtype == dtype_of(datatype)
    assert made.shape == (batch, *(abs(size) for size in rest))
    np.testing.assert_array_equal(made, RandomInputs().make([spec], batch)["x"])


def test_shapes_for_dynamic_axes() -> None:
    """A given shape replaces dynamic axes; strings are bytes; a scalar has no axis."""
    specs = [
        TensorSpec("a", Datatype.FP32, (-1, -1, 3)),
        TensorSpec("b", Datatype.BYTES, (-1,)),
        TensorSpec("c", Datatype.FP32, ()),
    ]
    made = RandomInputs({"a": (-1, 7, 3)}).make(specs, 2)
    assert {name: array.shape for name, array in made.items()} == {"a": (2, 7, 3), "b": (2,), "c": ()}
    assert isinstance(made["b"][0], bytes)


@pytest.mark.parametrize(
    ("shapes", "batch", "words"),
    [
        ({"y": (1,)}, 1, "shape for unknown input 'y'; the model's inputs are x"),
        ({"x": (1, 5)}, 1, "does not fit"),
        ({"x": (1,)}, 1, "does not fit"),
        ({}, 2, "a batch of 2 is not possible"),
    ],
)
def test_inputs_that_do_not_fit(shapes: dict[str, tuple[int, ...]], batch: int, words: str) -> None:
    """The message names the inputs of the model."""
    with pytest.raises(ConfigError, match=words):
        RandomInputs(shapes).make([TensorSpec("x", Datatype.FP32, (1, 4))], batch)


@pytest.mark.parametrize(
    "values",
    [{"batches": ()}, {"batches": (0,)}, {"batches": (4, 2)}, {"rounds": 0}, {"seconds": 0.0}, {"least": 0}],
)
def test_plans_that_measure_nothing(values: dict[str, object]) -> None:
    """Unsorted batch sizes and plans without a run are refused."""
    with pytest.raises(ConfigError):
        Plan(**values)  # type: ignore[arg-type] # a test's own values


def test_figures() -> None:
    """Medians over rounds, percentiles over runs, inferences and not runs a second."""
    point = BatchPoint(4, (turn(1, 1, 9, peak=3 * MIB), turn(2, 2, 2), turn(3, 3, 3)))
    assert point.p50_ms == pytest.approx(2)
    assert point.p99_ms > 8
    assert point.rate == pytest.approx(4 * 3 / 9e-3)
    assert point.peak_bytes == 3 * MIB


def test_ratios_are_of_rounds() -> None:
    """A round in which the machine was slow does not change a ratio."""
    base, fast = profile("base", turn(4), turn(40), turn(4)), profile("fast", turn(2), turn(20), turn(2))
    assert ratio(fast, base, 4) == pytest.approx(2)
    assert ratio(fast, base, 8) is None
    assert ratio(Profile("none", problem="no"), base, 4) is None


def test_the_peak_is_recorded_and_reset() -> None:
    """A brief allocation is in the peak until the peak is reset."""
    allocate()
    assert peak_bytes() >= resident_bytes() + 32 * MIB
    reset_peak()
    assert peak_bytes() < resident_bytes() + 32 * MIB


def test_the_peak_excludes_the_creation_of_inputs(write_onnx: WriteOnnx, tmp_path: Path) -> None:
    """The peak is reset after the inputs are made, the warm-up is not measured, the number of runs is as requested."""
    backend = choose_loader(path := write_onnx(tmp_path / "model.onnx"))(path, LoadOptions())
    before = resident_bytes()
    measured = TurnRunner(backend, Bulky(), Plan(seconds=1e-9, least=5, warm_up=1)).turn(2)
    assert len(measured.latencies_ns) == 5
    assert measured.peak_bytes < before + 48 * MIB
    backend.close()


@pytest.mark.slow
def test_side_by_side(write_onnx: WriteOnnx, tmp_path: Path) -> None:
    """Processes take turns; a missing file, an unsuitable engine and a killed process do not affect the others."""
    open_batch, one = write_onnx(tmp_path / "open.onnx"), write_onnx(tmp_path / "one.onnx", shape=(1, 4))
    others = set(multiprocessing.active_children())  # of fixtures that outlive a test
    lines: list[str] = []

    def kill_one(line: str) -> None:
        lines.append(line)
        for child in multiprocessing.active_children():
            if line.startswith("batch 1") and child.name == "mqinfer-profile-killed":
                child.kill()

    subjects = [
        Subject("open", open_batch, "onnxruntime"),
        Subject("one", one, "onnxruntime"),
        Subject("absent", tmp_path / "absent.onnx", "onnxruntime"),
        Subject("cannot", one, "tensorflow"),
        Subject("killed", one, "onnxruntime"),
    ]
    profiles = dict(zip([each.name for each in subjects], measure(subjects, QUICK, kill_one), strict=True))
    for batch in QUICK.batches:
        point = profiles["open"].at(batch)
        assert point is not None
        assert [len(each.latencies_ns) >= QUICK.least for each in point.turns] == [True] * QUICK.rounds
        assert min(point.p99_ms, point.p50_ms) > 0
    assert profiles["one"].at(1) is not None
    assert "a batch of 3 is not possible" in profiles["one"].points[1].problem
    assert "there is no such file" in profiles["absent"].problem
    assert "does not read" in profiles["cannot"].problem
    assert "exit code -9" in profiles["killed"].problem
    assert any(line.startswith("open: onnxruntime") for line in lines)
    assert set(multiprocessing.active_children()) <= others
