"""The fronts for TensorFlow Serving's clients on ports of their own, and calls to them through their own messages.

That these are the field's is shown by the published client, see `test_tfs_clients`.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import grpc

from mqinfer.gateway.access import Access
from mqinfer.gateway.core import Core
from mqinfer.gateway.tfs.grpc import make_grpc_handlers
from mqinfer.gateway.tfs.messages import tfs_class
from mqinfer.gateway.tfs.rest import make_rest_app
from mqinfer.gateway.tfs.tensors import read_tensors, write_tensor
from mqinfer.protocol.datatypes import Array
from tests.gateway.conftest import OpenCore, gateway_settings
from tests.gateway.listening import UNLIMITED, open_session, over_grpc, over_http
from tests.gateway.rest_front import Reply

__all__ = ["PREDICTION", "Reply", "TfsFront", "serving"]

PREDICTION, MODEL = "/tensorflow.serving.PredictionService/", "/tensorflow.serving.ModelService/"
MOST = 1 << 30


@dataclass(frozen=True, slots=True)
class TfsFront:
    """Both fronts; `address` is that of gRPC, `url` that of REST."""

    core: Core
    url: str
    address: str
    session: aiohttp.ClientSession
    channel: Any

    async def rest(self, method: str, path: str, body: Any = None, **headers: str) -> Reply:
        """Call by REST; anything but bytes goes as JSON."""
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.session.request(method, self.url + path, data=data, headers=named) as reply:
            return Reply(reply.status, reply.headers, await reply.read())

    async def post(self, call: str, body: Any) -> Reply:
        """Call a model by REST: `post("m:predict", {…})`."""
        return await self.rest("POST", f"/v1/models/{call}", body)

    async def send(self, method: str, request: bytes, deadline_s: float = 60.0) -> bytes:
        """Send bytes to a method of gRPC."""
        path = f"{MODEL if 'Status' in method or 'Config' in method else PREDICTION}{method}"
        reply: bytes = await self.channel.unary_unary(path)(request, timeout=deadline_s)
        return reply

    async def call(self, method: str, request: str, reply: str, **fields: Any) -> Any:
        """Call a method of gRPC with the fields of its request; return the reply's message."""
        data = tfs_class(request)(**fields).SerializeToString()
        return tfs_class(reply).FromString(await self.send(method, data))

    async def predict(
        self, model: str, inputs: Mapping[str, Array], deadline_s: float = 60.0, **spec: Any
    ) -> tuple[dict[str, Array], Any]:
        """Predict by gRPC; return the outputs and the reply's ModelSpec."""
        request = tfs_class("PredictRequest")(model_spec={"name": model, **spec})
        for name, array in inputs.items():
            write_tensor(array, request.inputs[name])
        reply = tfs_class("PredictResponse").FromString(
            await self.send("Predict", request.SerializeToString(), deadline_s)
        )
        return read_tensors(reply.outputs, MOST), reply.model_spec


@asynccontextmanager
async def serving(open_core: OpenCore, access: Access | None = None, **options: Any) -> AsyncIterator[TfsFront]:
    """Serve both fronts in the running loop, with these settings, and connect to them."""
    settings, access = gateway_settings(**options), access or Access()
    async with (
        open_core() as core,
        over_grpc(make_grpc_handlers(core, access, settings), settings) as address,
        over_http(make_rest_app(core, access, settings), settings) as (host, port),
        grpc.aio.insecure_channel(address, UNLIMITED) as channel,
        open_session() as session,
    ):
        yield TfsFront(core, f"http://{host}:{port}", address, session, channel)
