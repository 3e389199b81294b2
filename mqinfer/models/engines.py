"""Which engines read which files.

A file's name tells its format, called by an Open Inference Protocol platform (`<project>_<format>`). Each format has an
engine that reads it unless `backend` in `model.toml` names another one, by Triton's names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import NoReturn

from mqinfer.models.backend import Backend
from mqinfer.models.load_options import LoadOptions
from mqinfer.models.repository.files import SUFFIXES, describe
from mqinfer.protocol.errors import ConfigError, ModelNotLoadable

__all__ = ["BACKENDS", "Loader", "choose_loader", "platform_of"]

Loader = Callable[[Path, LoadOptions], Backend]

_OPENVINO = "mqinfer.models.backends.openvino:load"

_TENSORFLOW = "mqinfer.models.backends.tensorflow"
BACKENDS: Mapping[str, Mapping[str, str]] = {
    "onnx_onnxv1": {"onnxruntime": "mqinfer.models.backends.onnx:load", "openvino": _OPENVINO},
    "tensorflow_graphdef": {
        "tensorflow": f"{_TENSORFLOW}.frozen_graph:load",
        "openvino": _OPENVINO,
    },
    "tensorflow_savedmodel": {
        "tensorflow": f"{_TENSORFLOW}.saved_model:load",
        "openvino": _OPENVINO,
    },
    "tensorflow_keras": {"tensorflow": f"{_TENSORFLOW}.keras:load"},
    "pytorch_torchscript": {"pytorch": "mqinfer.models.backends.torchscript:load"},
    "openvino_ir": {"openvino": _OPENVINO},
    "mqinfer_echo": {"mqinfer_echo": "mqinfer.models.backends.echo:load"},
}
"""Platform to engine to loader, the engine that is taken by itself first."""


_ENGINES = tuple(dict.fromkeys(engine for engines in BACKENDS.values() for engine in engines if engine not in BACKENDS))
_ALIASES = {"onnxruntime_onnx": "onnx_onnxv1", "pytorch_libtorch": "pytorch_torchscript", "keras": "tensorflow"}
"""Names that Triton's own configurations, and users, have for the same things."""


def platform_of(path: Path, stated: str | None = None) -> str:
    """Tell a model's platform from its file's name, or from `backend` or `platform` in `model.toml`.

    Args:
        path: The model file, or a SavedModel's folder.
        stated: An engine, a platform, or None.

    Raises:
        ModelNotLoadable: No back end reads such a file.
        ConfigError: What is stated is unknown, or does not read such a file.
    """
    found = "tensorflow_savedmodel" if path.is_dir() else SUFFIXES.get(path.suffix.lower())
    name = _ALIASES.get(str(stated), stated)
    if name is not None and name not in _ENGINES:
        return _stated_platform(name, found, path)
    platform = found or _unknown_file(path)
    if name is not None and name not in BACKENDS[platform]:
        raise ConfigError(f"back end {stated!r} does not read {path.name}: {_readers(platform)}")
    return platform


def _stated_platform(name: str, found: str | None, path: Path) -> str:
    plugins = _plugins()
    if name not in BACKENDS and name not in plugins:
        raise ConfigError(f"back end {name!r} is unknown; there are {', '.join([*_ENGINES, *BACKENDS, *plugins])}")
    if name in BACKENDS and found not in {None, name}:
        raise ConfigError(f"platform {name!r} is not that of {path.name}: {_readers(str(found))}")
    return name


def choose_loader(path: Path, stated: str | None = None) -> Loader:
    """Find what loads a model; nothing of an engine is imported unless it is taken.

    Further back ends come from installed packages, by the entry-point group `mqinfer.backends` (platform to loader).

    Raises:
        ModelNotLoadable: No back end reads such a file.
        ConfigError: What is stated is unknown, or does not read such a file.
    """
    plugins = _plugins()
    if twice := sorted(plugins.keys() & (BACKENDS.keys() | set(_ENGINES))):
        raise ConfigError(f"back end {twice[0]!r} is mqinfer's own and also registered by an installed package")
    platform = platform_of(path, stated)
    engines = BACKENDS.get(platform) or {platform: plugins[platform]}
    target = engines.get(_ALIASES.get(str(stated), str(stated))) or next(iter(engines.values()))
    module, _, function = target.partition(":")
    loader: Loader = getattr(import_module(module), function)
    return loader


def _plugins() -> dict[str, str]:
    return {entry.name: entry.value for entry in entry_points(group="mqinfer.backends")}


def _readers(platform: str) -> str:
    return f"{platform} files are read by {', '.join(BACKENDS[platform])}"


def _unknown_file(path: Path) -> NoReturn:
    raise ModelNotLoadable(
        f"{path}: no back end reads {path.suffix or 'such'} files; known are {', '.join(SUFFIXES)} and "
        f"SavedModel folders; found {describe(path)}"
    )
