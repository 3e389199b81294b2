"""`application/json`: the Open Inference Protocol's own JSON, with its optional binary tail.

So that a script, Node-RED or `mosquitto_pub` can ask for an inference. Over HTTP the length of the JSON part before a
binary tail stands in the header `Inference-Header-Content-Length`; over MQTT in the user property of that name.
Specification: https://github.com/kserve/open-inference-protocol, and Triton's binary tensor data extension.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mqinfer.protocol.datatypes import Array, datatype_of
from mqinfer.protocol.errors import BadEncoding, BadEnvelope, BadTensor, LimitExceeded
from mqinfer.protocol.fields import Record, array, integer, record, records, scalars, text
from mqinfer.protocol.header import (
    error_message,
    make_request,
    make_response,
    reply_fields,
    request_parameters,
    requested_outputs,
    response_parameters,
)
from mqinfer.protocol.json_data import data_of_array, raw_of_data
from mqinfer.protocol.json_text import MAX_JSON_BYTES, parse_object, write_object
from mqinfer.protocol.limits import DEFAULT_LIMITS, Limits
from mqinfer.protocol.raw_form import from_raw, little_endian, raw_bytes
from mqinfer.protocol.shapes import array_bytes, datatype_named
from mqinfer.protocol.types import Buffer, EncodedTensor, ErrorInfo, InferRequest, InferResponse, Scalar

__all__ = [
    "BINARY_OUTPUT",
    "CONTENT_TYPE",
    "HEADER_LENGTH",
    "decode_request",
    "decode_response",
    "encode_request",
    "encode_response",
]

CONTENT_TYPE = "application/json"
HEADER_LENGTH = "Inference-Header-Content-Length"
"""User property with the length of the JSON part, in bytes, where a binary tail follows."""
BINARY_OUTPUT = "binary_data_output"
"""Request parameter: true asks for a reply with a binary tail."""

_TENSOR = frozenset(("encoding", "binary_data_size"))


def encode_request(request: InferRequest, *, binary: bool = False) -> tuple[bytes, int | None]:
    """Write a request.

    Args:
        request: Its model does not travel in the payload: it stands in the topic.
        binary: Put the tensors' bytes behind the JSON (the only way for FP16 and for codecs).

    Returns:
        The payload, and the length of its JSON part where a tail follows.

    Raises:
        BadEncoding: A tensor is encoded, and `binary` is false.
        BadEnvelope: A field or parameter can't be written.
        BadTensor: A tensor can't be written as JSON.
    """
    tail: list[Buffer] = []
    described = [_input(tensor, tail if binary else None) for tensor in request.inputs]
    body: dict[str, Any] = {"id": request.id} if request.id else {}
    body |= {"parameters": request_parameters(request), "inputs": described}
    if request.outputs:
        body["outputs"] = requested_outputs(request.outputs)
    return _join(body, tail, "request")


def encode_response(response: InferResponse, *, arrays: Mapping[str, Array], binary: bool) -> tuple[bytes, int | None]:
    """Write a reply.

    Args:
        response: The reply; its `outputs` are not looked at.
        arrays: The outputs, by name; left out unless the outcome is `ok`.
        binary: Put the outputs' bytes behind the JSON.

    Returns:
        The payload, and the length of its JSON part where a tail follows.

    Raises:
        BadEnvelope: A field or parameter can't be written.
        BadTensor: An output can't be written as JSON (FP16, strings that are not UTF-8).
    """
    body: dict[str, Any] = {"id": response.id, "model_name": response.model_name}
    if response.model_version:
        body["model_version"] = response.model_version
    body["parameters"] = {"outcome": response.outcome, **response_parameters(response), **reply_fields(response)}
    tail: list[Buffer] = []
    if response.error is not None:
        body["error"] = error_message(response.error.message)
        body["parameters"]["error_code"] = response.error.code
    else:
        body["outputs"] = [_output(name, output, tail if binary else None) for name, output in arrays.items()]
    return _join(body, tail, "reply")


def decode_request(
    payload: Buffer,
    model_name: str,
    model_version: str | None = None,
    *,
    header_length: int | None = None,
    limits: Limits = DEFAULT_LIMITS,
) -> InferRequest:
    """Read a request.

    Args:
        payload: JSON, with a binary tail if `header_length` says so.
        model_name: From the topic.
        model_version: From the topic.
        header_length: Of the JSON part, or None where that is all.
        limits: Bounds.

    Returns:
        The request; `id` is empty where it has none. Tensors are raw, those of the tail are views on the payload.
        Where an output asks for `binary_data`, so does the whole request (`BINARY_OUTPUT`).

    Raises:
        BadEnvelope: It is no such JSON.
        BadTensor: A tensor's name, datatype, shape or data won't do.
        LimitExceeded: Something is larger than `limits`.
    """
    body, tail = _split(payload, header_length, limits, "request")
    inputs = _tensors(body, "inputs", tail, limits)
    if any(record(entry, "parameters", "output").get("binary_data") for entry in records(body, "outputs", "request")):
        body["parameters"] = {BINARY_OUTPUT: True, **record(body, "parameters", "request")}
    return make_request(body, text(body, "id", "request", ""), (model_name, model_version), inputs)


def decode_response(
    payload: Buffer, header_length: int | None = None, limits: Limits = DEFAULT_LIMITS
) -> InferResponse:
    """Read a reply; tensors are raw, those of the tail are views on the payload.

    Raises:
        BadEnvelope: It is no such JSON.
        BadTensor: A tensor's name, datatype, shape or data won't do.
        LimitExceeded: Something is larger than `limits`.
    """
    body, tail = _split(payload, header_length, limits, "reply")
    outputs = _tensors(body, "outputs", tail, limits)
    reply, error = record(body, "parameters", "reply"), None
    if "error" in body:
        error = ErrorInfo(text(reply, "error_code", "reply", "internal"), text(body, "error", "reply"))
        reply = {"outcome": "error", **reply}
    return make_response({"id": "", **body}, reply, outputs, error)


def _describe(name: str, datatype: str, shape: Sequence[int], parameters: Mapping[str, Scalar]) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": name, "datatype": datatype, "shape": shape}
    return entry | {"parameters": parameters} if parameters else entry


def _input(tensor: EncodedTensor, tail: list[Buffer] | None) -> dict[str, Any]:
    parameters = dict(tensor.parameters)
    if not _TENSOR.isdisjoint(parameters):
        names = " and ".join(sorted(_TENSOR))
        raise BadEnvelope(f"tensor {tensor.name!r}: parameters {names} are set by its fields")
    if tail is not None:
        tail.append(tensor.data)
        parameters["binary_data_size"] = memoryview(tensor.data).nbytes
        if tensor.encoding != "raw":
            parameters["encoding"] = tensor.encoding
        return _describe(tensor.name, tensor.datatype, tensor.shape, parameters)
    if tensor.encoding != "raw":
        raise BadEncoding(f"tensor {tensor.name!r}: JSON data can't be encoded as {tensor.encoding!r}; use binary")
    raw = from_raw(tensor.name, tensor.datatype, tensor.shape, tensor.data)
    return _describe(tensor.name, tensor.datatype, tensor.shape, parameters) | {"data": data_of_array(tensor.name, raw)}


def _output(name: str, output: Array, tail: list[Buffer] | None) -> dict[str, Any]:
    datatype = datatype_of(output.dtype)
    if tail is None:
        return _describe(name, datatype, output.shape, {}) | {"data": data_of_array(name, output)}
    data = raw_bytes(name, little_endian(output))
    tail.append(data)
    return _describe(name, datatype, output.shape, {"binary_data_size": memoryview(data).nbytes})


def _join(body: dict[str, Any], tail: Sequence[Buffer], what: str) -> tuple[bytes, int | None]:
    written = write_object(body, what)
    return (b"".join((written, *tail)), len(written)) if tail else (written, None)


def _split(payload: Buffer, header_length: int | None, limits: Limits, what: str) -> tuple[dict[str, Any], memoryview]:
    view = memoryview(payload).toreadonly().cast("B")
    if len(view) > limits.payload_bytes:
        raise LimitExceeded(f"{what}: payload of {len(view)} bytes; at most {limits.payload_bytes} are accepted")
    end = len(view) if header_length is None else header_length
    if header_length == 0:
        raise BadEnvelope(f"{what}: {HEADER_LENGTH} 0 (a raw single-input request) is not supported; send JSON")
    if not 0 < end <= len(view):
        raise BadEnvelope(f"{what}: {HEADER_LENGTH} is {end}, but the payload has {len(view)} bytes")
    return parse_object(view[:end], what, MAX_JSON_BYTES), view[end:]


def _tensors(body: Record, key: str, tail: memoryview, limits: Limits) -> tuple[EncodedTensor, ...]:
    described = records(body, key, "body")
    if len(described) > limits.tensors:
        raise LimitExceeded(f"{len(described)} {key}; at most {limits.tensors} are accepted")
    found = []
    for entry in described:
        tensor, tail = _tensor(entry, tail, limits)
        found.append(tensor)
    if tail:
        raise BadEnvelope(f"{len(tail)} bytes are left behind the {key}; the sizes don't add up")
    if len({tensor.name for tensor in found}) != len(found):
        raise BadTensor(f"two {key} of the same name; give each once")
    return tuple(found)


def _tensor(entry: Record, tail: memoryview, limits: Limits) -> tuple[EncodedTensor, memoryview]:
    name = text(entry, "name", "tensor")
    datatype = datatype_named(entry.get("datatype"), name)
    shape = array(entry, "shape", f"tensor {name!r}")
    array_bytes(name, datatype, shape, limits)
    parameters = record(entry, "parameters", f"tensor {name!r}")
    further = scalars({key: value for key, value in parameters.items() if key not in _TENSOR}, name)
    if "binary_data_size" not in parameters:
        data = raw_of_data(name, datatype, tuple(shape), array(entry, "data", f"tensor {name!r}"))
        return EncodedTensor(name, datatype, tuple(shape), "raw", data, further), tail
    size = integer(parameters, "binary_data_size", f"tensor {name!r}")
    if size > len(tail):
        raise BadTensor(f"tensor {name!r}: {size} bytes wanted, {len(tail)} left behind the JSON; set {HEADER_LENGTH}")
    encoding = text(parameters, "encoding", f"tensor {name!r}", "raw")
    return EncodedTensor(name, datatype, tuple(shape), encoding, tail[:size], further), tail[size:]
