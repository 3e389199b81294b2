"""`mqinfer cascade`: the cascades of edges; `show` and `set` read and change that of an edge that runs."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from mqinfer.cli.edge.asking import Edge, Timeout, ask_edge
from mqinfer.cli.edge.learning import calibrate, report, train
from mqinfer.cli.options import ConnectionOptions, with_connection
from mqinfer.judging.settings import check_changes
from mqinfer.protocol.control import Operation
from mqinfer.protocol.errors import ConfigError


@with_connection
def show(connection: ConnectionOptions, client: Edge, timeout: Timeout = 10) -> None:
    """Print the cascade that an edge runs now, as JSON."""
    typer.echo(json.dumps(ask_edge(connection, Operation.CASCADE, client, {}, timeout), indent=2))


@with_connection
def change(
    connection: ConnectionOptions,
    client: Edge,
    changes: Annotated[
        list[str],
        typer.Argument(help="Such as t_diff=4 c_low=0.1 c_high=0.9 placement=cloud version=3.", metavar="KEY=VALUE..."),
    ],
    timeout: Timeout = 10,
) -> None:
    """Change thresholds, placement or version of an edge's cascade, from its next frame on; print it as JSON."""
    checked = check_changes(dict(_parsed(each) for each in changes))
    typer.echo(json.dumps(ask_edge(connection, Operation.CASCADE, client, checked, timeout), indent=2))


def _parsed(change: str) -> tuple[str, object]:
    key, sign, value = change.partition("=")
    if not sign:
        raise ConfigError(f"{change!r}: expected KEY=VALUE, such as t_diff=4")
    try:
        return key, float(value)
    except ValueError:
        return key, value


app = typer.Typer(no_args_is_help=True)
for each in (train, calibrate, report, show):
    app.command()(each)
app.command("set")(change)
