"""Servers of the gateway on free ports of the running loop, and calls to them."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import aiohttp
import grpc
import pytest
from aiohttp import web

from mqinfer.gateway.grpc_calls import make_server, start_server
from mqinfer.gateway.http import make_runner
from mqinfer.gateway.settings import GatewaySettings
from mqinfer.web.arriving import Arriving
from mqinfer.web.unsent import Unsent

__all__ = ["UNLIMITED", "core_that_counts", "failure", "open_session", "over_grpc", "over_http"]

LOG = logging.getLogger("mqinfer.test")
UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


@asynccontextmanager
async def over_http(app: web.Application, settings: GatewaySettings) -> AsyncIterator[tuple[str, int]]:
    """Serve an application; yield its address."""
    runner = make_runner(app, settings)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield runner.addresses[0][:2]
    finally:
        await runner.cleanup()


@asynccontextmanager
async def over_grpc(handlers: Sequence[Any], settings: GatewaySettings) -> AsyncIterator[str]:
    """Serve handlers of gRPC; yield their address."""
    server = make_server(list(handlers), settings)
    port = server.add_insecure_port("127.0.0.1:0")
    await start_server(server, port)
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


def open_session() -> aiohttp.ClientSession:
    """Return a client that sends no headers of its own and decompresses nothing."""
    return aiohttp.ClientSession(auto_decompress=False, skip_auto_headers=["Accept-Encoding", "Content-Type"])


def core_that_counts(unsent: Unsent | None = None, arriving: Arriving | None = None, **more: Any) -> Any:
    """Return what stands for a core that answers nothing and counts what is here of requests and replies."""
    unsent, arriving = unsent or Unsent(LOG, 1 << 30, 60.0), arriving or Arriving(LOG, 1 << 30, 60.0)
    return SimpleNamespace(unsent=unsent, arriving=arriving, **more)


async def failure(call: Awaitable[Any]) -> tuple[grpc.StatusCode, str]:
    """Return status and text of a call that fails."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code(), str(caught.value.details())
