"""What the benches ask of a model: four ONNX models with an array each, or the user's own with frames."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mqinfer.bench.recordings import colour_contract, first_frames
from mqinfer.cloud_worker.serving.service import InferenceService
from mqinfer.edge_agent.preparing.preparer import Preparer
from mqinfer.models.backends.onnx import import_onnxruntime
from mqinfer.models.load_options import default_threads
from mqinfer.models.loading import load_model
from mqinfer.models.repository import ModelVersion, Repository
from mqinfer.protocol.datatypes import Array
from mqinfer.protocol.errors import ConfigError
from mqinfer.protocol.types import InferRequest, RequestedOutput

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
    """A model and what requests carry.

    Attributes:
        name: In the tables.
        model: Its folder in the repository.
        path: The model's file, `<repository>/<model>/<version>/<file>`.
        input: Name of the model's one input.
        array: What the first request carries, and where there are no frames, every one.
        output: Name of the model's first output, the only one that is asked for.
        expected: That output.
        frames: What the requests carry in turn.
    """

    name: str
    model: str
    path: Path
    input: str
    array: Array
    output: str
    expected: Array
    frames: tuple[Array, ...] = ()

    @property
    def feeds(self) -> dict[str, Any]:
        """The input by name."""
        return {self.input: self.array}

    def frame(self, number: int) -> Array:
        """Return what the request of a number carries."""
        return self.frames[number % len(self.frames)] if self.frames else self.array

    def save(self, folder: Path) -> None:
        """Write it into a folder, for other processes."""
        np.savez(folder / "arrays.npz", self.expected, *(self.frames or [self.array]))
        words = [self.name, self.model, str(self.path), self.input, self.output]
        (folder / "words.json").write_text(json.dumps(words), encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> Workload:
        """Read what `save` wrote."""
        name, model, path, source, target = json.loads((folder / "words.json").read_text("utf-8"))
        with np.load(folder / "arrays.npz") as arrays:
            expected, *frames = (arrays[each] for each in arrays.files)
        return cls(name, model, Path(path), source, frames[0], target, expected, tuple(frames))


def open_model(repository: Path, model: str, source: str, target: str) -> Callable[[Array], Array]:
    """Return what runs a model's default version on the CPU in this process: from its input's array to its output's.

    Raises:
        MqinferError: It can't be loaded.
    """
    backend = load_model(default_version(repository, model), device="cpu").backend
    return lambda array: np.asarray(backend.infer({source: array}, [target])[target])


def default_version(repository: Path, model: str) -> ModelVersion:
    """Return the version of a model that requests without one get.

    Raises:
        ConfigError: The repository has no such model.
    """
    found = Repository(repository).models() if repository.is_dir() else []
    for each in found:
        if each.name == model and each.is_default:
            return each
    names = ", ".join(sorted({each.name for each in found})) or "none"
    raise ConfigError(f"there is no model {model!r} in {repository}; it has: {names}")


def record_workload(recording: str, model: str, repository: Path, frames: int) -> Workload:
    """Return a workload of the first frames of a recording, prepared by a model's contract as `mqinfer replay` does.

    Raises:
        ConfigError: The repository has no such model, or it takes something other than one colour picture.
        SourceError: The recording can't be read, or has no frames.
    """
    version = default_version(repository, model)
    loaded = load_model(version, device="cpu")
    with closing(loaded.backend):
        card, service = loaded.card, InferenceService(loaded)
        preparer, target = Preparer(colour_contract(card), "raw"), card.outputs[0].name
        if len(card.inputs) > 1:
            raise ConfigError(f"model {model!r} has {len(card.inputs)} inputs; no contestant can serve it")
        given = [preparer.prepare(frame, lambda *_: None).tensors for frame in first_frames(recording, frames)[0]]
        asked = [InferRequest("", model, tensors, outputs=(RequestedOutput(target),)) for tensors in given]
        ready = [service.prepare(each) for each in asked]
        (first,) = service.run(ready[:1])
        if first.error is not None:
            raise first.error
        expected = service.finish(asked[0], first.outputs)[target]
    source = card.inputs[0].name
    inputs = tuple(each.inputs[source].copy() for each in ready)  # its service may use their memory again
    return Workload(Path(recording).name, model, version.path, source, inputs[0], target, expected, inputs)


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


def check_workloads(names: Sequence[str]) -> None:
    """Check that workloads are there.

    Raises:
        ConfigError: One is unknown.
    """
    if unknown := [name for name in names if name not in WORKLOADS]:
        raise ConfigError(
            f"no workload is called {', '.join(map(repr, unknown))}; expected one of {', '.join(WORKLOADS)}"
        )


def load_workloads(repository: Path, names: Sequence[str] = tuple(WORKLOADS)) -> tuple[Workload, ...]:
    """Read the models' inputs, make an array for each (seeded), and run it once for the expected output.

    Args:
        repository: Where the models lie.
        names: Keys of `WORKLOADS`.

    Raises:
        ConfigError: A name is unknown, or its model is not in the repository.
    """
    check_workloads(names)
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
