"""`application/vnd.mqinfer.v1`: requests and replies as bytes, and back; decoding copies no tensor.

::

    0   "MQI1"
    4   header length, uint32, little-endian
    8   header: one MessagePack map (mqinfer.protocol.header)
        zeros up to a multiple of 64, counted from the start of the payload
        the first tensor's bytes, zeros up to a multiple of 64
        the second tensor's bytes, …

A payload's length is therefore a multiple of 64. docs/reference/protocol.md is the full specification.

The header is read in one pass: msgspec fills the shapes below and checks every type and range in C. The bounds that
shapes can't express come around it: the header's length before it is read, strings, tensors and axes after.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from struct import Struct as Layout
from typing import Any, ClassVar, TypeVar

import msgspec
from msgspec import Struct

from mqinfer.protocol.datatypes import ITEM_BYTES, Datatype, array_bytes
from mqinfer.protocol.decoding import MAX_NESTING, NO_CONTAINERS, is_deep_msgpack, refusal, scalars
from mqinfer.protocol.errors import BadEnvelope, BadTensor, LimitExceeded
from mqinfer.protocol.header import (
    TENSOR_PARAMETERS,
    OutputShape,
    Parameters,
    ReplyShape,
    error_message,
    make_request,
    make_response,
    reply_fields,
    request_parameters,
    requested_outputs,
    response_parameters,
)
from mqinfer.protocol.limits import DEFAULT_LIMITS, Limits
from mqinfer.protocol.types import Buffer, Count, EncodedTensor, ErrorInfo, InferRequest, InferResponse

CONTENT_TYPE = "application/vnd.mqinfer.v1"
MAGIC = b"MQI1"
ALIGNMENT = 64
"""Tensors start at multiples of this, counted from the start of the payload."""

_HEAD = Layout("<4sI")
_PADDING = tuple(bytes(-size % ALIGNMENT) for size in range(ALIGNMENT))
_WORTH_PIECES = 1 << 14
"""A payload with more bytes of tensors than this is left in pieces; a smaller one is copied, which costs less."""


class _Tensor(Struct, gc=False):
    name: str
    datatype: Datatype
    shape: tuple[Count, ...]
    parameters: Parameters | None = None


class _Request(Struct, gc=False):
    TENSOR_FIELDS: ClassVar = ("datatype", "shape")

    id: str
    model_name: str
    model_version: str | None = None
    parameters: Parameters | None = None
    outputs: list[OutputShape] | None = None
    inputs: list[_Tensor] | None = None


class _Reply(ReplyShape, kw_only=True, gc=False):
    TENSOR_FIELDS: ClassVar = ("datatype", "shape")

    id: str
    model_name: str = ""
    model_version: str = ""
    error: ErrorInfo | None = None
    parameters: Parameters | None = None
    outputs: list[_Tensor] | None = None


_Shape = TypeVar("_Shape", _Request, _Reply)
_pack = msgspec.msgpack.Encoder().encode
_REQUESTS = msgspec.msgpack.Decoder(_Request)
_REPLIES = msgspec.msgpack.Decoder(_Reply)


def encode_request(request: InferRequest) -> bytes:
    """Return the payload of a request in one piece; its tensors are copied once, into the payload.

    Raises:
        BadEnvelope: A field or parameter can't be packed, or a parameter takes the name of a field.
    """
    return b"".join(request_pieces(request))


def request_pieces(request: InferRequest, limits: Limits = DEFAULT_LIMITS) -> tuple[Buffer, ...]:
    """Return the payload of a request in pieces, one after another; no large tensor is copied.

    Args:
        request: What to send.
        limits: Bounds of the header.

    Raises:
        BadEnvelope: A field or parameter can't be packed, or a parameter takes the name of a field.
        BadTensor: A tensor's data is not contiguous in memory.
        LimitExceeded: The header, or a string in it, is longer than `limits`.
    """
    header: dict[str, Any] = {"id": request.id, "model_name": request.model_name}
    if request.model_version is not None:
        header["model_version"] = request.model_version
    parameters = request_parameters(request)
    if parameters:
        header["parameters"] = parameters
    if request.outputs:
        header["outputs"] = requested_outputs(request.outputs)
    return _pieces(header, "inputs", request.inputs, limits)


def encode_response(response: InferResponse) -> bytes:
    """Return the payload of a reply in one piece; its tensors are copied once, into the payload.

    Raises:
        BadEnvelope: A field or parameter can't be packed, or a parameter takes the name of a field.
    """
    return b"".join(response_pieces(response))


def response_pieces(response: InferResponse) -> tuple[Buffer, ...]:
    """Return the payload of a reply in pieces, one after another; no large tensor is copied.

    Raises:
        BadEnvelope: A field or parameter can't be packed, or a parameter takes the name of a field.
        LimitExceeded: The header, or a string in it, is longer than receivers accept.
    """
    header: dict[str, Any] = {"id": response.id, "model_name": response.model_name}
    if response.model_version:
        header["model_version"] = response.model_version
    reply_fields(response, header)
    if response.error is not None:
        header["error"] = {"code": response.error.code, "message": error_message(response.error.message)}
    parameters = response_parameters(response)
    if parameters:
        header["parameters"] = parameters
    return _pieces(header, "outputs", response.outputs, DEFAULT_LIMITS)


def decode_request(payload: Buffer, limits: Limits = DEFAULT_LIMITS) -> InferRequest:
    """Decode a request; its tensors are read-only views of the payload.

    Raises:
        BadEnvelope: The payload is not of this content type.
        BadTensor: A tensor's name, datatype, shape or size is wrong.
        LimitExceeded: Something is larger than `limits`.
    """
    header, view, start = _open(payload, limits, _REQUESTS, "request")
    inputs = _tensors(header.inputs, "inputs", view, start, limits)
    model = (header.model_name, header.model_version)
    return make_request(header.id, model, inputs, header.outputs, header.parameters)


def decode_response(payload: Buffer, limits: Limits = DEFAULT_LIMITS) -> InferResponse:
    """Decode a reply; its tensors are read-only views of the payload.

    Raises:
        BadEnvelope: The payload is not of this content type.
        BadTensor: A tensor's name, datatype, shape or size is wrong.
        LimitExceeded: Something is larger than `limits`.
    """
    header, view, start = _open(payload, limits, _REPLIES, "reply")
    outputs = _tensors(header.outputs, "outputs", view, start, limits)
    names = (header.id, header.model_name, header.model_version)
    return make_response(names, header, outputs, header.error, header.parameters)


def _pieces(header: dict[str, Any], key: str, tensors: Sequence[EncodedTensor], limits: Limits) -> tuple[Buffer, ...]:
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
        packed = _pack(header)
    except (TypeError, ValueError, OverflowError) as error:
        raise _unpackable(header, error) from error
    length = len(packed)
    if length > limits.string_bytes:
        _check_header(header, length, limits)
    pieces[0] = _HEAD.pack(MAGIC, length) + packed + _PADDING[(_HEAD.size + length) % ALIGNMENT]
    if total > _WORTH_PIECES:
        return tuple(pieces)
    try:
        return (b"".join(pieces),)
    except (TypeError, BufferError) as error:
        raise BadTensor(f"a tensor's data must be contiguous bytes; copy the array first ({error})") from error


def _unpackable(header: dict[str, Any], error: Exception) -> BadEnvelope:
    """Return the error that names the field or parameter which can't be packed."""
    for path, value in _fields(header):
        try:
            _pack(value)
        except UnicodeEncodeError:
            return BadEnvelope(f"{path!a} can't be packed: {str(value)[:80]!a} is not Unicode, send a valid string")
        except (TypeError, ValueError, OverflowError) as fault:
            return BadEnvelope(f"{path!a} can't be packed ({fault}); use booleans, numbers and strings")
    return BadEnvelope(f"a field or parameter can't be packed ({error}); use booleans, numbers and strings")


def _check_header(header: dict[str, Any], length: int, limits: Limits) -> None:
    if length > limits.header_bytes:
        raise LimitExceeded(
            f"header of {length} bytes; at most {limits.header_bytes} are accepted: send fewer tensors or parameters"
        )
    for path, value in _fields(header):
        size = len(value.encode()) if isinstance(value, str) else 0
        if size > limits.string_bytes:
            raise LimitExceeded(f"{path[:80]!r} has {size} bytes; at most {limits.string_bytes} are accepted")


def _fields(value: object, path: str = "") -> Iterator[tuple[str, object]]:
    """Iterate over all within a header, each with its path, such as `inputs[0].name`; keys come like values."""
    if isinstance(value, Mapping):
        for key, field in value.items():
            name = f"{path}.{key}" if path else str(key)
            yield name, key
            yield from _fields(field, name)
    elif isinstance(value, list | tuple):
        for number, field in enumerate(value):
            yield from _fields(field, f"{path}[{number}]")
    else:
        yield path, value


def _describe(tensor: EncodedTensor, size: int) -> dict[str, Any]:
    parameters: dict[str, Any] = {"binary_data_size": size}
    if tensor.encoding != "raw":
        parameters["encoding"] = tensor.encoding
    if tensor.parameters:
        if not TENSOR_PARAMETERS.isdisjoint(tensor.parameters):
            raise BadEnvelope(
                f"tensor {tensor.name!r}: parameters 'encoding' and 'binary_data_size' are set by its fields"
            )
        parameters |= tensor.parameters
    return {"name": tensor.name, "datatype": tensor.datatype, "shape": tensor.shape, "parameters": parameters}


def _open(
    payload: Buffer, limits: Limits, decoder: msgspec.msgpack.Decoder[_Shape], what: str
) -> tuple[_Shape, memoryview, int]:
    """Decode the header; return it, a view of the whole payload, and where the tensors begin."""
    view = memoryview(payload).toreadonly().cast("B")
    size = len(view)
    if size > limits.payload_bytes:
        raise LimitExceeded(f"payload of {size} bytes; at most {limits.payload_bytes} are accepted")
    magic, length = _HEAD.unpack_from(view) if size >= _HEAD.size else (b"", 0)
    if magic != MAGIC:
        raise BadEnvelope(
            f"payload of {size} bytes begins with {bytes(view[:4])!r}; {CONTENT_TYPE} begins with {MAGIC!r}:"
            " set the Content Type that the payload has"
        )
    end = _HEAD.size + length
    if end > size:
        raise BadEnvelope(
            f"header of {length} bytes does not fit into a payload of {size} bytes: truncated, or a wrong length"
        )
    if length > limits.header_bytes:
        raise LimitExceeded(f"header of {length} bytes; at most {limits.header_bytes} are accepted")
    packed = view[_HEAD.size : end]
    if len(packed.tobytes().translate(None, NO_CONTAINERS)) > MAX_NESTING and is_deep_msgpack(packed):
        raise BadEnvelope(f"{what}: the header's MessagePack is nested more than {MAX_NESTING} deep")
    try:
        header = decoder.decode(packed)
        if length > limits.string_bytes:
            _check_strings(msgspec.msgpack.decode(packed), limits.string_bytes)
    except (ValueError, RecursionError) as error:
        raise refusal(error, decoder.type, what, "the header is no MessagePack map") from error
    return header, view, end + -end % ALIGNMENT


def _check_strings(header: object, most: int) -> None:
    """Raise ValueError where a string has more than `most` bytes."""
    found: list[Any] = [header]
    for value in found:  # the list grows while it is walked
        if type(value) is dict:
            found += (*value, *value.values())
        elif type(value) is list:
            found += value
        elif type(value) is str and len(value.encode()) > most:
            raise ValueError(f"a string of {len(value.encode())} bytes; at most {most} are accepted")


def _tensors(
    described: Sequence[_Tensor] | None, key: str, view: memoryview, start: int, limits: Limits
) -> tuple[EncodedTensor, ...]:
    described = described or ()
    if len(described) > limits.tensors:
        raise LimitExceeded(f"{len(described)} {key}; at most {limits.tensors} are accepted")
    found = []
    for entry in described:
        tensor, start = _tensor(entry, view, start, limits)
        found.append(tensor)
    if start != len(view):
        raise BadEnvelope(
            f"payload has {len(view)} bytes but its header and {key}, padded to {ALIGNMENT}, take {start}:"
            " truncated, or trailing bytes"
        )
    if len(found) > 1 and len({tensor.name for tensor in found}) != len(found):
        raise BadTensor(f"two {key} have the same name; send each once")
    return tuple(found)


def _tensor(entry: _Tensor, view: memoryview, start: int, limits: Limits) -> tuple[EncodedTensor, int]:
    name, datatype, shape, parameters = entry.name, entry.datatype, entry.shape, entry.parameters or {}
    if len(shape) > limits.dimensions or not 0 < prod(shape) * ITEM_BYTES[datatype] <= limits.tensor_bytes:
        array_bytes(name, datatype, shape, limits)
    size = parameters.get("binary_data_size")
    if type(size) is not int or size < 0:
        raise BadEnvelope(f"tensor {name!r}: 'binary_data_size' is missing, or is not an integer of 0 or more")
    end = start + size
    if end > len(view):
        raise BadTensor(
            f"tensor {name!r}: {size} bytes from {start} on don't fit into a payload of {len(view)} bytes:"
            " truncated, or a wrong binary_data_size"
        )
    encoding = parameters.get("encoding", "raw")
    if type(encoding) is not str:
        raise BadEnvelope(f"tensor {name!r}: 'encoding' must be a string")
    further = scalars(parameters, TENSOR_PARAMETERS, f"tensor {name!r}") if len(parameters) > 1 else {}
    return EncodedTensor(name, datatype, shape, encoding, view[start:end], further), end + -end % ALIGNMENT
