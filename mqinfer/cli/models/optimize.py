"""`mqinfer models optimize`: faster versions of a model, with their loss measured."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mqinfer.cli.options import plain_console, table_console
from mqinfer.models.repository import Repository
from mqinfer.protocol.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from mqinfer.lab.optimize.samples import Sample
    from mqinfer.models.repository import ModelVersion

_REPORTS = "reports"


def optimize(
    repository: Annotated[Path, typer.Argument(help="Model repository: a folder of MODEL/VERSION/FILE.")],
    model: Annotated[str, typer.Argument(help="Model to optimise.")],
    version: Annotated[int | None, typer.Option(help="Version to optimise; the default version if omitted.")] = None,
    to: Annotated[
        str, typer.Option(help="Engines to optimise for, separated by commas: onnx, openvino.")
    ] = "onnx,openvino",
    precision: Annotated[
        str, typer.Option(help="Precisions to try, separated by commas: fp32, fp16, bf16 (OpenVINO), int8.")
    ] = "fp32,bf16,int8",
    early_argmax: Annotated[
        bool, typer.Option("--early-argmax", help="Also try versions that take the argmax before the last resize.")
    ] = False,
    calibrate: Annotated[
        str | None, typer.Option(help="Bag, video or folder of frames for calibration and comparison.")
    ] = None,
    topic: Annotated[str | None, typer.Option(help="Image topic in the bag.")] = None,
    truth: Annotated[
        str | None, typer.Option(help="Topic of the ground-truth class masks, such as /camera/labels.")
    ] = None,
    samples: Annotated[
        Path | None,
        typer.Option(
            help="Samples instead of --calibrate: an .npz of arrays [samples, ...] by input, or a folder of pictures."
        ),
    ] = None,
    frames: Annotated[int, typer.Option(help="Samples to use: half for calibration, half for comparison.", min=2)] = 32,
    tolerance: Annotated[
        list[str] | None,
        typer.Option(help="Largest loss, such as agreement=0.99, loss=0.01 or difference=0.001; may be repeated."),
    ] = None,
    rounds: Annotated[int, typer.Option(help="Measurements of each version.", min=1)] = 5,
    seconds: Annotated[float, typer.Option(help="Seconds of each measurement.", min=0.01)] = 0.3,
    promote: Annotated[
        bool, typer.Option("--promote", help="Add the best result to the repository as the model's next version.")
    ] = False,
    report: Annotated[Path | None, typer.Option(help="Folder for the report; MODEL/reports by default.")] = None,
    cut: Annotated[
        str | None,
        typer.Option(
            help="Cut it in two instead, at these tensors, separated by commas, or auto: MODEL-head, MODEL-tail, and "
            "MODEL-parts, an ensemble of both."
        ),
    ] = None,
) -> None:
    """Make faster versions of a model, measure what they lose, and drop those that lose too much."""
    from mqinfer.lab.optimize.optimising import OptimizeOptions
    from mqinfer.lab.optimize.optimising import optimize as run
    from mqinfer.lab.optimize.parity import parse_tolerance
    from mqinfer.lab.optimize.results import as_grid, write_report
    from mqinfer.lab.reports import print_grid

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
    console = plain_console(stderr=True)
    if cut is not None:
        _cut(original, cut, given, console.print)
        return
    found = run(original, options, given, calibrate or str(samples), progress=console.print)
    print_grid(as_grid(found), table_console())
    for path in write_report(found, report or repository / model / _REPORTS):
        typer.echo(f"wrote {path}")
    for each in found.kept:
        typer.echo(f"kept {each.folder}")
    if not found.kept:
        raise typer.Exit(1)


def _cut(original: ModelVersion, where: str, samples: tuple[Sample, ...], progress: Callable[[str], None]) -> None:
    from mqinfer.lab.optimize.cutting import cut

    found = cut(original, where.split(","), samples, progress)
    typer.echo(f"cut at {', '.join(found.tensors)}: {found.crossing} bytes a row cross")
    for name, weights in zip(found.models, found.weights, strict=False):
        typer.echo(f"{name}: {weights / 1e6:.1f} MB of weights")
    same = (
        f"differs by {found.difference:.2g} of the largest value" if found.difference else "answers the same to the bit"
    )
    typer.echo(f"{found.models[2]}, the ensemble of both, {same}")


def _samples(
    bag: str | None, topic: str | None, truth: str | None, samples: Path | None, count: int
) -> tuple[Sample, ...]:
    from mqinfer.cli.samples import read_arrays, read_frames

    if bag is not None and samples is not None:
        raise ConfigError("use either --calibrate or --samples, not both")
    if bag is not None:
        return read_frames(bag, topic, truth, count)
    if samples is None:
        return ()
    return read_arrays(samples, count) if samples.suffix == ".npz" else read_frames(str(samples), None, None, count)
