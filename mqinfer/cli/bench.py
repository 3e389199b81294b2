"""`mqinfer bench`: measures the path, unless another measurement is named."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from mqinfer.bench import BatchingOptions, PathOptions, run, run_batching, run_calls
from mqinfer.bench.encodings.measure import EncodingsOptions, measure_encodings
from mqinfer.bench.encodings.report import as_json, draw, grid_of
from mqinfer.bench.faults import as_markdown
from mqinfer.bench.faults.soak import SoakOptions
from mqinfer.bench.faults.soak import soak as run_soak
from mqinfer.bench.grid import print_grid
from mqinfer.bench.noscope import NoScopeOptions, run_noscope
from mqinfer.bench.segmentation import measure_segmentation, print_shares
from mqinfer.bench.workloads import WORKLOADS
from mqinfer.cli.options import table_console
from mqinfer.edge_agent.sinks.sink import set_aside, writing
from mqinfer.lab.cascade.calibration import Goal
from mqinfer.protocol.errors import ConfigError

__all__ = ["app"]

_PATH = PathOptions()
_BATCHING = BatchingOptions()
_SOAK = SoakOptions()
_NOSCOPE = NoScopeOptions()

Output = Annotated[Path | None, typer.Option(help="Folder for the figures as JSON and the tables as Markdown.")]


class _PathByDefault(TyperGroup):
    """Read `mqinfer bench --rounds 3` as `mqinfer bench path --rounds 3`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # a context of click's, which typer may bring along
        if not args or (args[0] not in self.commands and args[0] not in ctx.help_option_names):
            args = ["path", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    help="Measure the path (the default), calls, batching, codecs, faults, segmentation and a cascade.",
    cls=_PathByDefault,
)


@app.command()
def path(
    rounds: Annotated[int, typer.Option(help="Turns of each contestant.", min=1)] = _PATH.rounds,
    seconds: Annotated[float, typer.Option(help="Length of each turn, in seconds.", min=0.1)] = _PATH.seconds,
    callers: Annotated[int, typer.Option(help="Requests at a time.", min=2)] = _PATH.callers,
    workload: Annotated[
        list[str] | None,
        typer.Option(help=f"Model to measure: {', '.join(WORKLOADS)}; may be repeated. All by default."),
    ] = None,
    tls: Annotated[bool, typer.Option(help="Measure gRPC and mqinfer over TLS too.")] = _PATH.tls,
    calls: Annotated[bool, typer.Option(help="Count the calls of a request too.")] = _PATH.calls,
    output: Output = None,
) -> None:
    """Measure the path against a bare gRPC server, bare MQTT sockets and a loop in the process, in turns in one run."""
    unknown = sorted(set(workload or ()) - set(WORKLOADS))
    if unknown:
        raise ConfigError(f"unknown workload {', '.join(unknown)}; expected one of {', '.join(WORKLOADS)}")
    options = PathOptions(rounds, seconds, callers, tls=tls, calls=calls)
    run(options, workload or tuple(WORKLOADS), output=output, console=table_console())


@app.command()
def calls(output: Annotated[Path | None, typer.Option(help="Folder for the names as JSON.")] = None) -> None:
    """Count calls, files, classes, functions and threads that a request and a replayed frame pass through."""
    run_calls(output=output, console=table_console())


@app.command()
def batching(
    workload: Annotated[str, typer.Option(help="Model to batch: classifier, small or vae.")] = _BATCHING.workload,
    rounds: Annotated[int, typer.Option(help="Turns of each setting at each load.", min=1)] = _BATCHING.rounds,
    seconds: Annotated[float, typer.Option(help="Length of each turn, in seconds.", min=0.1)] = _BATCHING.seconds,
    callers: Annotated[list[int], typer.Option(help="Requests at a time; may be repeated.")] = _BATCHING.callers,  # type: ignore[assignment] # typer's way to several values
    delay_us: Annotated[int, typer.Option(help="Queue delay of fixed sizes, in microseconds.")] = _BATCHING.delay_us,
    output: Output = None,
) -> None:
    """Measure batching: no batches, fixed sizes and the adaptive setting, in turns in one run through a broker."""
    if workload not in WORKLOADS:
        raise ConfigError(f"unknown workload {workload!r}; expected one of {', '.join(WORKLOADS)}")
    options = BatchingOptions(workload, rounds, seconds, callers=tuple(callers), delay_us=delay_us)
    run_batching(options, output=output, console=table_console())


@app.command()
def codecs(
    source: Annotated[str, typer.Argument(help="Bag, video or folder of pictures.")],
    model: Annotated[str, typer.Option(help="Model that gets the frames.")],
    repository: Annotated[Path, typer.Option(help="Folder of the model repository.")] = Path("models"),
    topic: Annotated[str | None, typer.Option(help="Image topic; by default the first.")] = None,
    encoding: Annotated[
        list[str] | None, typer.Option(help="Encoding to measure, such as jpeg:90; may be repeated. All by default.")
    ] = None,
    frames: Annotated[int, typer.Option(help="Number of frames.", min=2)] = 20,
    link_mbit: Annotated[
        float, typer.Option(help="Measure over a link of so many Mbit/s too; 0 for none.", min=0)
    ] = 0.0,
    seconds: Annotated[float, typer.Option(help="Length of each turn over that link, in seconds.", min=1)] = 15.0,
    json: Annotated[Path | None, typer.Option(help="File for the figures as JSON.")] = None,
    plot: Annotated[Path | None, typer.Option(help="File for a plot, .svg or .png.")] = None,
) -> None:
    """Measure the encodings of frames: bytes, time, PSNR, the model's answers, and what a thin link lets through."""
    chosen = EncodingsOptions(
        source, repository, model, topic, tuple(encoding or ()), frames, link_mbit=link_mbit, seconds=seconds
    )
    measured = measure_encodings(chosen, lambda line: typer.echo(line, err=True))
    print_grid(grid_of(measured), table_console())
    if json:
        with writing(json):
            json.write_text(as_json(measured), encoding="utf-8")
    if plot:
        with writing(plot):
            draw(measured, plot)


@app.command()
def soak(
    minutes: Annotated[float, typer.Option(help="How long to apply load, in minutes.", min=0.1)] = _SOAK.seconds / 60,
    every: Annotated[float, typer.Option(help="Least time between faults, in seconds.", min=1)] = _SOAK.every,
    rate: Annotated[float, typer.Option(help="Requests a second, at most 150.", min=1)] = _SOAK.rate,
    seed: Annotated[int, typer.Option(help="Seed for the random faults.")] = _SOAK.seed,
    output: Annotated[Path | None, typer.Option(help="Markdown file for the table.")] = None,
) -> None:
    """Apply load and random faults: kills, halts, cuts and delays. Fails unless each request has one outcome."""
    figures = run_soak(SoakOptions(minutes * 60, every, rate, seed), lambda fault: typer.echo(fault, err=True))
    table = as_markdown(figures)
    typer.echo(table)
    if output:
        with writing(output):
            set_aside(output)
            output.write_text(table, encoding="utf-8")
    if any(figure.passed is False for figure in figures):
        raise typer.Exit(1)


@app.command()
def segmentation(
    repository: Annotated[Path, typer.Option(help="Folder of the model repository.")],
    model: Annotated[str, typer.Option(help="Segmentation model; its version_policy must serve the versions.")],
    before: Annotated[int, typer.Option(help="Version to compare the others with.")],
    after: Annotated[list[int], typer.Option(help="Version to compare; may be repeated.")],
    rounds: Annotated[int, typer.Option(help="Pictures for each version.", min=1)] = _PATH.rounds,
) -> None:
    """Compare where a worker's time goes for versions of a segmentation model: logits, fused argmax."""
    console = table_console()
    measured = measure_segmentation(
        repository, model, [before, *after], rounds, lambda line: console.print(line, style="dim")
    )
    print_shares(measured, console)


@app.command()
def noscope(
    frames: Annotated[int, typer.Option(help="Frames that each setting gets.", min=1)] = _NOSCOPE.frames,
    training: Annotated[
        int, typer.Option(help="Frames before them to train the small model with.", min=20)
    ] = _NOSCOPE.training,
    calibration: Annotated[
        int, typer.Option(help="Frames between these to choose the thresholds with.", min=40)
    ] = _NOSCOPE.calibration,
    side: Annotated[int, typer.Option(help="Side of the pictures, in pixels; a multiple of 32.")] = _NOSCOPE.side,
    rate: Annotated[float, typer.Option(help="Frames a second of the camera.", min=0.1)] = _NOSCOPE.rate,
    seed: Annotated[int, typer.Option(help="Seed of the street.", min=0)] = _NOSCOPE.seed,
    confidence: Annotated[
        float, typer.Option(help="Of the thresholds' accuracy; 0.5 for thresholds that promise nothing.")
    ] = _NOSCOPE.goal.confidence,
    repository: Annotated[
        Path | None, typer.Option(help="Model repository whose model 'reference' is used; one is made by default.")
    ] = None,
    output: Output = None,
) -> None:
    """Measure NoScope's experiment: a cascade on an edge with one core, YOLOv2 in the cloud, cars in a street.

    It takes the reference's time for about six times the frames, and for those of training and calibration.
    """
    options = NoScopeOptions(frames, training, calibration, side, rate, seed, Goal(confidence=confidence))
    run_noscope(options, repository=repository, output=output, console=table_console())
