"""`application/json`: the Open Inference Protocol's own JSON, with its optional binary tail.

With it a script, Node-RED or `mosquitto_pub` can ask for an inference. Over HTTP the length of the JSON part before a
binary tail stands in the header `Inference-Header-Content-Length`; over MQTT in the user property of that name.
Specification: https://github.com/kserve/open-inference-protocol, and Triton's binary tensor data extension.

NaN and the infinities, which JSON lacks, are the strings `"NaN"`, `"Infinity"` and `"-Infinity"`, as in the JSON form
of Protocol Buffers (https://protobuf.dev/programming-guides/json/).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import chain
from math import prod
from typing import Any, ClassVar

import numpy as np
from msgspec import Struct

from mqinfer.protocol.datatypes import (
    Array,
    Datatype,
    array_bytes,
    datatype_of,
    dtype_of,
    join_strings,
    little_endian,
    raw_bytes,
    to_bytes,
)
from mqinfer.protocol.decoding import MAX_JSON_BYTES, check, prepare, read_json, scalars, write_json
from mqinfer.protocol.errors import BadEnvelope, BadTensor, LimitExceeded
from mqinfer.protocol.header import (
    JSON_TYPE,
    TENSOR_PARAMETERS,
    OutputShape,
    Parameters,
    ReplyShape,
    error_message,
    make_request,
    make_response,
    reply_fields,
    response_parameters,
)
from mqinfer.protocol.limits import DEFAULT_LIMITS, Limits
from mqinfer.protocol.types import Buffer, Count, EncodedTensor, ErrorInfo, InferRequest, InferResponse, Outcome

CONTENT_TYPE = JSON_TYPE
HEADER_LENGTH = "Inference-Header-Content-Length"
"""User property with the length of the JSON part, in bytes, where a binary tail follows."""
BINARY_OUTPUT = "binary_data_output"
"""Request parameter: true requests a reply with a binary tail."""

_NOT_FINITE = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
_LENGTH = re.compile(r"[0-9]{1,12}")  # more digits than any payload has bytes
_ELEMENT_BYTES = 2
"""Fewest bytes that an element takes in JSON: a digit and a comma."""
_FLOATS = frozenset((Datatype.FP32, Datatype.FP64))
_KINDS = {str: "string", bool: "true or false", int: "integer"}
_FP16 = "FP16 travels only in the binary tail (user property Inference-Header-Content-Length)"


class _TensorParameters(Struct):
    binary_data_size: Count | None = None
    encoding: str = "raw"


class _Tensor(Struct, gc=False):
    name: str
    datatype: Datatype
    shape: tuple[Count, ...] = ()
    parameters: Parameters | None = None
    data: list[Any] | None = None


class _Request(Struct, gc=False):
    TENSOR_FIELDS: ClassVar = ("datatype", "shape")

    id: str = ""
    inputs: list[_Tensor] | None = None
    outputs: list[OutputShape] | None = None
    parameters: Parameters | None = None


class _Reply(Struct, gc=False):
    TENSOR_FIELDS: ClassVar = ("datatype", "shape")

    id: str = ""
    model_name: str = ""
    model_version: str = ""
    outputs: list[_Tensor] | None = None
    error: str | None = None
    parameters: Parameters | None = None


class _ReplyParameters(ReplyShape, gc=False):
    error_code: str = "internal"


prepare(_TensorParameters, _Request, _Reply, _ReplyParameters)


def header_length(properties: Sequence[tuple[str, str]]) -> int | None:
    """Return how many bytes of a message are JSON, from its user properties; None where they don't state it.

    Raises:
        BadEnvelope: What they state is no number of bytes.
    """
    stated = dict(properties).get(HEADER_LENGTH)
    if stated is None:
        return None
    if not _LENGTH.fullmatch(stated):
        raise BadEnvelope(f"user property {HEADER_LENGTH} is {stated[:40]!r}; expected a number of bytes")
    return int(stated)


def encode_response(response: InferResponse, *, arrays: Mapping[str, Array], binary: bool) -> tuple[bytes, int | None]:
    """Return a reply as JSON.

    Args:
        response: The reply; its `outputs` are ignored.
        arrays: The outputs, by name; left out unless the outcome is `ok`.
        binary: Append the outputs' bytes to the JSON.

    Returns:
        The payload, and the length of its JSON part if a tail follows.

    Raises:
        BadEnvelope: A field or parameter can't be written.
        BadTensor: An output can't be written as JSON (FP16, strings that are not UTF-8).
        LimitExceeded: The outputs have more elements than the JSON of a message can hold; found before any is written.
    """
    if not binary:
        _check_elements(sum(output.size for output in arrays.values()))
    body: dict[str, Any] = {"id": response.id, "model_name": response.model_name}
    if response.model_version:
        body["model_version"] = response.model_version
    body["parameters"] = parameters = {"outcome": response.outcome, **response_parameters(response)}
    reply_fields(response, parameters)
    tail: list[Buffer] = []
    if response.error is not None:
        body["error"] = error_message(response.error.message)
        parameters["error_code"] = response.error.code
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
    """Decode a request.

    Args:
        payload: JSON, with a binary tail if `header_length` is given.
        model_name: From the topic.
        model_version: From the topic.
        header_length: Length of the JSON part, or None if there is no tail.
        limits: Limits of this receiver.

    Returns:
        The request, with an empty `id` if it has none. Tensors are raw; those of the tail are views of the payload.
        If an output asks for `binary_data`, so does the whole request (`BINARY_OUTPUT`).

    Raises:
        BadEnvelope: It is not JSON, or a field is missing or wrong.
        BadTensor: A tensor's name, datatype, shape or data is wrong.
        LimitExceeded: Something is larger than `limits`.
    """
    text, tail = _split(payload, header_length, limits, "request")
    body = read_json(text, _Request, "request")
    inputs = _tensors(body.inputs, "inputs", tail, limits)
    parameters = body.parameters
    if any(output.parameters and output.parameters.binary_data for output in body.outputs or ()):
        parameters = {BINARY_OUTPUT: True, **(parameters or {})}
    return make_request(body.id, (model_name, model_version), inputs, body.outputs, parameters)


def decode_response(
    payload: Buffer, header_length: int | None = None, limits: Limits = DEFAULT_LIMITS
) -> InferResponse:
    """Decode a reply; tensors are raw, those of the tail are views of the payload.

    Raises:
        BadEnvelope: It is not JSON, or a field is missing or wrong.
        BadTensor: A tensor's name, datatype, shape or data is wrong.
        LimitExceeded: Something is larger than `limits`.
    """
    text, tail = _split(payload, header_length, limits, "reply")
    body = read_json(text, _Reply, "reply")
    outputs = _tensors(body.outputs, "outputs", tail, limits)
    parameters, error = body.parameters or {}, None
    reply = check(parameters, _ReplyParameters, "reply")
    if body.error is not None:
        error = ErrorInfo(reply.error_code, body.error)
        if "outcome" not in parameters:
            reply.outcome = Outcome.ERROR
    return make_response((body.id, body.model_name, body.model_version), reply, outputs, error, parameters)


def _check_elements(count: int) -> None:
    """Refuse what can't fit, since writing it would take seconds in which no other thread runs."""
    if count > MAX_JSON_BYTES // _ELEMENT_BYTES:
        raise LimitExceeded(
            f"outputs of {count} elements in JSON, which holds at most {MAX_JSON_BYTES} bytes; request them with "
            f"{BINARY_OUTPUT}, or as application/vnd.mqinfer.v1"
        )


def _output(name: str, output: Array, tail: list[Buffer] | None) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": name, "datatype": datatype_of(output.dtype), "shape": output.shape}
    if tail is None:
        return entry | {"data": data_of_array(name, output)}
    data = raw_bytes(name, little_endian(output))
    tail.append(data)
    return entry | {"parameters": {"binary_data_size": memoryview(data).nbytes}}


def _join(body: dict[str, Any], tail: Sequence[Buffer], what: str) -> tuple[bytes, int | None]:
    written = write_json(body, what)
    return (b"".join((written, *tail)), len(written)) if tail else (written, None)


def _split(payload: Buffer, header_length: int | None, limits: Limits, what: str) -> tuple[memoryview, memoryview]:
    """Split a payload into its JSON and its binary tail."""
    view = memoryview(payload).toreadonly().cast("B")
    if len(view) > limits.payload_bytes:
        raise LimitExceeded(f"{what}: payload of {len(view)} bytes; at most {limits.payload_bytes} are accepted")
    end = len(view) if header_length is None else header_length
    if header_length == 0:
        raise BadEnvelope(f"{what}: {HEADER_LENGTH} 0 (a raw single-input request) is not supported; send JSON")
    if not 0 < end <= len(view):
        raise BadEnvelope(f"{what}: {HEADER_LENGTH} is {end}, but the payload has {len(view)} bytes")
    return view[:end], view[end:]


def _tensors(
    described: Sequence[_Tensor] | None, key: str, tail: memoryview, limits: Limits
) -> tuple[EncodedTensor, ...]:
    described = described or ()
    if len(described) > limits.tensors:
        raise LimitExceeded(f"{len(described)} {key}; at most {limits.tensors} are accepted")
    found = []
    for entry in described:
        tensor, tail = _tensor(entry, tail, limits)
        found.append(tensor)
    if tail:
        raise BadEnvelope(f"{len(tail)} bytes are left behind the {key}; their sizes don't add up to the payload")
    if len({tensor.name for tensor in found}) != len(found):
        raise BadTensor(f"two {key} have the same name; send each once")
    return tuple(found)


def _tensor(entry: _Tensor, tail: memoryview, limits: Limits) -> tuple[EncodedTensor, memoryview]:
    name, datatype, shape, parameters = entry.name, entry.datatype, entry.shape, entry.parameters or {}
    array_bytes(name, datatype, shape, limits)
    known = check(parameters, _TensorParameters, f"tensor {name!r}")
    further = scalars(parameters, TENSOR_PARAMETERS, f"tensor {name!r}")
    size = known.binary_data_size
    if size is None:
        data = raw_of_data(name, datatype, shape, entry.data or [])
        return EncodedTensor(name, datatype, shape, "raw", data, further), tail
    if size > len(tail):
        raise BadTensor(
            f"tensor {name!r}: takes {size} bytes, but {len(tail)} are left behind the JSON; set {HEADER_LENGTH}"
        )
    return EncodedTensor(name, datatype, shape, known.encoding, tail[:size], further), tail[size:]


def raw_of_data(name: str, datatype: Datatype, shape: tuple[int, ...], data: list[Any]) -> bytes:
    """Return the raw form of a tensor's `data`.

    Args:
        name: Name of the tensor.
        datatype: As declared.
        shape: As declared.
        data: Flat, or nested exactly as the shape.

    Raises:
        BadTensor: The data differ from what is declared.
    """
    flat = _flatten(name, data, shape)
    kinds = set(map(type, flat))
    if datatype in _FLOATS:
        return _raw_floats(name, datatype, flat, kinds)
    if datatype is Datatype.FP16:
        raise BadTensor(f"tensor {name!r}: {_FP16}")
    wanted = {Datatype.BYTES: str, Datatype.BOOL: bool}.get(datatype, int)
    if kinds - {wanted}:
        raise BadTensor(f"tensor {name!r}: every element of {datatype} data must be a JSON {_KINDS[wanted]}")
    if datatype is Datatype.BYTES:
        return join_strings(flat, name)
    return bytes(flat) if datatype is Datatype.BOOL else _raw_integers(name, datatype, flat)


def data_of_array(name: str, array: Array) -> list[Any]:
    """Return a tensor's flat `data`.

    Raises:
        BadTensor: It is FP16, or has strings that are not UTF-8: these travel only in the binary tail.
    """
    datatype = datatype_of(array.dtype)
    if datatype is Datatype.FP16:
        raise BadTensor(f"tensor {name!r}: {_FP16}; set the request parameter binary_data_output")
    flat: list[Any] = array.ravel().tolist()
    if datatype is Datatype.BYTES:
        return [_text(name, element) for element in flat]
    if datatype in _FLOATS and not np.isfinite(array).all():
        return [element if np.isfinite(element) else _name_of(element) for element in flat]
    return flat


def _flatten(name: str, data: list[Any], shape: tuple[int, ...]) -> list[Any]:
    """Return the elements in row-major order; nested data must be nested exactly as the shape."""
    flat = data
    if len(shape) > 1 and data and type(data[0]) is list:
        if len(data) != shape[0]:
            raise _does_not_match(name, shape)
        for size in shape[1:]:
            if any(type(row) is not list or len(row) != size for row in flat):
                raise _does_not_match(name, shape)
            flat = list(chain.from_iterable(flat))
    if len(flat) != prod(shape):
        raise _does_not_match(name, shape)
    return flat


def _does_not_match(name: str, shape: tuple[int, ...]) -> BadTensor:
    return BadTensor(
        f"tensor {name!r}: data are neither a flat list of {prod(shape)} elements nor nested as {list(shape)}"
    )


def _raw_floats(name: str, datatype: Datatype, flat: list[Any], kinds: set[type]) -> bytes:
    if str in kinds:
        flat = [_NOT_FINITE.get(element, element) if type(element) is str else element for element in flat]
        kinds = set(map(type, flat))
    if kinds - {int, float}:
        names = ", ".join(_NOT_FINITE)
        raise BadTensor(f"tensor {name!r}: every element of {datatype} data must be a JSON number, or one of {names}")
    try:
        wide = np.array(flat, np.float64)
    except OverflowError as error:
        raise BadTensor(f"tensor {name!r}: a number does not fit {datatype}") from error
    with np.errstate(over="ignore"):
        narrow = wide.astype(dtype_of(datatype))
    if (np.isinf(narrow) != np.isinf(wide)).any():
        raise BadTensor(f"tensor {name!r}: a number does not fit {datatype}")
    return narrow.tobytes()


def _raw_integers(name: str, datatype: Datatype, flat: list[int]) -> bytes:
    dtype = dtype_of(datatype)
    bounds = np.iinfo(dtype.name)
    if flat and not (bounds.min <= min(flat) and max(flat) <= bounds.max):
        raise BadTensor(f"tensor {name!r}: {datatype} holds {bounds.min} to {bounds.max}; an element is outside")
    return np.array(flat, dtype).tobytes()


def _text(name: str, element: object) -> str:
    try:
        return to_bytes(element, name).decode()
    except UnicodeDecodeError as error:
        raise BadTensor(f"tensor {name!r}: a string is not UTF-8; it travels only in the binary tail") from error


def _name_of(element: float) -> str:
    if np.isnan(element):
        return "NaN"
    return "Infinity" if element > 0 else "-Infinity"
