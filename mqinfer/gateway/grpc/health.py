"""The service `grpc.health.v1.Health`, which load balancers and Kubernetes ask.

https://github.com/grpc/grpc/blob/master/doc/health-checking.md
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import grpc

from mqinfer.gateway.access import Access, Right
from mqinfer.gateway.core import Core
from mqinfer.gateway.grpc_calls import GrpcCaller, unary
from mqinfer.gateway.messages import message_class, parse
from mqinfer.protocol.errors import ModelNotFound

__all__ = ["make_health"]

_REQUEST, _RESPONSE = (message_class(f"grpc.health.v1.HealthCheck{each}") for each in ("Request", "Response"))


def make_health(core: Core, access: Access, services: Collection[str]) -> Any:
    """Return the generic handler of the service; its `Watch` is unimplemented, as the protocol allows.

    Args:
        core: Knows whether it is ready.
        access: Asked before each call.
        services: Names of services that it answers for; the empty name stands for the whole server.
    """

    async def check(data: bytes, _: GrpcCaller) -> bytes:
        service = parse(_REQUEST, data).service
        if service and service not in services:
            raise ModelNotFound(f"unknown service {service[:100]!r}; known are {', '.join(services)}")
        reply: bytes = _RESPONSE(status=1 if core.ready() else 2).SerializeToString()
        return reply

    handler = unary(access, Right.HEALTH, check, core)
    return grpc.method_handlers_generic_handler("grpc.health.v1.Health", {"Check": handler})
