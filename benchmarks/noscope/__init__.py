"""NoScope's experiment: a cascade between an edge and the cloud, against the reference model on every frame."""

from __future__ import annotations

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console

from benchmarks.noscope.experiment import REFERENCE, measure, settings_of
from benchmarks.noscope.preparing import NoScopeOptions, prepare
from benchmarks.noscope.report import Measured, print_measured, write_measured
from mqinfer.lab.machine import describe_machine
from mqinfer.models.repository import Repository

__all__ = ["NoScopeOptions", "run_noscope"]


def run_noscope(
    options: NoScopeOptions,
    *,
    repository: Path | None = None,
    output: Path | None = None,
    console: Console | None = None,
) -> Measured:
    """Prepare and measure the experiment, print the tables and write the files.

    Args:
        options: Its size.
        repository: Model repository with a model `reference`, which is used; None to make one.
        output: Folder for `noscope.json` and `noscope.md`; None writes nothing.
        console: Where to print.

    Raises:
        MqinferError: A model can't be made or served, no thresholds keep the goal, or a frame has no answer.
    """
    console = console or Console()
    machine = describe_machine()

    def report(line: str) -> None:
        console.print(line, style="dim")

    with TemporaryDirectory(prefix="mqinfer-bench-") as temporary:
        folder = Path(temporary)
        models = folder / "models"
        models.mkdir()
        if repository is not None:
            Repository(repository).find(REFERENCE, None)
            shutil.copytree(repository / REFERENCE, models / REFERENCE)
        prepared = prepare(options, models, folder, report)
        turns = []
        settings = settings_of(prepared.cascade, options.replicas)
        for number, setting in enumerate([*settings, settings[0]]):
            turns.append(measure(setting, models, prepared.frames, folder / f"run-{number}"))
            report(f"  {setting.name}: {turns[-1].seconds:.1f} s")
    measured = Measured(prepared, tuple(turns), machine)
    print_measured(measured, console)
    if output is not None:
        for path in write_measured(measured, output):
            console.print(f"wrote {path}")
    return measured
