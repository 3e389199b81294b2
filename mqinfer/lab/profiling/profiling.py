"""One model, every back end that can run it, side by side: the measurement behind `mqinfer models profile`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from mqinfer.lab.optimize.machine import describe_machine
from mqinfer.lab.profiling.contenders import engines_for, find_contenders
from mqinfer.lab.profiling.inputs import RandomInputs
from mqinfer.lab.profiling.measure import Plan, measure
from mqinfer.lab.profiling.plot import draw
from mqinfer.lab.profiling.report import ModelProfile, as_csv
from mqinfer.lab.profiling.results import Profile
from mqinfer.models.repository import ModelVersion
from mqinfer.protocol.errors import ConfigError

__all__ = ["ProfileOptions", "profile", "write_profile"]


@dataclass(frozen=True, slots=True)
class ProfileOptions:
    """What is measured, and how.

    Attributes:
        plan: Batch sizes, rounds, lengths.
        backends: Names with commas between them; None for all.
        device: `cpu`, `cuda`, `cuda:N` or `auto`.
        inputs: What the model is given.
    """

    plan: Plan = field(default_factory=lambda: Plan((1, 2, 4, 8, 16, 32, 64)))
    backends: str | None = None
    device: str = "cpu"
    inputs: RandomInputs = field(default_factory=RandomInputs)


def profile(model: ModelVersion, options: ProfileOptions, say: Callable[[str], None] = lambda _: None) -> ModelProfile:
    """Measure a model in the back ends.

    Args:
        model: Of a repository.
        options: What, and how.
        say: Told what is going on, in lines.

    Raises:
        ConfigError: The options, or the model's configuration, are wrong.
    """
    engines = engines_for(options.backends)
    with TemporaryDirectory(prefix="mqinfer-profile-") as folder:
        found = find_contenders(model, engines, Path(folder), device=options.device, say=say)
        subjects = [replace(each, inputs=options.inputs) for each in found.subjects]
        measured = {each.name: each for each in measure(subjects, options.plan, say)}
    profiles = tuple(measured.get(name) or Profile(name, problem=found.reasons[name]) for name in engines)
    return ModelProfile(model.name, model.version, profiles, describe_machine())


def write_profile(found: ModelProfile, directory: Path) -> tuple[Path, ...]:
    """Write `MODEL-VERSION.csv` and, where something ran, `MODEL-VERSION.png`.

    Raises:
        ConfigError: The directory can't be written.
        MissingExtra: matplotlib is not installed.
    """
    table = directory / f"{found.model}-{found.version}.csv"
    written = [table]
    try:
        directory.mkdir(parents=True, exist_ok=True)
        table.write_text(as_csv(found), encoding="utf-8")
        if found.base:
            written.append(table.with_suffix(".png"))
            draw(found, written[-1])
    except OSError as error:
        raise ConfigError(f"cannot write to {directory}: {error.strerror or error}; name another folder") from error
    return tuple(written)
