"""From the core's result to the bytes of a `ModelInferResponse`: the tensors are copied once, into the reply."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from mqinfer.client.result import InferResult
from mqinfer.gateway.grpc.wire import delimited
from mqinfer.gateway.grpc_calls import text_of
from mqinfer.gateway.messages import message_class
from mqinfer.protocol.datatypes import Buffer, datatype_of, raw_bytes
from mqinfer.protocol.errors import MqinferError

__all__ = ["error_message", "response", "stream_response"]

_RESPONSE = message_class("inference.ModelInferResponse")
_STREAM_RESPONSE = message_class("inference.ModelStreamInferResponse")
_ID, _RAWS = 3, 6  # fields of the response
_INFER_RESPONSE = 2  # field of the stream's response
_CACHED = 1024
_FINAL = {"triton_final_response": message_class("inference.InferParameter")(bool_param=True)}
"""The protocol asks for it in the last reply to each request of a stream; here each has one."""
_FINAL_BYTES = _RESPONSE(parameters=_FINAL).SerializeToString()


def response(result: InferResult, request_id: str) -> bytes:
    """Return a reply, with all tensors as `raw_output_contents`."""
    return b"".join(_pieces(result, request_id))


def stream_response(result: InferResult, request_id: str) -> bytes:
    """Return a reply of a stream."""
    pieces = [*_pieces(result, request_id), _FINAL_BYTES]
    return b"".join((delimited(_INFER_RESPONSE, sum(map(len, pieces))), *pieces))


def error_message(error: MqinferError, request_id: str, model: str) -> bytes:
    """Return the reply of a stream to a request that failed.

    Args:
        error: Why.
        request_id: As the caller stated it; may be empty.
        model: Likewise.
    """
    failed = _RESPONSE(id=request_id, model_name=model, parameters=_FINAL)
    message: bytes = _STREAM_RESPONSE(error_message=text_of(error), infer_response=failed).SerializeToString()
    return message


def _pieces(result: InferResult, request_id: str) -> list[Buffer]:
    """Return a reply in pieces; those of tensors are views where the arrays are contiguous."""
    outputs = result.outputs
    described = tuple((name, array.dtype, array.shape) for name, array in outputs.items())
    pieces: list[Buffer] = [_head(result.model_name, result.model_version, described)]
    if request_id:
        octets = request_id.encode()
        pieces += (delimited(_ID, len(octets)), octets)
    for name, array in outputs.items():
        raw = raw_bytes(name, array)
        pieces += (delimited(_RAWS, len(raw)), raw)
    return pieces


@lru_cache(_CACHED)
def _head(model: str, version: str, outputs: tuple[tuple[str, np.dtype[np.generic], tuple[int, ...]], ...]) -> bytes:
    """Return what the replies of a model have in common, as long as the shapes are the same."""
    message = _RESPONSE(model_name=model, model_version=version)
    for name, dtype, shape in outputs:
        message.outputs.add(name=name, datatype=str(datatype_of(dtype)), shape=shape)
    head: bytes = message.SerializeToString()
    return head
