"""Choose the engine for a model file.

The suffix of a file is its format, named as an Open Inference Protocol platform (`<project>_<format>`). Each format has
a default engine; `backend` in `model.toml` chooses another one, by Triton's name.
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
    "tensorflow_lite": {"openvino": _OPENVINO},
    "tensorflow_keras": {"tensorflow": f"{_TENSORFLOW}.keras:load"},
    "pytorch_torchscript": {"pytorch": "mqinfer.models.backends.torchscript:load"},
    "openvino_ir": {"openvino": _OPENVINO},
    "mqinfer_echo": {"mqinfer_echo": "mqinfer.models.backends.echo:load"},
}
"""Platform to engine to loader; the first engine of a platform is the default."""


_ENGINES = tuple(dict.fromkeys(engine for engines in BACKENDS.values() for engine in engines if engine not in BACKENDS))
_ALIASES = {"onnxruntime_onnx": "onnx_onnxv1", "pytorch_libtorch": "pytorch_torchscript", "keras": "tensorflow"}
"""Other names for the same, from Triton's own configurations and from users."""


def platform_of(path: Path, configured: str | None = None) -> str:
    """Return a model's platform, from its file's name or from `backend` or `platform` in `model.toml`.

    Args:
        path: The model file, or a SavedModel's folder.
        configured: An engine or a platform; None: not configured.

    Raises:
        ModelNotLoadable: No back end reads such a file.
        ConfigError: The configured name is unknown, or does not read such a file.
    """
    found = "tensorflow_savedmodel" if path.is_dir() else SUFFIXES.get(path.suffix.lower())
    name = _ALIASES.get(str(configured), configured)
    if name is not None and name not in _ENGINES:
        return _configured_platform(name, found, path)
    platform = found or _unknown_file(path)
    if name is not None and name not in BACKENDS[platform]:
        raise ConfigError(f"back end {configured!r} does not read {path.name}: {_readers(platform)}")
    return platform


def _configured_platform(name: str, found: str | None, path: Path) -> str:
    plugins = _plugins()
    if name not in BACKENDS and name not in plugins:
        known = ", ".join([*_ENGINES, *BACKENDS, *plugins])
        raise ConfigError(f"back end {name!r} is unknown; expected one of {known}")
    if name in BACKENDS and found not in {None, name}:
        raise ConfigError(f"platform {name!r} does not match {path.name}: {_readers(str(found))}")
    return name


def choose_loader(path: Path, configured: str | None = None) -> Loader:
    """Return the function that loads a model; only the chosen engine is imported.

    Installed packages add back ends by the entry-point group `mqinfer.backends` (platform to loader).

    Raises:
        ModelNotLoadable: No back end reads such a file.
        ConfigError: The configured name is unknown, or does not read such a file.
    """
    plugins = _plugins()
    if twice := sorted(plugins.keys() & (BACKENDS.keys() | set(_ENGINES))):
        raise ConfigError(f"back end {twice[0]!r} is mqinfer's own, and an installed package registers the same name")
    platform = platform_of(path, configured)
    engines = BACKENDS.get(platform) or {platform: plugins[platform]}
    target = engines.get(_ALIASES.get(str(configured), str(configured))) or next(iter(engines.values()))
    module, _, function = target.partition(":")
    loader: Loader = getattr(import_module(module), function)
    return loader


def _plugins() -> dict[str, str]:
    return {entry.name: entry.value for entry in entry_points(group="mqinfer.backends")}


def _readers(platform: str) -> str:
    return f"{platform} files are read by {', '.join(BACKENDS[platform])}"


def _unknown_file(path: Path) -> NoReturn:
    raise ModelNotLoadable(
        f"{path}: no back end reads {path.suffix or 'such'} files; expected one of {', '.join(SUFFIXES)}, or a "
        f"SavedModel folder; found {describe(path)}"
    )
