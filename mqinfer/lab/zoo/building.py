"""Builds models of the catalogue into a repository; a model that is there with the same key is not built again."""

from __future__ import annotations

import csv
import hashlib
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

from mqinfer.lab.zoo.catalogue import CATALOGUE, TrainedWeights, ZooModel
from mqinfer.lab.zoo.classes import class_tables
from mqinfer.lab.zoo.export import Network
from mqinfer.lab.zoo.onnx_graph import OnnxGraph
from mqinfer.lab.zoo.training import Lessons, TrainingPlan, train
from mqinfer.protocol.errors import ConfigError

_PLAN = TrainingPlan()
_KEY_FILE = "zoo.key"
_LOSSES = "losses.csv"
"""File beside a trained model with the loss of each step of its training."""
_SHIPPED = Path(__file__).parent / "shipped"
"""What `mqinfer models build --train` made from the seeds in `.training`: the weights, and an ONNX file of them, which
can be served without TensorFlow; and the smallest model, for whom the onnx package would be much."""


@dataclass(frozen=True, slots=True)
class BuiltModel:
    """A model in the repository.

    Attributes:
        name: Model name.
        path: Folder of the model.
        fresh: Whether this call has built it.
    """

    name: str
    path: Path
    fresh: bool


def catalogue() -> Mapping[str, str]:
    """Return the purpose of each model that can be built, by name."""
    return {name: entry.purpose for name, entry in CATALOGUE.items()}


def build(
    directory: Path,
    names: Sequence[str] | None = None,
    *,
    lessons: Lessons | None = None,
    again: bool = False,
    progress: Callable[[str], None] = lambda _: None,
) -> list[BuiltModel]:
    """Build models into a repository.

    Args:
        directory: Model repository.
        names: Models to build; None for all.
        lessons: Training data and its classes; needed for trained models only.
        again: Whether to train anew, in place of the weights that the package has.
        progress: Called with a line at each step.

    Raises:
        ConfigError: A model is unknown, or a trained model has no lessons.
        MissingExtra: TensorFlow, tf2onnx or onnx is not installed.
    """
    unknown = sorted(set(names or ()) - set(CATALOGUE))
    if unknown:
        raise ConfigError(f"unknown models {', '.join(unknown)}; expected some of {', '.join(CATALOGUE)}")
    return [_build_one(directory, name, lessons, progress, again=again) for name in names or CATALOGUE]


def _build_one(
    directory: Path, name: str, lessons: Lessons | None, progress: Callable[[str], None], *, again: bool
) -> BuiltModel:
    entry = CATALOGUE[name]
    if entry.trained and lessons is None:
        raise ConfigError(f"building {name} needs training data; pass lessons, or build other models")
    needed = lessons if entry.trained else None
    folder, key = directory / name, _key(entry, needed, again=again)
    key_file = folder / _KEY_FILE
    if key_file.is_file() and key_file.read_text() == key:
        return BuiltModel(name, folder, fresh=False)
    trained = _trained(directory, needed, progress, again=again) if needed else None
    progress(f"building {name}: {entry.purpose}")
    version = folder / "1"
    shutil.rmtree(version, ignore_errors=True)
    version.mkdir(parents=True)
    product = _SHIPPED / f"{name}.onnx"
    if not again and product.is_file():
        shutil.copy(product, version / "model.onnx")
    else:
        network = entry.make(trained)
        network.write(version / entry.file)
        _keep_losses(network, folder)
    (folder / "model.toml").write_text(_config(entry, needed))
    key_file.write_text(key)  # written last, so that an interrupted build is repeated
    return BuiltModel(name, folder, fresh=True)


def read_losses(folder: Path) -> list[float]:
    """Return the loss of each step of a model's training; none for a model that is not trained by its build.

    Args:
        folder: Folder of the model.
    """
    path = folder / _LOSSES
    lines = path.read_text().splitlines() if path.is_file() else []
    return [float(line["loss"]) for line in csv.DictReader(lines)]


def _keep_losses(network: Network | OnnxGraph, folder: Path) -> None:
    if isinstance(network, Network) and network.losses:
        steps = (f"{step},{loss:.6g}\n" for step, loss in enumerate(network.losses, 1))
        (folder / _LOSSES).write_text("step,loss\n" + "".join(steps))


def _trained(directory: Path, lessons: Lessons, progress: Callable[[str], None], *, again: bool) -> TrainedWeights:
    weights = _train(directory, lessons, progress) if again else _SHIPPED / "drive_segmentation.weights.h5"
    return TrainedWeights(weights, len(lessons.classes))


def _train(directory: Path, lessons: Lessons, progress: Callable[[str], None]) -> Path:
    """Return the file of the trained weights; train only if the cached ones have another key."""
    own = [Path(__file__).parent / name for name in ("training.py", "networks/drive_net.py", "layers.py")]
    key = _digest(own, repr(astuple(_PLAN)) + lessons.key)
    path = directory / "drive_segmentation" / f"{key[:16]}.weights.h5"
    if not path.is_file():
        progress("training on synthetic drives (minutes, once)")
        part = path.with_name(f"part-{path.name}")
        train(lessons, _PLAN, part, progress)
        part.rename(path)
    return path


def _key(entry: ZooModel, lessons: Lessons | None, *, again: bool) -> str:
    files = sorted(Path(__file__).parent.rglob("*.py"))
    if lessons and not again:
        return _digest([*files, *sorted(_SHIPPED.iterdir())], _config(entry, lessons))
    return _digest(files, _config(entry, lessons) + (lessons.key if lessons else ""))


def _digest(files: Iterable[Path], more: str) -> str:
    digest = hashlib.sha256(more.encode())
    for path in files:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _config(entry: ZooModel, lessons: Lessons | None) -> str:
    classes = lessons.classes if lessons else entry.classes
    return entry.config + class_tables(classes)
