"""`mqinfer bench`: measures a model on a site; ways to one, encodings, the documents' figures here."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

import typer

from mqinfer.bench import comparing
from mqinfer.bench.comparing import CompareOptions, LinkOptions
from mqinfer.bench.contestants.driving import Load
from mqinfer.bench.contestants.site import CONTESTANTS, chosen
from mqinfer.bench.encodings import EncodingsOptions, measure_encodings, report_encodings
from mqinfer.bench.site_load import LoadTurn, SiteLoad, measure_load, random_inputs, report_load
from mqinfer.bench.workloads import WORKLOADS, Workload, built_workloads, record_workload
from mqinfer.cli.bench_seeds import seeds
from mqinfer.cli.infer import named_inputs, read_input
from mqinfer.cli.options import (
    AsJson,
    ConnectionOptions,
    numbers,
    plain_console,
    table_console,
    with_connection,
    with_group,
)
from mqinfer.client import AsyncClient, ClientOptions
from mqinfer.lab.report_files import Report, check_files, write_report
from mqinfer.lab.reports import as_json, print_grid
from mqinfer.protocol.errors import ConfigError

_CALLERS = (1, 2, 4, 8)
_ENDLESS_S = 1e9
"""No turn takes so long; JSON, in which the clients are told, has no infinity."""


@dataclass(frozen=True, slots=True)
class ReportFiles:
    """Where a measurement is written to; each field is an option of every bench."""

    csv: Annotated[Path | None, typer.Option(help="File for the table as CSV.")] = None
    json: AsJson = False
    markdown: Annotated[Path | None, typer.Option(help="File for the table as Markdown.")] = None
    plot: Annotated[Path | None, typer.Option(help="File for a plot: .png, .svg or .pdf.")] = None

    def __post_init__(self) -> None:
        check_files(self.chosen)

    @property
    def chosen(self) -> dict[str, Path]:
        """The files that are asked for, by kind."""
        return {kind: path for kind in ("csv", "markdown", "plot") if (path := getattr(self, kind))}

    def keep(self, report: Report) -> None:
        """Print a report as a table or as JSON, and write the files."""
        if self.json:
            typer.echo(as_json(report.whole), nl=False)
        else:
            print_grid(report.grid, table_console())
        write_report(report, self.chosen)
        for path in self.chosen.values():
            typer.echo(f"wrote {path}", err=self.json)


_with_files = with_group("files", ReportFiles)
_progress = plain_console(stderr=True).print

app = typer.Typer(no_args_is_help=True)
app.command()(seeds)


@app.command()
@with_connection
@with_group("options", SiteLoad)
@_with_files
def load(
    connection: ConnectionOptions,
    options: SiteLoad,
    files: ReportFiles,
    model: Annotated[str, typer.Argument(help="Model name.")],
    callers: Annotated[
        list[str] | None,
        typer.Option(help="Numbers of requests at a time, separated by commas; 1,2,4,8 without this and --rate."),
    ] = None,
    rate: Annotated[
        list[str] | None,
        typer.Option(
            help="Requests that start each second, whether earlier ones have ended or not; separated by commas."
        ),
    ] = None,
    input_: Annotated[
        list[str] | None,
        typer.Option("--input", help="What each request carries, as for mqinfer infer; random numbers by default."),
    ] = None,
) -> None:
    """Measure a model as its site serves it: throughput, latency, failures, and where the time goes, by load.

    Each load lasts for --seconds after a short one that is not counted. The request is always the same.
    """
    at_a_time = numbers("--callers", callers or (() if rate else _CALLERS), int)
    loads = options.loads(at_a_time, numbers("--rate", rate or (), float))
    given = [read_input(text) for text in input_ or ()]
    most, usual = max(at_a_time, default=1), ClientOptions()
    room = replace(usual, window=max(usual.window, most), max_pending=max(usual.max_pending, most))
    address, turns = connection.address(), list[LoadTurn]()

    async def measure() -> str:
        """Take the turns; return the version that is served."""
        client = AsyncClient(address, name=connection.name, root=connection.root, options=room, in_loop=True)
        async with client:
            card = await client.card(model)
            inputs = named_inputs(given, card) if given else random_inputs(card)
            async for turn in measure_load(client, card, inputs, options, loads):
                _progress(str(turn))
                turns.append(turn)
        return card.version

    served, what = asyncio.run(measure()), ", ".join(input_ or ["random numbers"])
    title = f"{model} {options.version or served} at {address}, {what}, {options.encoding}"
    files.keep(report_load(turns, title, options))


@dataclass(frozen=True, slots=True)
class WhatIsSent:
    """What requests carry, and to which model; each field is an option of `compare`."""

    workload: Annotated[
        list[str] | None,
        typer.Option(help=f"Model with an array to ask: {', '.join(WORKLOADS)}; may be repeated. All by default."),
    ] = None
    recording: Annotated[
        str | None, typer.Option(help="Bag, video or folder of pictures whose frames are sent in place of that.")
    ] = None
    model: Annotated[str | None, typer.Option(help="Model that gets the recording's frames.")] = None
    repository: Annotated[
        Path | None, typer.Option(help="Folder of its repository; also of the workloads' models, made by default.")
    ] = None
    frames: Annotated[int, typer.Option(help="How many of the recording's frames.", min=1)] = 20


@dataclass(frozen=True, slots=True)
class TurnOptions:
    """How contestants take turns; each field is an option of `compare` and of what developers compare."""

    vehicles: Annotated[str, typer.Option(help="Numbers of clients, separated by commas.")] = "1"
    workers: Annotated[str, typer.Option(help="Numbers of mqinfer's workers, separated by commas.")] = "1"
    callers: Annotated[str, typer.Option(help="Numbers of requests at a time of each client, separated by commas.")] = (
        "1,8"
    )
    rate: Annotated[
        float, typer.Option(help="Frames a second of each client, of which a newer one replaces one that waits.", min=0)
    ] = 0.0
    rounds: Annotated[int, typer.Option(help="Turns of each contestant, interleaved.", min=1)] = 3
    seconds: Annotated[float, typer.Option(help="Length of each turn, in seconds.", min=0.05)] = 1.5
    samples: Annotated[int, typer.Option(help="Requests of each turn, in place of its length.", min=0)] = 0
    link: LinkOptions = field(default_factory=LinkOptions)
    triton: Annotated[
        Path | None, typer.Option(help="Environment with nvidia-pytriton; .venv-peers/triton by default.")
    ] = None

    def chosen(self) -> CompareOptions:
        """Return how contestants are compared.

        Raises:
            ConfigError: A list of numbers holds something else.
        """
        counts = {"--vehicles": self.vehicles, "--workers": self.workers, "--callers": self.callers}
        vehicles, workers, callers = (numbers(option, [text], int) for option, text in counts.items())
        load_ = Load(1, _ENDLESS_S if self.samples else self.seconds, self.samples, self.rate)
        return CompareOptions(vehicles, workers, load_, callers, self.rounds, self.link, self.triton)


@app.command()
@with_group("turns", TurnOptions)
@with_group("sent", WhatIsSent)
@_with_files
def compare(
    files: ReportFiles,
    sent: WhatIsSent,
    turns: TurnOptions,
    contestant: Annotated[
        list[str] | None,
        typer.Argument(help=f"Ways to the model: {', '.join(CONTESTANTS)}; all by default. The first is the base."),
    ] = None,
) -> None:
    """Compare ways to a model in one run: throughput, latency, bytes, processor time and memory of each part.

    The contestants take turns. One that can't be had is a row with the reason. Ctrl-C ends it, and what was measured
    is kept.
    """
    options, ways = turns.chosen(), chosen(contestant or ())
    with _workloads(sent) as workloads:
        files.keep(comparing.compare(workloads, ways, options, _progress))


@contextmanager
def _workloads(sent: WhatIsSent) -> Iterator[Sequence[Workload]]:
    if (sent.recording is None) is not (sent.model is None):
        raise ConfigError("--recording and --model belong together: the frames, and what gets them; state both")
    if sent.recording and sent.model:
        repository = (sent.repository or Path("models")).absolute()
        yield [record_workload(sent.recording, sent.model, repository, sent.frames)]
        return
    with built_workloads(sent.workload or tuple(WORKLOADS), sent.repository) as workloads:
        yield workloads


@app.command()
@with_group("asked", EncodingsOptions)
@_with_files
def codecs(files: ReportFiles, asked: EncodingsOptions) -> None:
    """Measure the encodings of frames: bytes, time, PSNR, the model's answers, and what a thin link lets through."""
    files.keep(report_encodings(measure_encodings(asked, _progress)))
