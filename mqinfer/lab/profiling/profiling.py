"""Measures a model in every backend that can run it, side by side, for `mqinfer models profile`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from mqinfer.edge_agent.output_files import set_aside, writing
from mqinfer.lab.machine import ENGINES, describe_machine
from mqinfer.lab.profiling.child import Plan
from mqinfer.lab.profiling.contenders import engines_for, find_contenders
from mqinfer.lab.profiling.inputs import InputSource
from mqinfer.lab.profiling.measure import measure
from mqinfer.lab.profiling.plot import draw
from mqinfer.lab.profiling.report import ModelProfile, as_csv
from mqinfer.lab.profiling.results import Profile
from mqinfer.lab.reports import write_files
from mqinfer.models.repository import ModelVersion


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
    with writing(plot):
        set_aside(plot)
        draw(found, plot)
    return (*written, plot)
