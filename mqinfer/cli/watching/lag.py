"""`mqinfer lag`: how much waits for each model."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Annotated

import typer

from mqinfer.cli.options import ConnectionOptions, with_connection
from mqinfer.cli.watching.status import print_table
from mqinfer.client.aio import AsyncClient
from mqinfer.metrics.lag import Lag, to_record
from mqinfer.metrics.lag import lag as lag_of
from mqinfer.protocol.errors import NotConnected


@with_connection
def lag(
    connection: ConnectionOptions,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, as the gateway's /lag.")] = False,
) -> None:
    """Show how many requests wait for each model, how old the oldest is, and how many workers there are.

    Edges, gateways and clients that announce themselves state every two seconds what waits in them; of others the
    requests count that are at a worker.
    """
    found = asyncio.run(_read(connection))
    if as_json:
        typer.echo(json.dumps(to_record(found), indent=2))
        return
    rows = [tuple(map(str, (model, e.pending, e.oldest_ms, e.workers, e.capacity))) for model, e in found.items()]
    print_table(("model", "pending", "oldest ms", "workers", "capacity"), rows)


async def _read(connection: ConnectionOptions) -> dict[str, Lag]:
    async with AsyncClient(connection.address(), name=connection.name, root=connection.root) as client:
        client.connection.registry.watches_clients = True
        if not await client.connection.registry.wait_until_complete():
            raise NotConnected("the broker has not sent the states of clients and workers in time; try again")
        return lag_of(client.connection.registry.known, time.monotonic())
