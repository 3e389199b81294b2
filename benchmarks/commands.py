"""The commands of `python -m benchmarks`: each measures, prints its tables, and writes files if asked."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from benchmarks.autoscale.real import Played, play_real, real_grid
from benchmarks.autoscale.tables import Run, chosen_grid, play, rules_grid
from benchmarks.batching import BatchingOptions, measure_batching
from benchmarks.calls import calls_grid, count_calls
from benchmarks.faults import as_markdown as faults_as_markdown
from benchmarks.faults.soak import SoakOptions
from benchmarks.faults.soak import soak as run_soak
from benchmarks.golden import differences, figures_of, read_golden, write_golden
from benchmarks.relay import measure_relay
from benchmarks.scale import ScaleOptions, measure_scale, measure_states
from mqinfer.bench.workloads import WORKLOADS, check_workloads
from mqinfer.cli.bench import ReportFiles
from mqinfer.cli.exit_codes import exit_code, print_error
from mqinfer.cli.options import numbers, plain_console, table_console, with_group
from mqinfer.edge_agent.output_files import set_aside, writing
from mqinfer.lab.reports import as_json, as_markdown, print_grid, write_files
from mqinfer.lab.zoo import build
from mqinfer.protocol.errors import MqinferError

_BATCHING = BatchingOptions()
_SCALE = ScaleOptions()
_SOAK = SoakOptions()

Output = Annotated[Path | None, typer.Option(help="Folder for the figures as JSON and the tables as Markdown.")]
Models = Annotated[
    Path | None, typer.Option("--repository", help="Model repository with the workloads' models; made by default.")
]

app = typer.Typer(
    name="python -m benchmarks",
    help="Measure mqinfer itself: calls, batching, scaling, faults and the dashboard's relay.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode=None,
)


@app.command()
def calls(
    repository: Models = None,
    output: Annotated[Path | None, typer.Option(help="Folder for the names as JSON.")] = None,
    write: Annotated[bool, typer.Option("--write", help="Make these the golden figures, which a test holds.")] = False,
) -> None:
    """Count calls, files, classes, functions and threads that a request and a replayed frame pass through."""
    with _models(repository) as models:
        counted = count_calls(models)
    print_grid(calls_grid(counted), table_console())
    figures = figures_of(counted)
    if write:
        _print_paths([write_golden(figures)])
    for difference in differences(figures, read_golden()).values():
        typer.echo(difference)
    _print_paths(write_files(output, {"calls.json": as_json(counted)}) if output else ())


@app.command()
@with_group("files", ReportFiles)
def batching(
    files: ReportFiles,
    workload: Annotated[str, typer.Option(help="Model to batch: classifier, small or vae.")] = _BATCHING.workload,
    rounds: Annotated[int, typer.Option(help="Turns of each setting at each load.", min=1)] = _BATCHING.rounds,
    seconds: Annotated[float, typer.Option(help="Length of each turn, in seconds.", min=0.1)] = _BATCHING.seconds,
    callers: Annotated[str, typer.Option(help="Numbers of requests at a time, separated by commas.")] = "1,4,8,16",
    delay_us: Annotated[int, typer.Option(help="Queue delay of fixed sizes, in microseconds.")] = _BATCHING.delay_us,
) -> None:
    """Measure batching: no batches, fixed sizes and the adaptive setting, in turns in one run through a broker."""
    check_workloads([workload])
    loads = numbers("--callers", [callers], int)
    options = BatchingOptions(workload, rounds, seconds, loads, delay_us=delay_us)
    files.keep(measure_batching(options, plain_console(stderr=True).print))


@app.command()
def relay(
    count: Annotated[int, typer.Option(help="Number of results.", min=1)] = 100,
    size: Annotated[int, typer.Option(help="Size of each, in bytes.", min=1)] = 2_000_000,
) -> None:
    """Measure how many large results pass the dashboard's relay, one after another."""
    typer.echo(measure_relay(count, size))


@app.command()
@with_group("files", ReportFiles)
def scale(
    files: ReportFiles,
    vehicles: Annotated[str, typer.Option(help="Numbers of vehicles, separated by commas.")] = "10,100,300,1000",
    rate: Annotated[float, typer.Option(help="Requests a second of each vehicle.", min=0.01)] = _SCALE.rate,
    size: Annotated[int, typer.Option(help="Bytes of a request.", min=8)] = _SCALE.size,
    seconds: Annotated[float, typer.Option(help="Length of each step, in seconds.", min=1)] = _SCALE.seconds,
    broker: Annotated[str | None, typer.Option(help="A broker that runs; a Mosquitto of its own by default.")] = None,
    pid: Annotated[int | None, typer.Option(help="Process of that broker.")] = None,
    nats: Annotated[int, typer.Option(help="So many nats-servers in place of a Mosquitto.", min=0)] = _SCALE.nats,
    states: Annotated[int, typer.Option(help="Also measure so many retained states.", min=0)] = 0,
) -> None:
    """Measure how many vehicles one broker carries: delays, and processor time and memory of the broker."""
    counts = numbers("--vehicles", [vehicles], int)
    options = ScaleOptions(counts, rate, size, seconds, broker, pid, nats)
    files.keep(measure_scale(options, plain_console(stderr=True).print))
    if states:
        typer.echo(measure_states(states))


@app.command()
def autoscale(
    real: Annotated[
        bool, typer.Option("--real", help="Play three patterns to `mqinfer worker --autoscale` instead, in 12 minutes.")
    ] = False,
    output: Output = None,
) -> None:
    """Let rules for the number of workers follow fleets in a simulation: late frames, worker hours, oscillation."""
    console = table_console()
    found: list[Run | Played] = []
    for each in play_real() if real else play():
        console.print(f"{each}", style="dim", highlight=False)
        found.append(each)
    grids = [real_grid(found)] if real else [rules_grid(found), chosen_grid(found)]  # type: ignore[arg-type]  # as above
    for grid in grids:
        print_grid(grid, console)
    texts = {"autoscale.json": as_json(found), "autoscale.md": "\n".join(map(as_markdown, grids))}
    _print_paths(write_files(output, texts) if output else ())


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
    table = faults_as_markdown(figures)
    typer.echo(table)
    if output:
        with writing(output):
            set_aside(output)
            output.write_text(table, encoding="utf-8")
    if any(figure.passed is False for figure in figures):
        raise typer.Exit(1)


def main() -> None:
    """Run a command; print an mqinfer error as one message, and exit with its code."""
    try:
        app()
    except MqinferError as error:
        print_error(error)
        sys.exit(exit_code(error))


@contextmanager
def _models(repository: Path | None) -> Iterator[Path]:
    """Yield a repository with the models of the workloads `small` and `frame`."""
    if repository is not None:
        yield repository
        return
    with TemporaryDirectory(prefix="mqinfer-bench-") as folder:
        build(Path(folder), [WORKLOADS["small"], WORKLOADS["frame"]])
        yield Path(folder)


def _print_paths(paths: Sequence[Path]) -> None:
    for each in paths:
        typer.echo(f"wrote {each}")
