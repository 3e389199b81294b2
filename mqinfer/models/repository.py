"""The model repository: `<repository>/<model>/<version>/<file or folder>`, and an optional `<model>/model.toml`.

This is the layout that Triton and TensorFlow Serving users know. One model that can't be served does not stop the
others: it becomes a Problem.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from mqinfer.models.config import CONFIG_FILE, ModelConfig, read_config
from mqinfer.models.engines import SUFFIXES
from mqinfer.protocol.errors import ConfigError, ModelNotLoadable, MqinferError
from mqinfer.protocol.topics import check_name

__all__ = ["ModelVersion", "Problem", "Repository", "Scan"]

_USUAL_NAMES = (*(f"model{suffix}" for suffix in SUFFIXES), "model.savedmodel")
_SAVED_MODEL = ("saved_model.pb", "saved_model.pbtxt")


@dataclass(frozen=True, slots=True)
class ModelVersion:
    """One version of one model, as found on the disk.

    Attributes:
        name: The model: its folder's name.
        version: The version's folder as a number (`00000123` is 123).
        path: The model file, or a SavedModel's folder.
        config: From `model.toml`.
        is_default: Whether this version answers requests that name none (the highest one served).
    """

    name: str
    version: int
    path: Path
    config: ModelConfig = field(default_factory=ModelConfig)
    is_default: bool = True


@dataclass(frozen=True, slots=True)
class Problem:
    """A folder that can't be served, and why."""

    model: str
    reason: str


@dataclass(frozen=True, slots=True)
class Scan:
    """What a look at the repository found."""

    models: tuple[ModelVersion, ...]
    problems: tuple[Problem, ...]


class Repository:
    """A folder of models. Nothing is kept: every call looks at the disk again.

    Args:
        path: The repository.

    Raises:
        ConfigError: There is no such folder.
    """

    def __init__(self, path: Path | str) -> None:
        self._path = Path(path)
        if not self._path.is_dir():
            raise ConfigError(f"model repository {path}: there is no such folder; give one that holds models")

    @property
    def path(self) -> Path:
        """The repository's folder, as given."""
        return self._path

    def models(self) -> tuple[ModelVersion, ...]:
        """List the versions that the models' policies select, by name and version."""
        return self.scan().models

    def problems(self) -> tuple[Problem, ...]:
        """List the folders that can't be served."""
        return self.scan().problems

    def scan(self) -> Scan:
        """Look at every folder that is not hidden."""
        models: list[ModelVersion] = []
        problems: list[Problem] = []
        for folder in self._folders():
            if folder.is_dir() and not folder.name.startswith((".", "__")):
                try:
                    models += self._versions(folder, problems)
                except (MqinferError, OSError) as error:
                    problems.append(Problem(folder.name, str(error)))
        return Scan(tuple(models), tuple(problems))

    def _folders(self) -> list[Path]:
        try:
            return sorted(self._path.iterdir())
        except OSError as error:
            raise ConfigError(f"model repository {self._path}: can't be read: {error}") from error

    def _versions(self, folder: Path, problems: list[Problem]) -> Iterator[ModelVersion]:
        check_name("model", folder.name)
        self._check_inside(folder)
        config = self._config(folder)
        numbered = _numbered_folders(folder)
        chosen = config.version_policy.select(tuple(numbered))
        if not chosen:
            raise ModelNotLoadable(f"{folder}: {_no_version(config, tuple(numbered))}")
        found: dict[int, Path] = {}
        for version in chosen:
            try:
                found[version] = self._model_path(numbered[version], config)
            except (MqinferError, OSError) as error:
                problems.append(Problem(folder.name, str(error)))
        return iter(
            [ModelVersion(folder.name, version, path, config, version == max(found)) for version, path in found.items()]
        )

    def _config(self, folder: Path) -> ModelConfig:
        path = folder / CONFIG_FILE
        if path.exists():
            self._check_inside(path)
        config = read_config(path)
        if config.name not in {None, folder.name}:
            raise ConfigError(f"{path}: name = {config.name!r}: must be the folder's name, {folder.name!r}")
        return config

    def _model_path(self, folder: Path, config: ModelConfig) -> Path:
        path = _named(folder, config.default_model_filename) if config.default_model_filename else _discovered(folder)
        self._check_inside(path)
        for inner in path.rglob("*") if path.is_dir() else ():
            self._check_inside(inner)
        return path

    def _check_inside(self, path: Path) -> None:
        resolved = path.resolve()
        if not resolved.is_relative_to(self._path.resolve()):
            raise ModelNotLoadable(
                f"{path}: leads outside the repository, to {resolved}; copy the model into the repository"
            )


def _numbered_folders(folder: Path) -> dict[int, Path]:
    numbered: dict[int, Path] = {}
    for child in sorted(folder.iterdir()):
        if not (child.is_dir() and child.name.isascii() and child.name.isdigit()):
            continue
        if int(child.name) in numbered:
            raise ModelNotLoadable(f"{child}: version {int(child.name)} is there twice; remove one of the two folders")
        numbered[int(child.name)] = child
    return numbered


def _no_version(config: ModelConfig, present: tuple[int, ...]) -> str:
    if present:
        return f"version_policy asks for {list(config.version_policy.specific)}, there are {sorted(present)}"
    return "no version folder (1, 2, …) in it; put the model into a folder named by its version number"


def _named(folder: Path, name: str) -> Path:
    path = folder / name
    if not path.exists():
        raise ModelNotLoadable(f"{path}: default_model_filename names it, and it is not there")
    return path


def _discovered(folder: Path) -> Path:
    if any((folder / name).is_file() for name in _SAVED_MODEL):
        return folder
    for name in _USUAL_NAMES:
        if (folder / name).exists():
            return folder / name
    others = [path for path in sorted(folder.iterdir()) if path.suffix.lower() in SUFFIXES and path.is_file()]
    if len(others) == 1:
        return others[0]
    if others:
        raise ModelNotLoadable(
            f"{folder}: several model files ({', '.join(path.name for path in others)}); "
            f"name one by default_model_filename in {CONFIG_FILE}"
        )
    raise ModelNotLoadable(f"{folder}: no model in it; expected one of {', '.join((*_USUAL_NAMES, _SAVED_MODEL[0]))}")
