"""The four ONNX models of the benches, each with the one array that every request carries and the expected output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from mqinfer.models.backends.onnx import import_onnxruntime
from mqinfer.models.load_options import default_threads
from mqinfer.protocol.datatypes import Array
from mqinfer.protocol.errors import ConfigError

WORKLOADS = {
    "small": "small_16",
    "frame": "frame_mask",
    "classifier": "classifier_224",
    "vae": "vae_like",
}
"""Model in the repository, by the workload's name in the tables."""

_DTYPES: dict[str, np.dtype[Any]] = {
    "tensor(float)": np.dtype("<f4"),
    "tensor(uint8)": np.dtype("u1"),
    "tensor(int64)": np.dtype("<i8"),
}


@dataclass(frozen=True)
class Workload:
    """One model and the array that every request carries.

    Attributes:
        name: In the tables.
        model: Its folder in the repository.
        path: The ONNX file, `<repository>/<model>/1/<file>`.
        input: Name of the model's one input.
        array: What every request carries.
        output: Name of the model's first output, the only one that is asked for.
        expected: That output.
    """

    name: str
    model: str
    path: Path
    input: str
    array: Array
    output: str
    expected: Array

    @cached_property
    def feeds(self) -> dict[str, Any]:
        """The input by name."""
        return {self.input: self.array}


def open_session(path: Path) -> Any:
    """Open a model on the CPU in ONNX Runtime, with the options that mqinfer's back end uses.

    Raises:
        MissingExtra: onnxruntime is not installed.
    """
    onnxruntime = import_onnxruntime()
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.intra_op_num_threads = default_threads()
    options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def fixed_shape(shape: Sequence[object]) -> tuple[int, ...]:
    """Return a shape with 1 for every axis of any size."""
    return tuple(size if isinstance(size, int) and size > 0 else 1 for size in shape)


def numpy_dtype(onnx_type: str) -> np.dtype[Any]:
    """Return the dtype for ONNX Runtime's name of a type.

    Raises:
        ConfigError: The type is none of those that the bench's models have.
    """
    if onnx_type not in _DTYPES:
        raise ConfigError(f"the bench has no workload of type {onnx_type}; expected one of {', '.join(_DTYPES)}")
    return _DTYPES[onnx_type]


def load_workloads(repository: Path, names: Sequence[str] = tuple(WORKLOADS)) -> tuple[Workload, ...]:
    """Read the models' inputs, make an array for each (seeded), and run it once for the expected output.

    Args:
        repository: Where the models lie.
        names: Keys of `WORKLOADS`.

    Raises:
        ConfigError: A name is unknown, or its model is not in the repository.
    """
    unknown = [name for name in names if name not in WORKLOADS]
    if unknown:
        raise ConfigError(
            f"no workload is called {', '.join(map(repr, unknown))}; expected one of {', '.join(WORKLOADS)}"
        )
    return tuple(_load(name, repository / WORKLOADS[name] / "1") for name in names)


def _load(name: str, folder: Path) -> Workload:
    path = next(iter(sorted(folder.glob("*.onnx"))), None)
    if path is None:
        raise ConfigError(f"no ONNX model in {folder}; build it with: mqinfer models build {folder.parent.name}")
    session = open_session(path)
    source, target = session.get_inputs()[0], session.get_outputs()[0]
    array = _some_array(numpy_dtype(source.type), fixed_shape(source.shape))
    (expected,) = session.run([target.name], {source.name: array})
    return Workload(name, WORKLOADS[name], path, source.name, array, target.name, expected)


def _some_array(dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    random = np.random.default_rng(7)
    if dtype.kind in "ui":
        return random.integers(0, 256, shape).astype(dtype)
    return random.standard_normal(shape).astype(dtype)
