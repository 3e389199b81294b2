"""`mqinfer bench`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mqinfer.bench import PathOptions, run
from mqinfer.bench.workloads import WORKLOADS
from mqinfer.protocol.errors import ConfigError

__all__ = ["bench"]

_DEFAULTS = PathOptions()


def bench(
    rounds: Annotated[int, typer.Option(help="Turns of each contestant.", min=1)] = _DEFAULTS.rounds,
    seconds: Annotated[float, typer.Option(help="Length of each turn.", min=0.1)] = _DEFAULTS.seconds,
    callers: Annotated[int, typer.Option(help="Requests at a time.", min=2)] = _DEFAULTS.callers,
    workload: Annotated[list[str] | None, typer.Option(help=f"Of {', '.join(WORKLOADS)}; all by default.")] = None,
    output: Annotated[Path | None, typer.Option(help="Folder for bench.json and bench.md.")] = None,
) -> None:
    """Measure the path against a bare gRPC server and a loop in the process, side by side in one run."""
    unknown = sorted(set(workload or ()) - set(WORKLOADS))
    if unknown:
        raise ConfigError(f"there is no workload {', '.join(unknown)}; there are {', '.join(WORKLOADS)}")
    run(PathOptions(rounds, seconds, callers), workload or tuple(WORKLOADS), output=output)
