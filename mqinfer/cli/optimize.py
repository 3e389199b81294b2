"""`mqinfer models optimize`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from mqinfer.cli.options import Verbose, set_up_logging
from mqinfer.models.repository import Repository
from mqinfer.protocol.errors import ConfigError

if TYPE_CHECKING:
    from mqinfer.lab.optimize import Sample

__all__ = ["optimize"]

_REPORTS = "reports"


def optimize(
    repository: Annotated[Path, typer.Argument(help="Folder of the model repository.")],
    model: Annotated[str, typer.Argument(help="Model to optimise.")],
    version: Annotated[int | None, typer.Option(help="The original; the one served by default otherwise.")] = None,
    to: Annotated[str, typer.Option(help="Of onnx, openvino.")] = "onnx,openvino",
    precision: Annotated[str, typer.Option(help="Of fp32, fp16, bf16 (OpenVINO), int8.")] = "fp32,bf16,int8",
    early_argmax: Annotated[
        bool, typer.Option("--early-argmax", help="Also products with the argmax before the last resize.")
    ] = False,
    calibrate: Annotated[
        str | None, typer.Option(help="Bag, video or folder of frames to calibrate and judge on.")
    ] = None,
    topic: Annotated[str | None, typer.Option(help="Image topic of the bag.")] = None,
    truth: Annotated[str | None, typer.Option(help="Topic of true class masks, such as /camera/labels.")] = None,
    samples: Annotated[Path | None, typer.Option(help="An .npz of arrays by input [samples, …], or a folder.")] = None,
    frames: Annotated[int, typer.Option(help="Samples: every other one calibrates, the rest judge.", min=2)] = 32,
    tolerance: Annotated[
        list[str] | None, typer.Option(help="agreement=0.99, loss=0.01, difference=0.001; may be repeated.")
    ] = None,
    rounds: Annotated[int, typer.Option(help="Turns of each version.", min=1)] = 5,
    seconds: Annotated[float, typer.Option(help="Length of a turn.", min=0.01)] = 0.3,
    promote: Annotated[bool, typer.Option("--promote", help="Make the best product the model's next version.")] = False,
    report: Annotated[Path | None, typer.Option(help="Folder of the report; MODEL/reports by default.")] = None,
    verbose: Verbose = False,
) -> None:
    """Make faster versions of a model, prove what they lose, and refuse those that lose too much."""
    from mqinfer.lab.optimize import OptimizeOptions, as_table, parse_tolerance, write_report
    from mqinfer.lab.optimize import optimize as run

    set_up_logging(verbose=verbose)
    options = OptimizeOptions(
        engines=to.split(","),
        precisions=precision.split(","),
        early=early_argmax,
        tolerance=parse_tolerance(tolerance or ()),
        rounds=rounds,
        seconds=seconds,
        promote=promote,
    )
    original = Repository(repository).find(model, version)
    given = _samples(calibrate, topic, truth, samples, frames)
    console = Console(stderr=True, highlight=False)
    found = run(original, options, given, calibrate or str(samples), say=lambda line: console.print(line, markup=False))
    table = Console()
    if not table.is_terminal:
        table.width = 250  # in a pipe no row is broken over two lines
    table.print(as_table(found))
    for path in write_report(found, report or repository / model / _REPORTS):
        typer.echo(f"wrote {path}")
    for each in found.kept:
        typer.echo(f"kept {each.folder}")
    if not found.kept:
        raise typer.Exit(1)


def _samples(
    bag: str | None, topic: str | None, truth: str | None, samples: Path | None, count: int
) -> tuple[Sample, ...]:
    from mqinfer.cli.samples import read_arrays, read_frames

    if bag is not None and samples is not None:
        raise ConfigError("give --calibrate or --samples, not both")
    if bag is not None:
        return read_frames(bag, topic, truth, count)
    if samples is None:
        return ()
    return read_arrays(samples, count) if samples.suffix == ".npz" else read_frames(str(samples), None, None, count)
