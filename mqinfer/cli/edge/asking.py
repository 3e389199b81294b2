"""Ask an edge that runs, by its name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from mqinfer.cli.options import ConnectionOptions
from mqinfer.client.control import ControlClient, check_replies
from mqinfer.client.control.merging import without_server
from mqinfer.protocol.control import Call, Operation
from mqinfer.protocol.errors import NoWorker

Edge = Annotated[str, typer.Argument(help="Name of the edge: its `mqinfer edge --name`.")]
Timeout = Annotated[float, typer.Option(help="Seconds to wait for the reply.", min=0.001, max=1e6)]


def ask_edge(
    connection: ConnectionOptions, operation: Operation, edge: str, parameters: Mapping[str, object], timeout: float
) -> dict[str, Any]:
    """Return an edge's reply to a call.

    Raises:
        NoWorker: No edge of this name takes such calls.
        MqinferError: It refuses the call, or does not reply.
    """
    with ControlClient(connection.address(), name=connection.name, root=connection.root) as control:
        body = {"parameters": parameters} if parameters else {}
        try:
            (reply,) = check_replies(control.ask(Call(operation), body, server=edge, timeout=timeout))
        except NoWorker:
            raise NoWorker(
                f"no edge named {edge!r} runs with --{operation} on this broker; start one: "
                f"mqinfer replay SOURCE --{operation} … --name {edge}"
            ) from None
    return without_server(reply.content)
