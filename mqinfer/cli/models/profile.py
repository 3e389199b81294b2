"""`mqinfer models profile`: latency, throughput and memory of a model by batch size."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mqinfer.cli.options import numbers, plain_console, table_console
from mqinfer.models.repository import Repository
from mqinfer.protocol.errors import ConfigError


def profile(
    repository: Annotated[Path, typer.Argument(help="Model repository: a folder of MODEL/VERSION/FILE.")],
    model: Annotated[str, typer.Argument(help="Model to measure.")],
    version: Annotated[int | None, typer.Option(help="Version to measure; the default version if omitted.")] = None,
    batch: Annotated[
        str, typer.Option(help="Batch sizes to measure, ascending, separated by commas.")
    ] = "1,2,4,8,16,32,64",
    backend: Annotated[
        str | None,
        typer.Option(
            help="Backend to measure: tensorflow, onnxruntime, openvino[:bf16] or torchscript; all by default."
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="Device: cpu, cuda, cuda:N or auto.")] = "cpu",
    shape: Annotated[
        list[str] | None,
        typer.Option(help="Shape of an input with dynamic axes, such as NAME=1,480,640,3; may be repeated."),
    ] = None,
    rounds: Annotated[int, typer.Option(help="Measurements of each backend at each batch size.", min=1)] = 5,
    seconds: Annotated[float, typer.Option(help="Seconds of each measurement.", min=0.001)] = 0.3,
    output: Annotated[Path | None, typer.Option(help="Folder for the figures (CSV) and the plot.")] = None,
) -> None:
    """Measure a model's latency, throughput and memory by batch size, in every backend that can run it."""
    from mqinfer.lab.profiling import profiling as run
    from mqinfer.lab.profiling.child import Plan
    from mqinfer.lab.profiling.inputs import RandomInputs
    from mqinfer.lab.profiling.report import as_grids
    from mqinfer.lab.profiling.verdicts import verdicts
    from mqinfer.lab.reports import check_plots, print_grid
    from mqinfer.lab.zoo.jet_plots import draw_autoencoder

    plan = Plan(numbers("--batch", [batch], int), rounds, seconds)
    inputs = RandomInputs(dict(map(_named_shape, shape or ())))
    if output:
        check_plots()
    console = plain_console(stderr=True)
    chosen = Repository(repository).find(model, version)
    found = run.profile(chosen, plan, backends=backend, device=device, inputs=inputs, progress=console.print)
    for grid in as_grids(found):
        print_grid(grid, table_console())
    for sentence in verdicts(found):
        typer.echo(sentence)
    for path in (*run.write_profile(found, output), *draw_autoencoder(chosen, output)) if output else ():
        typer.echo(f"wrote {path}")
    if found.base is None:
        raise typer.Exit(1)


def _named_shape(text: str) -> tuple[str, tuple[int, ...]]:
    name, equals, sizes = text.rpartition("=")
    try:
        shape = tuple(map(int, sizes.split(",")))
    except ValueError:
        shape = ()
    if not (equals and shape):
        raise ConfigError(f"--shape {text!r}: expected NAME=1,480,640,3")
    return name, shape
