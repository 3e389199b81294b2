"""`mqinfer cascade`: the cascades of edges; `show` and `set` read and change that of an edge that runs."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from mqinfer.cli.edge.learning import calibrate, report, train
from mqinfer.cli.options import ConnectionOptions, with_connection
from mqinfer.client.control import ControlClient, check_replies
from mqinfer.judging.settings import check_changes
from mqinfer.protocol.control import Call, Operation
from mqinfer.protocol.errors import ConfigError, NoWorker

Edge = Annotated[str, typer.Argument(help="Name of the edge: its `mqinfer replay --name`.")]
Timeout = Annotated[float, typer.Option(help="Seconds to wait for the reply.", min=0.001, max=1e6)]


@with_connection
def show(connection: ConnectionOptions, client: Edge, timeout: Timeout = 10) -> None:
    """Print the cascade that an edge runs now, as JSON."""
    typer.echo(json.dumps(_ask(connection, client, {}, timeout), indent=2))


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
    typer.echo(json.dumps(_ask(connection, client, checked, timeout), indent=2))


def _parsed(change: str) -> tuple[str, object]:
    key, sign, value = change.partition("=")
    if not sign:
        raise ConfigError(f"{change!r}: expected KEY=VALUE, such as t_diff=4")
    try:
        return key, float(value)
    except ValueError:
        return key, value


def _ask(connection: ConnectionOptions, client: str, parameters: dict[str, object], timeout: float) -> dict[str, Any]:
    with ControlClient(connection.address(), name=connection.name, root=connection.root) as control:
        body = {"parameters": parameters} if parameters else {}
        try:
            (reply,) = check_replies(control.ask(Call(Operation.CASCADE), body, server=client, timeout=timeout))
        except NoWorker:
            raise NoWorker(
                f"no edge named {client!r} runs a cascade on this broker; start one: "
                f"mqinfer replay SOURCE --cascade cascade.toml --name {client}"
            ) from None
    return {key: value for key, value in reply.content.items() if key != "server"}


app = typer.Typer(no_args_is_help=True)
for each in (train, calibrate, report, show):
    app.command()(each)
app.command("set")(change)
