"""`mqinfer lag`: how much waits for each model."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated

import typer

from mqinfer.cli.options import ConnectionOptions, MetricsBind, MetricsPort, with_connection
from mqinfer.cli.watching.status import print_table
from mqinfer.client.aio import AsyncClient
from mqinfer.client.connection import LiveRegistry
from mqinfer.client.requester import Requester
from mqinfer.metrics.client import add_connection
from mqinfer.metrics.endpoint import LOOPBACK, serving_metrics
from mqinfer.metrics.lag import Lag, add_lag, to_record
from mqinfer.metrics.lag import lag as lag_of
from mqinfer.metrics.samples import Samples
from mqinfer.protocol.errors import NotConnected

_Show = Callable[[Mapping[str, Lag]], None]


@with_connection
def lag(
    connection: ConnectionOptions,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, as the gateway's /lag.")] = False,
    metrics_port: MetricsPort = None,
    metrics_bind: MetricsBind = LOOPBACK,
) -> None:
    """Show how many requests wait for each model, how old the oldest is, and how many workers there are.

    Edges, gateways and clients that announce themselves state every two seconds what waits in them; of others the
    requests count that are at a worker. With --metrics-port Prometheus reads it, as at a gateway, until Ctrl-C.
    """
    show = _print_json if as_json else _print
    asyncio.run(_run(connection, show, metrics_port, metrics_bind))


async def _run(connection: ConnectionOptions, show: _Show, metrics_port: int | None, metrics_bind: str) -> None:
    async with AsyncClient(connection.address(), name=connection.name, root=connection.root) as client:
        registry, requester = client.connection.registry, client.connection.requester
        registry.watches_clients = True
        if not await registry.wait_until_complete():
            raise NotConnected("the broker has not sent the states of clients and workers in time; try again")
        show(lag_of(registry.known, time.monotonic()))
        if metrics_port is None:
            return
        stop = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        with serving_metrics(partial(_read, registry, requester), metrics_port, metrics_bind):
            await stop.wait()


def _read(registry: LiveRegistry, requester: Requester, samples: Samples) -> None:
    add_lag(samples, registry)
    add_connection(samples, connected=requester.connected)


def _print_json(found: Mapping[str, Lag]) -> None:
    typer.echo(json.dumps(to_record(found), indent=2))


def _print(found: Mapping[str, Lag]) -> None:
    rows = [tuple(map(str, (model, e.pending, e.oldest_ms, e.workers, e.capacity))) for model, e in found.items()]
    print_table(("model", "pending", "oldest ms", "workers", "capacity"), rows)
