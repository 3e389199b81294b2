"""The REST front under test: serves it on a free port before a real server of models, and calls it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp

from mqinfer.gateway.access import Access
from mqinfer.gateway.core import Core
from mqinfer.gateway.rest.app import make_app
from tests.gateway.conftest import OpenCore, gateway_settings
from tests.gateway.listening import open_session, over_http

__all__ = ["Front", "Reply", "json_input", "serving"]


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)

    @property
    def error(self) -> str:
        """The text of an error; the body has nothing else."""
        content = self.json
        assert content.keys() == {"error"}
        assert self.headers["Content-Type"].startswith("application/json")
        return str(content["error"])


@dataclass(frozen=True, slots=True)
class Front:
    """The front under test; call it for a reply."""

    core: Core
    url: str
    session: aiohttp.ClientSession

    async def __call__(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> Reply:
        """Call; anything but bytes goes as JSON."""
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        async with self.session.request(method, self.url + path, data=data, headers=headers) as reply:
            return Reply(reply.status, reply.headers, await reply.read())

    async def infer(self, model: str, body: Any, **headers: str) -> Reply:
        """Call for inference; in the names of headers, `_` stands for `-`."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self("POST", f"/v2/models/{model}/infer", body, named)


@asynccontextmanager
async def serving(open_core: OpenCore, access: Access | None = None, **options: Any) -> AsyncIterator[Front]:
    """Serve the front in the running loop, with these options, and connect to it."""
    settings = gateway_settings(**{"model_control": True, **options})
    async with open_core(model_control=settings.callers.model_control, max_bytes=settings.bounds.max_bytes) as core:
        app = make_app(core, access or Access(), settings)
        async with over_http(app, settings) as (host, port), open_session() as session:
            yield Front(core, f"http://{host}:{port}", session)


def json_input(name: str, datatype: str, shape: list[int], data: Any) -> dict[str, Any]:
    """Return an input of JSON."""
    return {"name": name, "datatype": datatype, "shape": shape, "data": data}
