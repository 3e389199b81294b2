"""The commands of `python -m benchmarks`: each measures, prints its tables, and writes files if asked."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.autoscale.real import Played, play_real, real_grid
from benchmarks.autoscale.rules import Run, chosen_grid, play, rules_grid
from benchmarks.batching import batching_settings
from benchmarks.calls import count_calls, differences, figures_of, read_golden, report_calls, write_golden
from benchmarks.cpp.measuring import cpp_contestants
from benchmarks.faults.soak import SoakOptions, as_markdown
from benchmarks.faults.soak import soak as run_soak
from benchmarks.scale import measure_states, one_broker, scale_workload
from mqinfer.bench.comparing import compare
from mqinfer.bench.workloads import built_workloads
from mqinfer.cli.bench import ReportFiles, TurnOptions
from mqinfer.cli.exit_codes import exit_code, print_error
from mqinfer.cli.options import plain_console, table_console, with_group
from mqinfer.lab.reports import print_grid
from mqinfer.protocol.errors import MqinferError

Workloads = Annotated[list[str], typer.Option("--workload", help="Model with an array to ask; may be repeated.")]
_progress = plain_console(stderr=True).print

app = typer.Typer(
    name="python -m benchmarks",
    help="Measure mqinfer itself: calls, batching, scaling, faults and the C++ client.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode=None,
)


@app.command()
@with_group("files", ReportFiles)
def calls(
    files: ReportFiles,
    write: Annotated[bool, typer.Option("--write", help="Make these the golden figures, which a test holds.")] = False,
) -> None:
    """Count calls and files that a request and a replayed frame pass through."""
    with built_workloads(("small", "frame")) as (small, frame):
        counted = count_calls(small, frame)
    files.keep(report_calls(counted))
    figures = figures_of(counted)
    if write:
        _progress(f"wrote {write_golden(figures)}")
    for difference in differences(figures, read_golden()).values():
        _progress(difference)


@app.command()
@with_group("files", ReportFiles)
@with_group("turns", TurnOptions, rounds=5, callers="1,4,8,16")
def batching(
    files: ReportFiles,
    turns: TurnOptions,
    workload: Workloads = ["classifier"],  # noqa: B006 - nobody changes it
) -> None:
    """Measure batching: no batches, fixed sizes and the adaptive setting, in turns in one run through a broker."""
    options = turns.chosen()
    with built_workloads(workload) as workloads:
        files.keep(compare(workloads, batching_settings(), options, _progress, "Batching"))


@app.command()
@with_group("files", ReportFiles)
@with_group("turns", TurnOptions, rounds=5)
def cpp(
    files: ReportFiles,
    turns: TurnOptions,
    programs: Annotated[Path, typer.Option(help="Folder of the programs that benchmarks/cpp builds with CMake.")],
    workload: Workloads = ["small", "frame"],  # noqa: B006 - nobody changes it
) -> None:
    """Measure the C++ client beside Python's, Triton's own in C++ and Python, and bare sockets through the broker."""
    options = turns.chosen()
    with built_workloads(workload) as workloads:
        files.keep(compare(workloads, cpp_contestants(programs), options, _progress, "The C++ client"))


@app.command()
@with_group("files", ReportFiles)
@with_group("turns", TurnOptions, vehicles="10,100,300,1000", callers="1024", rate=1.0, rounds=1, seconds=10.0)
def scale(
    files: ReportFiles,
    turns: TurnOptions,
    size: Annotated[int, typer.Option(help="Bytes of a request.", min=8)] = 1000,
    nats: Annotated[int, typer.Option(help="So many nats-servers in place of a Mosquitto.", min=0)] = 0,
    states: Annotated[int, typer.Option(help="Also measure so many retained states.", min=0)] = 0,
) -> None:
    """Measure how many vehicles one broker carries: delays, and processor time and memory of the broker.

    With 1,024 requests of a vehicle at a time none waits for another one within its timeout.
    """
    options = turns.chosen()
    with scale_workload(size) as workload:
        files.keep(compare([workload], [one_broker(nats)], options, _progress, f"Requests of {size:,} bytes"))
    if states:
        typer.echo(measure_states(states))


@app.command()
def autoscale(
    real: Annotated[
        bool, typer.Option("--real", help="Play three patterns to `mqinfer worker --autoscale` instead, in 12 minutes.")
    ] = False,
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


@app.command()
@with_group("options", SoakOptions)
def soak(options: SoakOptions) -> None:
    """Apply load and random faults: kills, halts, cuts and delays. Fails unless each request has one outcome."""
    figures = run_soak(options, lambda fault: typer.echo(fault, err=True))
    typer.echo(as_markdown(figures))
    if any(figure.passed is False for figure in figures):
        raise typer.Exit(1)


def main() -> None:
    """Run a command; print an mqinfer error as one message, and exit with its code."""
    try:
        app()
    except MqinferError as error:
        print_error(error)
        sys.exit(exit_code(error))
