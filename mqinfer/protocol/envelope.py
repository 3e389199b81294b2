"""`application/vnd.mqinfer.v1`: a request or a reply as bytes, and back, without copying a tensor on decoding.

::

    0   "MQI1"
    4   header length, uint32, little-endian
    8   header: one MessagePack map (mqinfer.protocol.header)
        zeros up to a multiple of 64, counted from the start of the payload
        the first tensor's bytes, zeros up to a multiple of 64
        the second tensor's bytes, …

A payload's length is therefore a multiple of 64. docs/protocol.md is the full specification.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgpack

from mqinfer.protocol.datatypes import array_bytes, datatype_named
from mqinfer.protocol.errors import BadEnvelope, BadTensor, LimitExceeded
from mqinfer.protocol.fields import integer, record, records, scalars, text
from mqinfer.protocol.header import (
    error_message,
    make_request,
    make_response,
    reply_fields,
    request_parameters,
    requested_outputs,
    response_parameters,
)
from mqinfer.protocol.limits import DEFAULT_LIMITS, Limits
from mqinfer.protocol.types import Buffer, EncodedTensor, ErrorInfo, InferRequest, InferResponse

__all__ = [
    "ALIGNMENT",
    "CONTENT_TYPE",
    "MAGIC",
    "decode_request",
    "decode_response",
    "encode_request",
    "encode_response",
    "request_pieces",
    "response_pieces",
]

CONTENT_TYPE = "application/vnd.mqinfer.v1"
MAGIC = b"MQI1"
ALIGNMENT = 64
"""Tensors start at multiples of this, counted from the start of the payload."""

_FIXED = len(MAGIC) + 4
_PADDING = tuple(bytes(-size % ALIGNMENT) for size in range(ALIGNMENT))
_MAP_ENTRIES = 128
_WORTH_PIECES = 1 << 14
"""Bytes of tensors above which a payload is left in pieces; below, handling them would cost more than a copy."""


def encode_request(request: InferRequest) -> bytes:
    """Make the payload of a request in one piece; its tensors are copied once, into the payload.

    Raises:
        BadEnvelope: A field or parameter can't be packed, or a parameter takes the name of a field.
    """
    return b"".join(request_pieces(request))


def request_pieces(request: InferRequest) -> tuple[Buffer, ...]:
    """Make the payload of a request, in pieces that are to follow one another: no large tensor is copied.

    Raises:
        BadEnvelope: A field or parameter can't be packed, or a parameter takes the name of a field.
    """
    header: dict[str, Any] = {"id": request.id, "model_name": request.model_name}
    if request.model_version is not None:
        header["model_version"] = request.model_version
    parameters = request_parameters(request)
    if parameters:
        header["parameters"] = parameters
    if request.outputs:
        header["outputs"] = requested_outputs(request.outputs)
    return _pieces(header, "inputs", request.inputs)


def encode_response(response: InferResponse) -> bytes:
    """Make the payload of a reply in one piece; its tensors are copied once, into the payload.

    Raises:
        BadEnvelope: A field or parameter can't be packed, or a parameter takes the name of a field.
    """
    return b"".join(response_pieces(response))


def response_pieces(response: InferResponse) -> tuple[Buffer, ...]:
    """Make the payload of a reply, in pieces that are to follow one another: no large tensor is copied.

    Raises:
        BadEnvelope: A field or parameter can't be packed, or a parameter takes the name of a field.
    """
    header: dict[str, Any] = {"id": response.id, "model_name": response.model_name}
    if response.model_version:
        header["model_version"] = response.model_version
    header |= reply_fields(response)
    if response.error is not None:
        header["error"] = {"code": response.error.code, "message": error_message(response.error.message)}
    parameters = response_parameters(response)
    if parameters:
        header["parameters"] = parameters
    return _pieces(header, "outputs", response.outputs)


def decode_request(payload: Buffer, limits: Limits = DEFAULT_LIMITS) -> InferRequest:
    """Read a request; its tensors are read-only views on the payload.

    Raises:
        BadEnvelope: The payload is no message of this content type.
        BadTensor: A tensor's name, datatype, shape or size won't do.
        LimitExceeded: Something is larger than `limits`.
    """
    header, view, start = _split(payload, limits)
    inputs = _tensors(header, "inputs", view, start, limits)
    request_id = text(header, "id", "request")
    version = text(header, "model_version", "request") if "model_version" in header else None
    return make_request(header, request_id, (text(header, "model_name", "request"), version), inputs)


def decode_response(payload: Buffer, limits: Limits = DEFAULT_LIMITS) -> InferResponse:
    """Read a reply; its tensors are read-only views on the payload.

    Raises:
        BadEnvelope: The payload is no message of this content type.
        BadTensor: A tensor's name, datatype, shape or size won't do.
        LimitExceeded: Something is larger than `limits`.
    """
    header, view, start = _split(payload, limits)
    outputs = _tensors(header, "outputs", view, start, limits)
    found = record(header, "error", "reply")
    error = ErrorInfo(text(found, "code", "error"), text(found, "message", "error", "")) if found else None
    return make_response(header, header, outputs, error)


def _pieces(header: dict[str, Any], key: str, tensors: Sequence[EncodedTensor]) -> tuple[Buffer, ...]:
    header[key] = described = []
    pieces: list[Buffer] = [b""]
    total = 0
    for tensor in tensors:
        data = tensor.data
        size = data.nbytes if type(data) is memoryview else len(data)
        described.append(_describe(tensor, size))
        pieces += (data, _PADDING[size % ALIGNMENT])
        total += size
    try:
        packed: bytes = msgpack.packb(header)
    except (TypeError, ValueError, OverflowError) as error:
        raise BadEnvelope(
            f"a field or parameter can't be packed ({error}); use booleans, numbers and strings"
        ) from error
    length = len(packed)
    pieces[0] = MAGIC + length.to_bytes(4, "little") + packed + _PADDING[(_FIXED + length) % ALIGNMENT]
    return tuple(pieces) if total > _WORTH_PIECES else (b"".join(pieces),)


def _describe(tensor: EncodedTensor, size: int) -> dict[str, Any]:
    parameters: dict[str, Any] = {"binary_data_size": size}
    if tensor.encoding != "raw":
        parameters["encoding"] = tensor.encoding
    if tensor.parameters:
        if "binary_data_size" in tensor.parameters or "encoding" in tensor.parameters:
            raise BadEnvelope(
                f"tensor {tensor.name!r}: parameters 'encoding' and 'binary_data_size' are set by its fields"
            )
        parameters |= tensor.parameters
    return {"name": tensor.name, "datatype": tensor.datatype, "shape": tensor.shape, "parameters": parameters}


def _split(payload: Buffer, limits: Limits) -> tuple[dict[str, Any], memoryview, int]:
    view = memoryview(payload).toreadonly()
    if view.ndim != 1 or view.format != "B":
        view = view.cast("B")
    size = len(view)
    if size > limits.payload_bytes:
        raise LimitExceeded(f"payload of {size} bytes; at most {limits.payload_bytes} are accepted")
    if size < _FIXED or view[:4] != MAGIC:
        raise BadEnvelope(
            f"payload of {size} bytes begins with {bytes(view[:4])!r}, not with {MAGIC!r}: it is no {CONTENT_TYPE};"
            " set the Content Type that it has"
        )
    length = int.from_bytes(view[4:_FIXED], "little")
    end = _FIXED + length
    if end > size:
        raise BadEnvelope(
            f"header of {length} bytes does not fit a payload of {size} bytes: truncated, or a wrong length"
        )
    if length > limits.header_bytes:
        raise LimitExceeded(f"header of {length} bytes; at most {limits.header_bytes} are accepted")
    return _unpack(view[_FIXED:end], limits), view, end + -end % ALIGNMENT


def _refuse_extension(code: int, _data: bytes) -> object:
    raise ValueError(f"extension type {code} is not allowed")


def _unpack(packed: memoryview, limits: Limits) -> dict[str, Any]:
    try:
        header = msgpack.unpackb(
            packed,
            strict_map_key=True,
            ext_hook=_refuse_extension,
            max_array_len=max(limits.tensors, limits.dimensions),
            max_map_len=_MAP_ENTRIES,
            max_str_len=limits.string_bytes,
            max_bin_len=0,
            max_ext_len=0,
        )
    except (ValueError, TypeError, RecursionError) as error:
        raise BadEnvelope(f"header is no MessagePack map within the limits: {error}") from error
    if type(header) is not dict:
        raise BadEnvelope(f"header must be one MessagePack map, not {type(header).__name__}")
    return header


def _tensors(
    header: dict[str, Any], key: str, view: memoryview, start: int, limits: Limits
) -> tuple[EncodedTensor, ...]:
    described = records(header, key, "header")
    if len(described) > limits.tensors:
        raise LimitExceeded(f"{len(described)} {key}; at most {limits.tensors} are accepted")
    found = []
    for entry in described:
        tensor, start = _tensor(entry, view, start, limits)
        found.append(tensor)
    if start != len(view):
        raise BadEnvelope(
            f"payload has {len(view)} bytes where header and {key}, each padded to {ALIGNMENT}, make {start}:"
            " truncated, or trailing bytes"
        )
    if len({tensor.name for tensor in found}) != len(found):
        raise BadTensor(f"two {key} of the same name; give each once")
    return tuple(found)


def _tensor(entry: dict[str, Any], view: memoryview, start: int, limits: Limits) -> tuple[EncodedTensor, int]:
    name = text(entry, "name", "tensor")
    datatype = datatype_named(entry.get("datatype"), name)
    shape = entry.get("shape")
    if type(shape) is not list:
        raise BadTensor(f"tensor {name!r}: 'shape' must be an array of integers")
    array_bytes(name, datatype, shape, limits)
    parameters = record(entry, "parameters", "tensor")
    size = integer(parameters, "binary_data_size", name)
    end = start + size
    if end > len(view):
        raise BadTensor(
            f"tensor {name!r}: {size} bytes from {start} on don't fit a payload of {len(view)} bytes: truncated, or a"
            " wrong binary_data_size"
        )
    encoding = text(parameters, "encoding", name, "raw")
    further = {key: value for key, value in parameters.items() if key not in _TENSOR} if len(parameters) > 1 else {}
    tensor = EncodedTensor(name, datatype, tuple(shape), encoding, view[start:end], scalars(further, name))
    return tensor, end + -end % ALIGNMENT


_TENSOR = frozenset(("encoding", "binary_data_size"))
