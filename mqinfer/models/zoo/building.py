"""Builds models of the catalogue, each once: what stands in the repository under the same key is left alone."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

from mqinfer.models.zoo.catalogue import CATALOGUE, Entry
from mqinfer.models.zoo.training import TrainingPlan, train
from mqinfer.protocol.card import ClassInfo
from mqinfer.protocol.errors import ConfigError

__all__ = ["BuiltModel", "build", "catalogue"]

_PLAN = TrainingPlan()
_KEY_FILE = "zoo.key"
_BAGS = Path(__file__).parents[2] / "bags"


@dataclass(frozen=True, slots=True)
class BuiltModel:
    """A model in the repository.

    Attributes:
        name: Its name.
        path: Its folder.
        fresh: Whether it was built just now.
    """

    name: str
    path: Path
    fresh: bool


def catalogue() -> Mapping[str, str]:
    """Say what can be built: purposes by name."""
    return {name: entry.purpose for name, entry in CATALOGUE.items()}


def build(
    directory: Path, names: Sequence[str] | None = None, *, progress: Callable[[str], None] = lambda _: None
) -> list[BuiltModel]:
    """Build models into a repository.

    Args:
        directory: The repository.
        names: Which; None for all.
        progress: Told what happens, in lines.

    Raises:
        ConfigError: There is no such model.
        MissingExtra: TensorFlow, tf2onnx or onnx is not installed.
    """
    unknown = sorted(set(names or ()) - set(CATALOGUE))
    if unknown:
        raise ConfigError(f"the zoo has no {', '.join(unknown)}; it has {', '.join(CATALOGUE)}")
    return [_build_one(directory, name, CATALOGUE[name], progress) for name in names or CATALOGUE]


def _build_one(directory: Path, name: str, entry: Entry, progress: Callable[[str], None]) -> BuiltModel:
    folder, key = directory / name, _key(entry)
    key_file = folder / _KEY_FILE
    if key_file.is_file() and key_file.read_text() == key:
        return BuiltModel(name, folder, fresh=False)
    weights = _weights(directory, progress) if entry.trained else None
    progress(f"building {name}: {entry.purpose}")
    version = folder / "1"
    shutil.rmtree(version, ignore_errors=True)
    version.mkdir(parents=True)
    entry.write(weights, version)
    (folder / "model.toml").write_text(_config(entry))
    key_file.write_text(key)  # last, so that a build that was interrupted is done again
    return BuiltModel(name, folder, fresh=True)


def _weights(directory: Path, progress: Callable[[str], None]) -> Path:
    """Train once for all models that stand on the same weights."""
    key = _digest([*_own_files("training.py", "drive_net.py", "layers.py"), *_scenery()], repr(astuple(_PLAN)))
    path = directory / "drive_segmentation" / f"{key[:16]}.weights.h5"
    if not path.is_file():
        progress("training on synthetic drives (minutes, once)")
        part = path.with_name(f"part-{path.name}")
        train(_PLAN, part, progress)
        part.rename(path)
    return path


def _key(entry: Entry) -> str:
    files = sorted(Path(__file__).parent.glob("*.py"))
    return _digest([*files, *(_scenery() if entry.trained else ())], _config(entry))


def _digest(files: Iterable[Path], more: str) -> str:
    digest = hashlib.sha256(more.encode())
    for path in files:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _own_files(*names: str) -> list[Path]:
    return [Path(__file__).parent / name for name in names]


def _scenery() -> list[Path]:
    return [_BAGS / "synthetic.py", *sorted((_BAGS / "scenery").glob("*.py"))]


def _config(entry: Entry) -> str:
    return entry.config + "".join(map(_class_table, entry.classes))


def _class_table(info: ClassInfo) -> str:
    return f"\n[[classes]]\nname = {json.dumps(info.name)}\ncolour = {list(info.colour)}\n"
