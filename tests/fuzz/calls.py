"""What callers send to a gateway and to a dashboard."""

from __future__ import annotations

from contextlib import suppress

from mqinfer.dashboard.connect_packet import with_login
from mqinfer.gateway.grpc import requests
from mqinfer.gateway.grpc_calls import GrpcCaller
from mqinfer.gateway.rest.request import read_request
from mqinfer.gateway.tfs.examples import examples_from_json
from mqinfer.gateway.tfs.json_tensors import parse, read_predict
from mqinfer.protocol.card import SignatureTensor
from mqinfer.protocol.datatypes import Datatype
from mqinfer.protocol.errors import MqinferError

__all__ = ["connect", "grpc", "rest", "tfs"]

_CALLER = GrpcCaller("c", "ipv4:127.0.0.1:1", {}, None)
_INPUTS = (
    (SignatureTensor("x", Datatype.FP32, (-1, 3)),),
    (SignatureTensor("x", Datatype.UINT8, (-1, -1)), SignatureTensor("y", Datatype.BYTES, (-1,))),
    (SignatureTensor("b_bytes", Datatype.BYTES, (-1, -1)), SignatureTensor("f", Datatype.BOOL, (-1,))),
)


def rest(data: bytes) -> None:
    """Read a request of the Open Inference Protocol, behind two bytes that say how long its JSON is; 0 for all."""
    stated, body = int.from_bytes(data[:2], "little"), data[2:]
    read_request(body, min(stated - 1, len(body)) if stated else len(body), "m")


def grpc(data: bytes) -> None:
    """Read a message of gRPC, whole and cut into its tensors as a large one is."""
    with suppress(MqinferError):
        requests.read_call(requests.read_request(data), _CALLER)
    requests.read_call(requests._cut(memoryview(data)), _CALLER)


def tfs(data: bytes) -> None:
    """Read JSON of TensorFlow Serving by each of a few signatures."""
    content = parse(data)
    for inputs in _INPUTS:
        with suppress(MqinferError):
            read_predict(content, inputs)
    examples_from_json(content)


def connect(data: bytes) -> None:
    """Read the CONNECT of a browser."""
    with_login(data, "c", "u", "p")
