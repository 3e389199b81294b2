"""`mqinfer collect`: what edges keep since it matters; `ask` reaches an edge that runs."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from mqinfer.cli.edge.asking import Edge, Timeout, ask_edge
from mqinfer.cli.options import ConnectionOptions, with_connection, with_log_options
from mqinfer.edge_agent.collecting.upload import upload as upload_all
from mqinfer.protocol.control import Operation

app = typer.Typer(no_args_is_help=True)


@app.command()
@with_log_options
def upload(
    folder: Annotated[Path, typer.Argument(help="Folder of --collect.")],
    url: Annotated[str, typer.Argument(help="A folder, or an address: s3://bucket/fleet, gs://…, az://….")],
) -> None:
    """Upload collected frames, and remove each here that is there; one that was cut goes on where it was."""
    done: Counter[bool] = Counter()
    try:
        done.update(upload_all(folder, url))
    finally:
        typer.echo(f"uploaded {done[True]} frames to {url}; {done[False]} were there")


@app.command()
@with_connection
def ask(
    connection: ConnectionOptions,
    edge: Edge,
    frames: Annotated[
        int | None, typer.Option(help="How many of its next frames with an answer to keep, whatever is in them.")
    ] = None,
    timeout: Timeout = 10,
) -> None:
    """Print what an edge has collected, as JSON; with --frames have it collect the next ones."""
    parameters = {} if frames is None else {"frames": frames}
    typer.echo(json.dumps(ask_edge(connection, Operation.COLLECT, edge, parameters, timeout), indent=2))
