"""The Open Inference Protocol v2 over gRPC: the methods of Triton's and KServe's `inference.GRPCInferenceService`."""

from __future__ import annotations

from typing import Any

import grpc

from mqinfer.gateway.access import Access, Right
from mqinfer.gateway.core import Core
from mqinfer.gateway.grpc.infer import make_infer, make_stream
from mqinfer.gateway.grpc.reflection import make_reflection
from mqinfer.gateway.grpc.service import METHODS, make_work
from mqinfer.gateway.grpc_calls import GrpcCaller, unary
from mqinfer.gateway.messages import message_class, parse
from mqinfer.gateway.settings import GatewaySettings
from mqinfer.protocol.errors import ModelNotFound

__all__ = ["make_handlers"]

_SERVICE = "inference.GRPCInferenceService"
_HEALTH_REQUEST, _HEALTH_RESPONSE = (
    message_class(f"grpc.health.v1.HealthCheck{each}") for each in ("Request", "Response")
)


def make_handlers(core: Core, access: Access, settings: GatewaySettings) -> list[Any]:
    """Return the generic handlers of the services, for `make_server`.

    Args:
        core: Answers the calls.
        access: Decides who may call what.
        settings: Of the gateway.
    """
    methods = {
        name: unary(access, right, make_work(name, method, core, settings), core)
        for name, (right, method) in METHODS.items()
    }
    methods["ModelInfer"] = unary(access, Right.INFERENCE, make_infer(core), core)
    methods["ModelStreamInfer"] = make_stream(core, access)
    return [
        grpc.method_handlers_generic_handler(_SERVICE, methods),
        _make_health(core, access),
        *make_reflection(core, access, ("grpc_service.proto", "health.proto")),
    ]


def _make_health(core: Core, access: Access) -> Any:
    """Return the handler of `grpc.health.v1.Health`, which load balancers and Kubernetes ask.

    Its `Watch` is unimplemented, as the protocol allows; the empty name stands for the whole server. See
    https://github.com/grpc/grpc/blob/master/doc/health-checking.md
    """

    async def check(data: bytes, _: GrpcCaller) -> bytes:
        service = parse(_HEALTH_REQUEST, data).service
        if service not in {"", _SERVICE}:
            raise ModelNotFound(f"unknown service {service[:100]!r}; known are {_SERVICE}")
        reply: bytes = _HEALTH_RESPONSE(status=1 if core.ready() else 2).SerializeToString()
        return reply

    handler = unary(access, Right.HEALTH, check, core)
    return grpc.method_handlers_generic_handler("grpc.health.v1.Health", {"Check": handler})
