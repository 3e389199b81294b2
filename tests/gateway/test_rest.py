"""The Open Inference Protocol over HTTP against a real server of models."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from mqinfer.gateway.access import Access
from mqinfer.gateway.http import make_runner
from mqinfer.gateway.rest.app import make_app
from mqinfer.gateway.settings import GatewaySettings
from tests.gateway.conftest import OpenCore

COUNT = list(range(16))


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back."""

    status: int
    headers: Any
    body: bytes

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


@dataclass(frozen=True, slots=True)
class Caller:
    """Calls the front under test."""

    url: str
    session: aiohttp.ClientSession

    async def __call__(self, method: str, path: str, body: Any = None, **headers: str) -> Reply:
        """Call; anything but bytes goes as JSON."""
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.session.request(method, self.url + path, data=data, headers=names) as reply:
            return Reply(reply.status, reply.headers, await reply.read())


@asynccontextmanager
async def front(open_core: OpenCore, access: Access | None = None, **settings: Any) -> AsyncIterator[Caller]:
    """Serve the front on a free port, and call it."""
    chosen = GatewaySettings(**{"model_control": True, **settings})
    async with open_core() as core:
        runner = make_runner(make_app(core, access or Access(), chosen), chosen)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            async with aiohttp.ClientSession(auto_decompress=False) as session:
                yield Caller(f"http://127.0.0.1:{runner.addresses[0][1]}", session)
        finally:
            await runner.cleanup()


@pytest.fixture
def calling(open_core: OpenCore) -> Callable[..., None]:
    """Run a test's coroutine function with a caller of the front: `calling(ask, max_input_bytes=1000)`."""

    def run(ask: Callable[[Caller], Awaitable[None]], **settings: Any) -> None:
        async def main() -> None:
            async with front(open_core, **settings) as call:
                await ask(call)

        asyncio.run(main())

    return run


def json_input(name: str, datatype: str, shape: list[int], data: list[Any]) -> dict[str, Any]:
    """Return an input of JSON."""
    return {"name": name, "datatype": datatype, "shape": shape, "data": data}


SIMPLE = {
    "inputs": [json_input("INPUT0", "INT32", [1, 16], COUNT), json_input("INPUT1", "INT32", [1, 16], [1] * 16)],
}
SUMS, DIFFERENCES = [each + 1 for each in COUNT], [each - 1 for each in COUNT]


def test_json(calling: Callable[..., None]) -> None:
    """Sums and differences come back as JSON, with the caller's id."""

    async def ask(call: Caller) -> None:
        reply = await call("POST", "/v2/models/simple/infer", SIMPLE | {"id": "my request"})
        assert reply.status == 200, reply.body
        assert reply.json == {
            "id": "my request",
            "model_name": "simple",
            "model_version": "1",
            "outputs": [
                json_input("OUTPUT0", "INT32", [1, 16], SUMS),
                json_input("OUTPUT1", "INT32", [1, 16], DIFFERENCES),
            ],
        }
        assert reply.headers["Content-Type"] == "application/json"

    calling(ask)
