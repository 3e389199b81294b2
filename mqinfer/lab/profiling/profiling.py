"""Measures a model in every backend that can run it, directly or converted to ONNX, for `mqinfer models profile`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from mqinfer.lab.conversion import to_onnx
from mqinfer.lab.machine import ENGINES, describe_machine
from mqinfer.lab.model_process import card_of
from mqinfer.lab.profiling.child import Plan, Subject
from mqinfer.lab.profiling.inputs import InputSource
from mqinfer.lab.profiling.measure import measure
from mqinfer.lab.profiling.report import ModelProfile, as_csv, as_report
from mqinfer.lab.profiling.results import Profile
from mqinfer.lab.report_files import write_report
from mqinfer.lab.reports import write_files
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


def profile(  # noqa: PLR0913 - what a user chooses
    model: ModelVersion,
    plan: Plan,
    *,
    backends: str | None = None,
    device: str = "cpu",
    inputs: InputSource,
    progress: Callable[[str], None] = lambda _: None,
) -> ModelProfile:
    """Measure a model in its backends.

    Args:
        model: Version in a repository.
        plan: Batch sizes, rounds and durations.
        backends: Names separated by commas; None for all.
        device: `cpu`, `cuda`, `cuda:N` or `auto`.
        inputs: Source of the inputs.
        progress: Called with a line at each step.

    Raises:
        ConfigError: The options or the model's configuration are wrong.
    """
    engines = engines_for(backends)
    with TemporaryDirectory(prefix="mqinfer-profile-") as folder:
        subjects, reasons = find_contenders(model, engines, Path(folder), device=device, progress=progress)
        subjects = [replace(each, inputs=inputs) for each in subjects]
        measured = {each.name: each for each in measure(subjects, plan, progress)}
    profiles = tuple(measured.get(name) or Profile(name, problem=reasons[name]) for name in engines)
    return ModelProfile(model.name, model.version, profiles, describe_machine(ENGINES))


def write_profile(found: ModelProfile, directory: Path) -> tuple[Path, ...]:
    """Write `MODEL-VERSION.csv` and, if a backend ran the model, `MODEL-VERSION.png`; earlier ones are kept.

    Raises:
        ConfigError: The folder can't be written.
        MissingExtra: matplotlib is not installed.
    """
    name = f"{found.model}-{found.version}"
    written = write_files(directory, {f"{name}.csv": as_csv(found)})
    if not found.base:
        return written
    plot = directory / f"{name}.png"
    write_report(as_report(found), {"plot": plot})
    return (*written, plot)
