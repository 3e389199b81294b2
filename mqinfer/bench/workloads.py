"""What the benches ask of a model: four ONNX models with an array each, or the user's own with frames."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from mqinfer.bags.frame import Frame
from mqinfer.bags.sources import open_source
from mqinfer.cloud_worker.serving.service import InferenceService
from mqinfer.edge_agent.preparing.preparer import Preparer
from mqinfer.lab.profiling.inputs import RandomInputs
from mqinfer.lab.zoo import build
from mqinfer.models.loading import load_model
from mqinfer.models.repository import ModelVersion, Repository
from mqinfer.protocol.card import ColourOrder, ImageContract, ModelCard
from mqinfer.protocol.datatypes import Array
from mqinfer.protocol.errors import ConfigError, SourceError
from mqinfer.protocol.types import InferRequest, RequestedOutput

WORKLOADS = {
    "small": "small_16",
    "frame": "frame_mask",
    "classifier": "classifier_224",
    "vae": "vae_like",
}
"""Model in the repository, by the workload's name in the tables."""
_SEED = 7


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

    def frame(self, number: int) -> Array:
        """Return what the request of a number carries."""
        return self.frames[number % len(self.frames)] if self.frames else self.array

    def open_model(self) -> Callable[[Array], Array]:
        """Return what runs the model on the CPU in this process: from its input's array to its output's.

        Raises:
            MqinferError: It can't be loaded.
        """
        backend = load_model(Repository(self.path.parents[2]).find(self.model), device="cpu").backend
        return lambda array: np.asarray(backend.infer({self.input: array}, [self.output])[self.output])

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


def record_workload(recording: str, model: str, repository: Path, frames: int) -> Workload:
    """Return a workload of the first frames of a recording, prepared by a model's contract as `mqinfer replay` does.

    Raises:
        ModelNotLoadable: The repository has no such model.
        ConfigError: It takes something other than one colour picture.
        SourceError: The recording can't be read, or has no frames.
    """
    version = Repository(repository).find(model)
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


def first_frames(recording: str, count: int, topic: str | None = None) -> tuple[list[Frame], float]:
    """Return the first frames of one stream, and how many of them come in a second.

    Args:
        recording: Bag, video or folder of pictures.
        count: How many at most.
        topic: Image topic; None for the first.

    Raises:
        SourceError: It can't be read, or has no frames.
    """
    with closing(open_source(recording, topics=[topic] if topic else [], depth=False)) as source:
        found: list[Frame] = []
        for frame in source.frames():
            if not found or frame.source == found[0].source:
                found.append(frame)
            if len(found) == count:
                break
    if not found:
        raise SourceError(f"{recording}: no frames to measure")
    span = (found[-1].log_time_ns - found[0].log_time_ns) / 1e9
    return found, (len(found) - 1) / span if span > 0 else 10.0


def colour_contract(card: ModelCard) -> ImageContract:
    """Return how a model takes pictures.

    Raises:
        ConfigError: It takes none in colours.
    """
    if card.image is None or card.image.colour is ColourOrder.DEPTH:
        raise ConfigError(f"model {card.name!r} takes no colour pictures; this bench compares those")
    return card.image


def _check(names: Sequence[str]) -> None:
    if unknown := [name for name in names if name not in WORKLOADS]:
        raise ConfigError(
            f"no workload is called {', '.join(map(repr, unknown))}; expected one of {', '.join(WORKLOADS)}"
        )


@contextmanager
def built_workloads(names: Sequence[str], repository: Path | None = None) -> Iterator[tuple[Workload, ...]]:
    """Yield workloads whose models are in a repository; without one they are built, and gone with the block.

    Raises:
        ConfigError: A name is unknown.
        ModelNotLoadable: The repository lacks a model.
    """
    _check(names)
    with TemporaryDirectory(prefix="mqinfer-bench-") as folder:
        if repository is None:
            build(Path(folder), [WORKLOADS[name] for name in names])
        yield load_workloads((repository or Path(folder)).absolute(), names)


def load_workloads(repository: Path, names: Sequence[str] = tuple(WORKLOADS)) -> tuple[Workload, ...]:
    """Read the models' inputs, make an array for each (seeded), and run it once for the expected output.

    Args:
        repository: Where the models lie.
        names: Keys of `WORKLOADS`.

    Raises:
        ConfigError: A name is unknown.
        ModelNotLoadable: Its model is not in the repository.
    """
    _check(names)
    models = Repository(repository)
    return tuple(_load(name, models.find(WORKLOADS[name])) for name in names)


def _load(name: str, version: ModelVersion) -> Workload:
    with closing(load_model(version, device="cpu").backend) as backend:
        (source, array), *_ = RandomInputs(seed=_SEED).make(backend.inputs, 1).items()
        target = backend.outputs[0].name
        expected = np.array(backend.infer({source: array}, [target])[target])
    return Workload(name, version.name, version.path, source, array, target, expected)
