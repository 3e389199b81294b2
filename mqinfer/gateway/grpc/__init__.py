"""The Open Inference Protocol v2 over gRPC: the methods of Triton's and KServe's `inference.GRPCInferenceService`."""

from __future__ import annotations

from typing import Any

import grpc

from mqinfer.gateway.access import Access, Right
from mqinfer.gateway.core import Core
from mqinfer.gateway.grpc.health import make_health
from mqinfer.gateway.grpc.infer import make_infer, make_stream
from mqinfer.gateway.grpc.service import METHODS, make_work
from mqinfer.gateway.grpc_calls import unary
from mqinfer.gateway.settings import GatewaySettings

__all__ = ["make_handlers"]

_SERVICE = "inference.GRPCInferenceService"


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
        make_health(core, access, [_SERVICE]),
    ]
