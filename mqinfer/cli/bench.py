"""`mqinfer bench`: measures batching, encodings and segmentation on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mqinfer.bench.batching import BatchingOptions, measure_batching
from mqinfer.bench.batching_report import print_batching, write_batching
from mqinfer.bench.encodings.measure import EncodingsOptions, measure_encodings
from mqinfer.bench.encodings.report import draw, grid_of
from mqinfer.bench.segmentation import measure_segmentation, print_shares
from mqinfer.bench.workloads import WORKLOADS
from mqinfer.cli.options import table_console
from mqinfer.edge_agent.output_files import writing
from mqinfer.lab.reports import as_json, check_plots, print_grid
from mqinfer.protocol.errors import ConfigError

_BATCHING = BatchingOptions()


app = typer.Typer(
    help="Measure batching, encodings of frames, and versions of a segmentation model.", no_args_is_help=True
)


@app.command()
def batching(
    workload: Annotated[str, typer.Option(help="Model to batch: classifier, small or vae.")] = _BATCHING.workload,
    rounds: Annotated[int, typer.Option(help="Turns of each setting at each load.", min=1)] = _BATCHING.rounds,
    seconds: Annotated[float, typer.Option(help="Length of each turn, in seconds.", min=0.1)] = _BATCHING.seconds,
    callers: Annotated[list[int], typer.Option(help="Requests at a time; may be repeated.")] = _BATCHING.callers,  # type: ignore[assignment] # typer's way to several values
    delay_us: Annotated[int, typer.Option(help="Queue delay of fixed sizes, in microseconds.")] = _BATCHING.delay_us,
    output: Annotated[
        Path | None, typer.Option(help="Folder for the figures as JSON and the tables as Markdown.")
    ] = None,
) -> None:
    """Measure batching: no batches, fixed sizes and the adaptive setting, in turns in one run through a broker."""
    if workload not in WORKLOADS:
        raise ConfigError(f"unknown workload {workload!r}; expected one of {', '.join(WORKLOADS)}")
    options = BatchingOptions(workload, rounds, seconds, callers=tuple(callers), delay_us=delay_us)
    console = table_console()
    measurement = measure_batching(options, lambda line: console.print(line, style="dim"))
    print_batching(measurement, console)
    if output is not None:
        for path in write_batching(measurement, output):
            console.print(f"wrote {path}")


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
    if plot:
        check_plots()
    measured = measure_encodings(chosen, lambda line: typer.echo(line, err=True))
    print_grid(grid_of(measured), table_console())
    if json:
        with writing(json):
            json.write_text(as_json(measured), encoding="utf-8")
    if plot:
        with writing(plot):
            draw(measured, plot)


@app.command()
def segmentation(
    repository: Annotated[Path, typer.Option(help="Folder of the model repository.")],
    model: Annotated[str, typer.Option(help="Segmentation model; its version_policy must serve the versions.")],
    before: Annotated[int, typer.Option(help="Version to compare the others with.")],
    after: Annotated[list[int], typer.Option(help="Version to compare; may be repeated.")],
    rounds: Annotated[int, typer.Option(help="Pictures for each version.", min=1)] = 5,
) -> None:
    """Compare where a worker's time goes for versions of a segmentation model: logits, fused argmax."""
    console = table_console()
    measured = measure_segmentation(
        repository, model, [before, *after], rounds, lambda line: console.print(line, style="dim")
    )
    print_shares(measured, console)
