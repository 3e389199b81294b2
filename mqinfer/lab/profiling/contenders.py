"""Which engines can run a model, as it is or converted to ONNX, and why the others can't."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mqinfer.lab.optimize.machine import describe_machine
from mqinfer.lab.profiling.measure import Subject
from mqinfer.models.engines import BACKENDS, platform_of
from mqinfer.models.loading import load_options
from mqinfer.models.repository import ModelVersion
from mqinfer.protocol.errors import ConfigError, MqinferError

__all__ = ["Contenders", "engines_for", "find_contenders"]

_ENGINES = ("tensorflow", "onnxruntime", "openvino", "pytorch")
_ALIASES = {"torchscript": "pytorch", "onnx": "onnxruntime"}
_PRECISIONS = ("bf16", "fp16")


@dataclass(frozen=True, slots=True)
class Contenders:
    """What is measured, and what can't be.

    Attributes:
        subjects: In the order in which the engines were named.
        reasons: By engine, of those that can't run the model.
    """

    subjects: tuple[Subject, ...]
    reasons: dict[str, str]


def engines_for(names: str | None) -> tuple[str, ...]:
    """Read a list of engines.

    Args:
        names: With commas between them, a precision behind a colon (`openvino:bf16`); None for all, OpenVINO in bf16
            too where the processor has it.

    Raises:
        ConfigError: There is no such engine or precision.
    """
    if names is None:
        return (*_ENGINES, "openvino:bf16") if "bf16" in describe_machine()["units"] else _ENGINES
    wanted = tuple(_canonical(name.strip()) for name in names.split(","))
    if len(set(wanted)) < len(wanted):
        raise ConfigError(f"back ends {names!r}: one is named twice")
    return wanted


def _canonical(name: str) -> str:
    engine, colon, precision = name.partition(":")
    engine = _ALIASES.get(engine, engine)
    if engine not in _ENGINES:
        raise ConfigError(f"back end {engine!r}: there are {', '.join((*_ENGINES, *_ALIASES))}")
    if colon and (engine != "openvino" or precision not in _PRECISIONS):
        raise ConfigError(f"back end {name!r}: a precision goes with openvino only, and is one of bf16, fp16")
    return engine + colon + precision


def find_contenders(
    model: ModelVersion,
    engines: Sequence[str],
    folder: Path,
    *,
    device: str = "cpu",
    say: Callable[[str], None] = lambda _: None,
) -> Contenders:
    """Find out how each engine gets at a model.

    Args:
        model: Of a repository.
        engines: As `engines_for` gives them.
        folder: For what is converted; needed as long as the subjects are.
        device: `cpu`, `cuda`, ….
        say: Told of a conversion, which may take a while.

    Raises:
        ConfigError: The model's configuration or `device` is wrong.
    """
    if model.config.ensemble_scheduling:
        raise ConfigError(f"model {model.name} is an ensemble; profile its steps")
    platform = platform_of(model.path, model.config.backend)
    options = load_options(model.config, device)
    found = Contenders((), {})
    for name in engines:
        engine, _, precision = name.partition(":")
        path = _way(model, platform, engine, folder, say)
        if isinstance(path, str):
            found = replace(found, reasons={**found.reasons, name: path})
            continue
        own = replace(options, parameters={**options.parameters, "precision": precision}) if precision else options
        subject = Subject(name, path, engine, own)
        found = replace(found, subjects=(*found.subjects, subject))
    return found


def _way(model: ModelVersion, platform: str, engine: str, folder: Path, say: Callable[[str], None]) -> Path | str:
    """Give the file that an engine reads, or the reason why there is none."""
    if engine in BACKENDS.get(platform, {}):
        return model.path
    if engine not in BACKENDS["onnx_onnxv1"]:
        return f"{engine} does not read {platform} files"
    try:
        return _converted(model, folder, say)
    except MqinferError as error:
        return f"{engine} reads no {platform} files, and conversion to ONNX failed: {error}"


def _converted(model: ModelVersion, folder: Path, say: Callable[[str], None]) -> Path:
    from mqinfer.lab.optimize.running import card_of
    from mqinfer.lab.optimize.source import to_onnx

    path = folder / "model.onnx"
    if not path.exists():
        say("converting to ONNX")
        path.write_bytes(to_onnx(model, card_of(model)).SerializeToString())
    return path
