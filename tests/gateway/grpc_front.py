"""The gateway's gRPC front on a port of its own, and a client of it that speaks through the front's own messages.

That the numbers of these are those of the field is shown by the published clients, see `test_grpc_clients`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from mqinfer.gateway.access import Access
from mqinfer.gateway.core import Core
from mqinfer.gateway.settings import GatewaySettings
from mqinfer.protocol.datatypes import Array, Datatype, datatype_of, from_raw, raw_bytes
from tests.gateway.listening import UNLIMITED, over_grpc

__all__ = ["SERVICE", "GrpcFront", "read_outputs", "serving", "tensors"]

SERVICE = "inference.GRPCInferenceService"


class GrpcFront:
    """A channel to the front; `address` is where it listens."""

    def __init__(self, channel: Any, address: str) -> None:
        self.channel, self.address = channel, address

    async def call(
        self, method: str, *, metadata: Sequence[tuple[str, str]] = (), deadline_s: float = 60.0, **fields: Any
    ) -> Any:
        """Call a method with the fields of its request; return the reply's message."""
        from mqinfer.gateway.messages import message_class

        request = message_class(f"inference.{method}Request")(**fields).SerializeToString()
        return message_class(f"inference.{method}Response").FromString(
            await self.send(method, request, metadata, deadline_s)
        )

    async def send(
        self, method: str, request: bytes, metadata: Sequence[tuple[str, str]] = (), deadline_s: float = 60.0
    ) -> bytes:
        """Send bytes to a method and return those of the reply."""
        path = method if method.startswith("/") else f"/{SERVICE}/{method}"
        reply: bytes = await self.channel.unary_unary(path)(request, metadata=tuple(metadata), timeout=deadline_s)
        return reply

    def stream(self, metadata: Sequence[tuple[str, str]] = (), deadline_s: float = 60.0) -> Any:
        """Open a stream of `ModelStreamInfer`, of bytes both ways."""
        return self.channel.stream_stream(f"/{SERVICE}/ModelStreamInfer")(metadata=tuple(metadata), timeout=deadline_s)


@asynccontextmanager
async def serving(
    core: Core, access: Access | None = None, settings: GatewaySettings | None = None
) -> AsyncIterator[GrpcFront]:
    """Serve a core over gRPC in the running loop, and connect to it."""
    import grpc

    from mqinfer.gateway.grpc import make_handlers

    settings = settings or GatewaySettings()
    handlers = make_handlers(core, access or Access(), settings)
    async with over_grpc(handlers, settings) as address, grpc.aio.insecure_channel(address, UNLIMITED) as channel:
        yield GrpcFront(channel, address)


def tensors(**arrays: Array) -> dict[str, Any]:
    """Return the fields of a request that carry arrays raw."""
    inputs = [
        {"name": name, "datatype": str(datatype_of(array.dtype)), "shape": array.shape}
        for name, array in arrays.items()
    ]
    return {"inputs": inputs, "raw_input_contents": [bytes(raw_bytes(name, array)) for name, array in arrays.items()]}


def read_outputs(reply: Any) -> dict[str, Array]:
    """Return the arrays of a `ModelInferResponse`."""
    assert len(reply.outputs) == len(reply.raw_output_contents)
    return {
        output.name: from_raw(output.name, Datatype(output.datatype), tuple(output.shape), raw)
        for output, raw in zip(reply.outputs, reply.raw_output_contents, strict=True)
    }
