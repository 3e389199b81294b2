"""A gateway's fronts in a process of their own, each on a free port."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from mqinfer.bench.processes import say
from mqinfer.broker.mosquitto.server import free_port


def serve(url: str) -> None:
    """Run a gateway's fronts: write their ports as JSON, and serve until standard input ends.

    Args:
        url: Of the broker.
    """
    asyncio.run(_serve(url))


async def _serve(url: str) -> None:
    async with serving(url) as ports:
        say(json.dumps(ports))
        await asyncio.to_thread(sys.stdin.read)


@asynccontextmanager
async def serving(url: str) -> AsyncIterator[Mapping[str, int]]:
    """Serve the fronts of a gateway in this process; yield the ports of `grpc`, `tfs-grpc`, `rest` and `tfs-rest`.

    Args:
        url: Of the broker.
    """
    from mqinfer.client.aio import AsyncClient
    from mqinfer.client.control import AsyncControl
    from mqinfer.gateway.access import Access
    from mqinfer.gateway.core import Core
    from mqinfer.gateway.serving.fronts import Fronts
    from mqinfer.gateway.settings import GatewayPorts, GatewaySettings

    ports = {name: free_port("127.0.0.1") for name in ("rest", "grpc", "tfs-grpc", "tfs-rest")}
    listening = GatewayPorts(
        ports["rest"], ports["grpc"], 0, tfs_grpc_port=ports["tfs-grpc"], tfs_rest_port=ports["tfs-rest"]
    )
    fronts = Fronts(GatewaySettings(listening), shared=False)
    async with AsyncClient(url, in_loop=True) as client:
        core = Core(client, AsyncControl(client))
        await core.start()
        await fronts.open(core, Access(asks_certificates=False), None)
        yield ports
        await fronts.close(0.0)
