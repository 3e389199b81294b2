"""Find the versions in a model repository: `<repository>/<model>/<version>/<file or folder>`, and configuration files.

This is the layout that Triton and TensorFlow Serving users know. A model that can't be served does not stop the others:
it becomes a Problem. Links that lead out of the repository are refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from mqinfer.models.repository.config import EnsembleStep, ModelConfig
from mqinfer.models.repository.config_files import CONFIG_FILE, CONFIG_FILES, combine, read_layer, with_named_files
from mqinfer.models.repository.config_keys import Layer
from mqinfer.models.repository.files import SUFFIXES, check_inside, inner_path
from mqinfer.models.repository.traffic import TRAFFIC_FILE, Traffic, read_traffic
from mqinfer.protocol.errors import ConfigError, ModelNotLoadable, MqinferError
from mqinfer.protocol.topics import check_name

_MOST_STEPS, _DEEPEST = 256, 8  # of an ensemble, with those of the ensembles in it
_SAVED_MODEL = ("saved_model.pb", "saved_model.pbtxt")
_USUAL_NAMES = ("model.savedmodel", *(f"model{suffix}" for suffix in SUFFIXES))


@dataclass(frozen=True, slots=True)
class ModelVersion:
    """One version of one model, as found on disk.

    Attributes:
        name: The model's name, which is its folder's.
        version: The version's folder as a number (`00000123` is 123).
        path: The model file, or a SavedModel's folder; of an ensemble the version's folder.
        config: Its configuration.
        is_default: Whether requests without a version get this one: the stable one, else the highest one served.
        parts: The models of an ensemble, one for each step.
        traffic: Labels of the model's versions, and the canary's share.
        is_remote: Whether this is a step that other workers run: nothing of it is in this repository, and version 0
            stands for the default one.
    """

    name: str
    version: int
    path: Path
    config: ModelConfig = field(default_factory=ModelConfig)
    is_default: bool = True
    parts: tuple[ModelVersion, ...] = ()
    traffic: Traffic = field(default_factory=Traffic)
    is_remote: bool = False

    @property
    def folder(self) -> Path:
        """The folder named after its number; the model is in it, or is the folder itself."""
        places = (self.path, *self.path.parents)
        return next((each for each in places if _is_number(each.name, self.version)), self.path.parent)

    @property
    def remote_parts(self) -> frozenset[str]:
        """The models that other workers run for this one, for its parts, or theirs."""
        return frozenset(
            name for part in self.parts for name in ((part.name,) if part.is_remote else part.remote_parts)
        )

    @property
    def local_names(self) -> frozenset[str]:
        """This model and those that its process loads as parts of it."""
        own = frozenset() if self.is_remote else frozenset((self.name,))
        return own.union(*(part.local_names for part in self.parts))


@dataclass(frozen=True, slots=True)
class Problem:
    """A folder that can't be served, and why."""

    model: str
    reason: str


@dataclass(frozen=True, slots=True)
class Scan:
    """The result of a scan of the repository."""

    models: tuple[ModelVersion, ...]
    problems: tuple[Problem, ...]


@dataclass(frozen=True, slots=True)
class _Folder:
    """A model's folder: its configuration, its versions' folders by number, and their labels."""

    path: Path
    layers: tuple[Layer, ...]
    numbered: dict[int, Path]
    traffic: Traffic

    @property
    def chosen(self) -> tuple[int, ...]:
        """The versions that the model's policy selects or that have a label, at least one, in ascending order."""
        policy = combine(self.layers).version_policy
        labelled = [version for version in self.traffic.versions if version in self.numbered]
        chosen = policy.select(tuple(self.numbered))
        if chosen or labelled:
            return tuple(sorted({*chosen, *labelled}))
        if self.numbered:
            asked = f"version_policy asks for {list(policy.specific)}, there are {sorted(self.numbered)}"
            raise ModelNotLoadable(f"{self.path}: {asked}")
        raise ModelNotLoadable(
            f"{self.path}: no version folder (1, 2, …) in it; put the model into a folder named by its version number"
        )

    def default(self, versions: Sequence[int]) -> int:
        """Return which of the given versions requests without a version get."""
        stable = self.traffic.stable
        if stable is not None and stable in versions:
            return stable
        tried = {self.traffic.canary, self.traffic.shadow and self.traffic.shadow.version}
        return max([version for version in versions if version not in tried] or versions)

    def missing(self) -> str:
        """Return what is wrong with the labels: a version that has one is not there; empty otherwise."""
        labels = {label: int(version) for label, version in self.traffic.labels.items()}
        absent = [f"{label} = {version}" for label, version in labels.items() if version not in self.numbered]
        if not absent:
            return ""
        return (
            f"{self.path / TRAFFIC_FILE}: {', '.join(absent)}: there is no such version; there are "
            f"{sorted(self.numbered)}; edit or remove the file, or put the version back"
        )


class Repository:
    """A folder of models. Nothing is cached: every call reads the disk again.

    Args:
        path: The repository.

    Raises:
        ConfigError: There is no such folder.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        """The repository's folder, as given."""
        if not self.path.is_dir():
            raise ConfigError(f"model repository {path}: there is no such folder; expected one with models")

    def models(self) -> tuple[ModelVersion, ...]:
        """Return the versions that the models' policies select, by name and version."""
        return self.scan().models

    def problems(self) -> tuple[Problem, ...]:
        """Return the folders that can't be served."""
        return self.scan().problems

    def find(self, name: str, version: int | None = None) -> ModelVersion:
        """Return one version, also one that the model's policy does not select.

        Args:
            name: The model's name.
            version: None: the default version.

        Raises:
            BadTopic: The name is no model name.
            ConfigError: A configuration file is wrong.
            ModelNotLoadable: There is no such model or version.
        """
        try:
            return self._find(name, version, ())
        except ModelNotLoadable as error:
            raise ModelNotLoadable(f"{self.path / name}: {error}") from error

    def scan(self) -> Scan:
        """Return the versions and problems of every folder that is not hidden."""
        models: list[ModelVersion] = []
        problems: list[Problem] = []
        for path in self._model_folders():
            try:
                models += self._versions(self._open(path.name), problems)
            except (MqinferError, OSError) as error:
                problems.append(Problem(path.name, str(error)))
        return Scan(tuple(models), tuple(problems))

    def _model_folders(self) -> list[Path]:
        try:
            return sorted(
                path for path in self.path.iterdir() if path.is_dir() and not path.name.startswith((".", "__"))
            )
        except OSError as error:
            raise ConfigError(f"model repository {self.path}: can't be read: {error}") from error

    def _open(self, name: str) -> _Folder:
        path = self.path / check_name("model", name)
        check_inside(path, self.path)
        layers = tuple(self._layer(path / file) for file in CONFIG_FILES)
        for file, layer in zip(CONFIG_FILES, layers, strict=True):
            if layer.get("name") not in {None, name}:
                raise ConfigError(f"{path / file}: name = {layer['name']!r}: expected the folder's name, {name!r}")
        if (path / TRAFFIC_FILE).exists():
            check_inside(path / TRAFFIC_FILE, self.path)
        return _Folder(path, layers, _numbered_folders(path), read_traffic(path))

    def _layer(self, path: Path) -> Layer:
        if path.exists():
            check_inside(path, self.path)
            if not path.is_file():  # reading a pipe would block
                raise ConfigError(f"{path}: not a file")
        return read_layer(path)

    def _versions(self, folder: _Folder, problems: list[Problem]) -> Iterator[ModelVersion]:
        found: list[ModelVersion] = []
        for number in folder.chosen:
            try:
                found.append(self._version(folder, number))
            except (MqinferError, OSError) as error:
                problems.append(Problem(folder.path.name, str(error)))
        if problem := folder.missing():
            problems.append(Problem(folder.path.name, problem))
        numbers = [version.version for version in found]
        default = folder.default(numbers) if found else None
        traffic = folder.traffic.among(numbers)
        return (replace(each, is_default=each.version == default, traffic=traffic) for each in found)

    def _version(self, folder: _Folder, number: int, above: tuple[str, ...] = ()) -> ModelVersion:
        path = folder.numbered[number]
        check_inside(path, self.path)
        own = self._layer(path / CONFIG_FILE)
        if "version_policy" in own or own.get("name") not in {None, folder.path.name}:
            key = "version_policy" if "version_policy" in own else "name"
            above_all = folder.path / CONFIG_FILE
            raise ConfigError(f"{path / CONFIG_FILE}: {key}: applies to all versions; move it to {above_all}")
        config = with_named_files(combine([*folder.layers, own]), folder.path)
        if config.ensemble_scheduling:
            return self._ensemble(ModelVersion(folder.path.name, number, path, config), above)
        if config.backend == "ensemble":
            raise ConfigError(f"{folder.path}: platform = 'ensemble' needs the steps, in ensemble_scheduling")
        return ModelVersion(folder.path.name, number, self._model_path(path, config), config)

    def _ensemble(self, model: ModelVersion, above: tuple[str, ...]) -> ModelVersion:
        within = (*above, model.name)
        remote = _remote_steps(model)
        parts: list[ModelVersion] = []
        for number, step in enumerate(model.config.ensemble_scheduling, 1):
            if len(within) > _DEEPEST or sum(map(_steps, parts)) + number > _MOST_STEPS:
                raise ModelNotLoadable(
                    f"{model.name}: more than {_MOST_STEPS} steps, or ensembles nested more than {_DEEPEST} deep"
                )
            try:
                is_remote = step.model_name in remote
                parts.append(_remote_part(step, model.path) if is_remote else self._part(step, within))
            except (MqinferError, OSError) as error:
                raise ModelNotLoadable(f"{model.name}: step {number}, model {step.model_name!r}: {error}") from error
        return replace(model, parts=tuple(parts))

    def _part(self, step: EnsembleStep, above: tuple[str, ...]) -> ModelVersion:
        if step.model_name in above:
            raise ModelNotLoadable(f"an ensemble contains itself: {' -> '.join((*above, step.model_name))}")
        return self._find(step.model_name, None if step.model_version == -1 else step.model_version, above)

    def _find(self, name: str, version: int | None, above: tuple[str, ...]) -> ModelVersion:
        if not (self.path / check_name("model", name)).is_dir():
            names = ", ".join(path.name for path in self._model_folders()) or "none"
            raise ModelNotLoadable(f"there is no such model in the repository; it has: {names}")
        folder = self._open(name)
        number = folder.default(folder.chosen) if version is None else version
        if number not in folder.numbered:
            raise ModelNotLoadable(f"there is no version {number} of it; it has {sorted(folder.numbered)}")
        return self._version(folder, number, above)

    def _model_path(self, folder: Path, config: ModelConfig) -> Path:
        path = _named(folder, config.default_model_filename) if config.default_model_filename else _discovered(folder)
        check_inside(path, self.path)
        for inner in path.rglob("*") if path.is_dir() else ():
            check_inside(inner, self.path)
        return path


def _remote_steps(model: ModelVersion) -> frozenset[str]:
    """Return the models of an ensemble's steps that other workers run."""
    text = str(model.config.parameters.get("remote_steps", ""))
    names = frozenset(filter(None, map(str.strip, text.split(","))))
    unknown = names.difference(step.model_name for step in model.config.ensemble_scheduling)
    if unknown:
        raise ConfigError(f"{model.name}: parameters.remote_steps names {', '.join(sorted(unknown))}: no step has it")
    return names


def _remote_part(step: EnsembleStep, path: Path) -> ModelVersion:
    return ModelVersion(check_name("model", step.model_name), max(0, step.model_version), path, is_remote=True)


def _steps(model: ModelVersion) -> int:
    return sum(1 + _steps(part) for part in model.parts)


def _is_number(name: str, number: int) -> bool:
    return name.isascii() and name.isdigit() and int(name) == number


def _numbered_folders(folder: Path) -> dict[int, Path]:
    numbered: dict[int, Path] = {}
    for child in sorted(folder.iterdir()):
        if not (child.is_dir() and child.name.isascii() and child.name.isdigit()):
            continue
        if int(child.name) in numbered:
            raise ModelNotLoadable(f"{child}: there are two folders for version {int(child.name)}; remove one of them")
        numbered[int(child.name)] = child
    return numbered


def _named(folder: Path, name: str) -> Path:
    path = inner_path(folder, name, "default_model_filename")
    if not path.exists():
        raise ModelNotLoadable(f"{path}: named by default_model_filename, but it does not exist")
    return path


def _discovered(folder: Path) -> Path:
    if any((folder / name).is_file() for name in _SAVED_MODEL):
        return folder
    usual = next((folder / name for name in _USUAL_NAMES if (folder / name).exists()), None)
    return usual or _only_model(folder)


def _only_model(folder: Path) -> Path:
    present = sorted(path for path in folder.iterdir() if path.is_file() and path.name != CONFIG_FILE)
    others = [path for path in present if path.suffix.lower() in SUFFIXES]
    if len(others) == 1:
        return others[0]
    if others:
        raise ModelNotLoadable(
            f"{folder}: several model files ({', '.join(path.name for path in others)}); "
            f"choose one by default_model_filename in {CONFIG_FILE}"
        )
    found = f"; no back end reads {', '.join(path.name for path in present[:5])}" if present else ""
    expected = ", ".join((*_USUAL_NAMES, _SAVED_MODEL[0]))
    raise ModelNotLoadable(f"{folder}: no model in it{found}; expected one of {expected}")
