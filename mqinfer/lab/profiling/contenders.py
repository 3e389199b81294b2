"""Finds the engines that can run a model, directly or converted to ONNX, and why the others can't."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from mqinfer.lab.conversion import to_onnx
from mqinfer.lab.machine import ENGINES, describe_machine
from mqinfer.lab.model_process import card_of
from mqinfer.lab.profiling.child import Subject
from mqinfer.models.engines import BACKENDS, platform_of
from mqinfer.models.loading import load_options
from mqinfer.models.repository import ModelVersion
from mqinfer.protocol.errors import ConfigError, MqinferError

_ENGINES = ("tensorflow", "onnxruntime", "openvino", "pytorch")
_ALIASES = {"torchscript": "pytorch", "onnx": "onnxruntime"}
_PRECISIONS = ("bf16", "fp16")


def engines_for(names: str | None) -> tuple[str, ...]:
    """Parse a list of engines.

    Args:
        names: Engines separated by commas, with an optional precision after a colon (`openvino:bf16`); None for all,
            with OpenVINO in bf16 too if the processor supports it.

    Raises:
        ConfigError: An engine or precision is unknown.
    """
    if names is None:
        return (*_ENGINES, "openvino:bf16") if "bf16" in describe_machine(ENGINES)["units"] else _ENGINES
    wanted = tuple(_canonical(name.strip()) for name in names.split(","))
    if len(set(wanted)) < len(wanted):
        raise ConfigError(f"backends {names!r}: an entry is repeated")
    return wanted


def _canonical(name: str) -> str:
    engine, colon, precision = name.partition(":")
    engine = _ALIASES.get(engine, engine)
    if engine not in _ENGINES:
        raise ConfigError(f"unknown backend {engine!r}; expected one of {', '.join((*_ENGINES, *_ALIASES))}")
    if colon and (engine != "openvino" or precision not in _PRECISIONS):
        raise ConfigError(f"backend {name!r}: only openvino has a precision, bf16 or fp16")
    return engine + colon + precision


def find_contenders(
    model: ModelVersion,
    engines: Sequence[str],
    folder: Path,
    *,
    device: str = "cpu",
    progress: Callable[[str], None] = lambda _: None,
) -> tuple[list[Subject], dict[str, str]]:
    """Return a subject for each engine, converting to ONNX where needed, and why the other engines can't run the model.

    Args:
        model: Version in a repository.
        engines: Result of `engines_for`.
        folder: Folder for a converted model; needed as long as the subjects are.
        device: `cpu`, `cuda` or `cuda:N`.
        progress: Called with a line before a conversion.

    Raises:
        ConfigError: The model's configuration or `device` is wrong.
    """
    if model.config.ensemble_scheduling:
        raise ConfigError(f"model {model.name} is an ensemble; profile its steps")
    platform = platform_of(model.path, model.config.backend)
    options = load_options(model.config, device)
    subjects: list[Subject] = []
    reasons: dict[str, str] = {}
    for name in engines:
        engine, _, precision = name.partition(":")
        path = _file_for(model, platform, engine, folder, progress)
        if isinstance(path, str):
            reasons[name] = path
            continue
        own = replace(options, parameters={**options.parameters, "precision": precision}) if precision else options
        subjects.append(Subject(name, path, engine, own))
    return subjects, reasons


def _file_for(
    model: ModelVersion, platform: str, engine: str, folder: Path, progress: Callable[[str], None]
) -> Path | str:
    """Return the file that an engine can read, or the reason why there is none."""
    if engine in BACKENDS.get(platform, {}):
        return model.path
    if engine not in BACKENDS["onnx_onnxv1"]:
        return f"{engine} does not read {platform} files"
    try:
        return _converted(model, folder, progress)
    except MqinferError as error:
        return f"{engine} does not read {platform} files, and their conversion to ONNX failed: {error}"


def _converted(model: ModelVersion, folder: Path, progress: Callable[[str], None]) -> Path:
    path = folder / "model.onnx"
    if not path.exists():
        progress("converting to ONNX")
        path.write_bytes(to_onnx(model, card_of(model)).SerializeToString())
    return path
