"""`mqinfer bench seeds`: every figure of the five documents beside what this machine gives."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from mqinfer.bench.seeds.experiment import Bench
from mqinfer.bench.seeds.experiments import run_experiments
from mqinfer.bench.seeds.report import as_grids, as_whole, write_folder
from mqinfer.bench.seeds.rows import Joined, Measured, join, read_published
from mqinfer.cli.options import AsJson, numbers, plain_console, table_console
from mqinfer.lab.machine import describe_machine
from mqinfer.lab.reports import check_plots, print_grid
from mqinfer.protocol.errors import ConfigError

_PACKAGES = ("mqinfer", "numpy", "tensorflow-cpu", "onnxruntime", "openvino", "grpcio", "paho-mqtt")


def seeds(
    documents: Annotated[
        list[str] | None, typer.Argument(help="Documents to measure: 000 to 004; all by default.", show_default=False)
    ] = None,
    table: Annotated[
        list[str] | None, typer.Option(help="Table to measure, such as 002.F1; may be repeated. All by default.")
    ] = None,
    full: Annotated[
        bool, typer.Option("--full", help="Run the documents' own numbers of samples: hours instead of minutes.")
    ] = False,
    source: Annotated[
        str | None, typer.Option(help="Bag, video or folder with the frames; a synthetic drive by default.")
    ] = None,
    repository: Annotated[
        Path, typer.Option(help="Model repository; networks of the zoo that it lacks are built there.")
    ] = Path("models"),
    output: Annotated[
        Path | None, typer.Option(help="Folder for the table (CSV, JSON, Markdown) and the plots.")
    ] = None,
    replicas: Annotated[
        str, typer.Option(help="Numbers of reference servers in document 004, separated by commas.")
    ] = "1,2,4,8",
    frames: Annotated[
        str | None, typer.Option(help="Numbers of frames of table 004.T1, separated by commas; 50,500 by default.")
    ] = None,
    labels: Annotated[
        Path | None, typer.Option(help="NoScope's file of labels of the recording in --source (frame, object_name).")
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 if a bound of a document is broken.")] = False,
    json: AsJson = False,
) -> None:
    """Measure every figure of the five documents that this machine can give, beside what they published.

    A row that is not measured is printed with the reason. Ratios that compare systems and those that only compare
    machines have columns of their own.
    """
    published = read_published()
    tables = _chosen([row.table for row in published], documents or (), table or ())
    if output:
        check_plots()
    servers = tuple(sorted(set(numbers("--replicas", [replicas], int, 64))))
    counts = numbers("--frames", [frames], int, 5000) if frames else ()
    bench = Bench(repository, full, source, tables, plain_console(stderr=True).print, servers, counts, labels)
    machine, found, reasons = describe_machine(_PACKAGES), list[Measured](), dict[str, str]()
    try:
        run_experiments(bench, found, reasons)
    finally:  # what was measured is kept, also after Ctrl-C
        machine["load after the run"] = f"{os.getloadavg()[0]:.2f}"
        rows = join((row for row in published if row.table in tables), found, reasons)
        _show(machine, rows, output, as_json=json)
    if strict and any(row.verdict == "broken" for row in rows):
        raise typer.Exit(1)


def _show(machine: Mapping[str, str], rows: Sequence[Joined], output: Path | None, *, as_json: bool) -> None:
    if as_json:
        typer.echo(as_whole(machine, rows), nl=False)
    else:
        for grid in as_grids(rows):
            print_grid(grid, table_console())
    for path in write_folder(machine, rows, output) if output else ():
        typer.echo(f"wrote {path}", err=as_json)


def _chosen(known: Sequence[str], documents: Sequence[str], tables: Sequence[str]) -> frozenset[str]:
    names = dict.fromkeys((*(table[:3] for table in known), *known))
    if unknown := [name for name in (*documents, *tables) if name not in names]:
        raise ConfigError(f"no document or table {unknown[0]!r}; expected some of {', '.join(names)}")
    wanted = set(tables or known)
    chosen = set(documents or names)
    return frozenset(table for table in known if table in wanted and table[:3] in chosen)
