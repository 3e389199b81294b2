"""From a model version on the disk to a back end in memory and the card that describes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path

from mqinfer.models.backend import Backend
from mqinfer.models.card import make_card
from mqinfer.models.config import InstanceKind, ModelConfig, TensorConfig
from mqinfer.models.device import DeviceWish, parse_device
from mqinfer.models.load_options import LoadOptions, Stated, default_threads
from mqinfer.models.model_file import check_model_files, describe
from mqinfer.models.repository import ModelVersion
from mqinfer.protocol.card import ModelCard
from mqinfer.protocol.errors import ConfigError, ModelNotLoadable

__all__ = ["BACKENDS", "LoadedModel", "load_model", "load_options", "platform_of"]

Loader = Callable[[Path, LoadOptions], Backend]

BACKENDS: Mapping[str, str] = {
    "onnx_onnxv1": "mqinfer.models.backends.onnx:load",
    "tensorflow_graphdef": "mqinfer.models.backends.frozen_graph:load",
    "tensorflow_savedmodel": "mqinfer.models.backends.saved_model:load",
    "mqinfer_echo": "mqinfer.models.echo:load",
}
"""Platform to loader; further ones come from the entry-point group `mqinfer.backends`."""

_PLATFORMS = {
    ".onnx": "onnx_onnxv1",
    ".pb": "tensorflow_graphdef",
    ".graphdef": "tensorflow_graphdef",
    ".echo": "mqinfer_echo",
}
_ENGINES = ("onnxruntime", "tensorflow")  # Triton's `backend` names: the file's name tells the rest


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model in memory, its card, and its configuration."""

    backend: Backend
    card: ModelCard
    config: ModelConfig


def load_model(model: ModelVersion, *, device: str = "auto", versions: Sequence[int] = ()) -> LoadedModel:
    """Load one version of a model.

    Args:
        model: From `Repository.models()`.
        device: `cpu`, `cuda`, `cuda:N`, or `auto`: what `instance_group` says, and without that a GPU where the
            engine really offers one. A GPU that isn't there gives a log line and the CPU; the card says what runs.
        versions: All versions of the model that are served, for the card.

    Raises:
        ModelNotLoadable: With the path, what was found, and what to do.
        ConfigError: `model.toml` or `device` is wrong.
        MissingExtra: The engine is not installed.
    """
    try:
        return _load(model, device, versions)
    except ConfigError as error:
        raise ConfigError(f"model {model.name} version {model.version}: {error}") from error


def _load(model: ModelVersion, device: str, versions: Sequence[int]) -> LoadedModel:
    check_model_files(model.path)
    load = _loader(platform_of(model.path, model.config.backend))
    backend = load(model.path, load_options(model.config, device))
    with ExitStack() as unless_complete:
        unless_complete.callback(backend.close)
        loaded = LoadedModel(backend, make_card(model, backend, versions), model.config)
        unless_complete.pop_all()
    return loaded


def platform_of(path: Path, stated: str | None = None) -> str:
    """Tell a model's platform from its file's name, unless `model.toml` states one.

    Raises:
        ModelNotLoadable: No back end reads such a file.
    """
    if stated is not None and stated not in _ENGINES:
        return stated
    platform = "tensorflow_savedmodel" if path.is_dir() else _PLATFORMS.get(path.suffix)
    if platform is None:
        raise ModelNotLoadable(
            f"{path}: no back end reads {path.suffix or 'such'} files; known are {', '.join(_PLATFORMS)} and "
            f"SavedModel folders; found {describe(path)}"
        )
    return platform


def _loader(platform: str) -> Loader:
    plugins = {entry.name: entry.value for entry in entry_points(group="mqinfer.backends")}
    if twice := sorted(plugins.keys() & BACKENDS.keys()):
        raise ConfigError(f"back end {twice[0]!r} is mqinfer's own and also registered by an installed package")
    target = (plugins | dict(BACKENDS)).get(platform)
    if target is None:
        raise ConfigError(f"back end {platform!r} is unknown; there are {', '.join([*BACKENDS, *plugins])}")
    module, _, function = target.partition(":")
    loader: Loader = getattr(import_module(module), function)
    return loader


def load_options(config: ModelConfig, device: str = "auto") -> LoadOptions:
    """Turn a configuration into what back ends are told.

    Raises:
        ConfigError: `device`, `parameters.signature` or `parameters.intra_op_thread_count` is wrong.
    """
    threads = config.parameters.get("intra_op_thread_count", 0)
    if not str(threads).isdecimal():  # Triton's parameters are strings
        raise ConfigError(f"model.toml: parameters.intra_op_thread_count = {threads!r}: must be a whole number")
    signature = config.parameters.get("signature")
    batched = bool(config.max_batch_size)
    return LoadOptions(
        device=_wish(config, device),
        threads=int(threads) or default_threads(),
        signature=None if signature is None else str(signature),
        inputs=_stated(config.input, batched=batched),
        outputs=_stated(config.output, batched=batched),
    )


def _wish(config: ModelConfig, device: str) -> DeviceWish:
    group = config.instance_group
    if device != "auto" or group.kind is InstanceKind.AUTO:
        return parse_device(device)
    return DeviceWish(gpu=group.kind is InstanceKind.GPU, index=group.gpus[0] if group.gpus else 0)


def _stated(tensors: Sequence[TensorConfig], *, batched: bool) -> dict[str, Stated]:
    batch_axis = (-1,) if batched else ()
    return {
        tensor.name: Stated(None if tensor.dims is None else batch_axis + tensor.dims, tensor.data_type)
        for tensor in tensors
    }
