"""A gateway's fronts in a process of their own, each on a free port."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from mqinfer.bench.processes import say


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
    from aiohttp import web

    from mqinfer.client.aio import AsyncClient
    from mqinfer.client.control import AsyncControl
    from mqinfer.gateway.access import Access
    from mqinfer.gateway.core import Core
    from mqinfer.gateway.grpc import make_handlers
    from mqinfer.gateway.grpc_calls import make_server, start_server
    from mqinfer.gateway.http import make_runner
    from mqinfer.gateway.rest.app import make_app
    from mqinfer.gateway.settings import GatewaySettings
    from mqinfer.gateway.tfs.grpc import make_grpc_handlers
    from mqinfer.gateway.tfs.rest import make_rest_app

    settings, access = GatewaySettings(), Access(asks_certificates=False)
    servers, runners, ports = list[Any](), list[web.AppRunner](), dict[str, int]()
    async with AsyncClient(url, in_loop=True) as client:
        core = Core(client, AsyncControl(client))
        await core.start()
        for name, handlers in (("grpc", make_handlers), ("tfs-grpc", make_grpc_handlers)):
            servers.append(make_server(handlers(core, access, settings), settings))
            ports[name] = servers[-1].add_insecure_port("127.0.0.1:0")
            await start_server(servers[-1], ports[name])
        for name, app in (("rest", make_app), ("tfs-rest", make_rest_app)):
            runners.append(make_runner(app(core, access, settings), settings))
            await runners[-1].setup()
            site = web.TCPSite(runners[-1], "127.0.0.1", 0)
            await site.start()
            ports[name] = runners[-1].addresses[0][1]
        yield ports
        await asyncio.gather(*(each.stop(None) for each in servers), *(each.cleanup() for each in runners))
