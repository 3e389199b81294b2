"""From the bytes of a `ModelInferRequest` to the call that the core takes.

Tensors of a large request are views of its bytes; only names, shapes and parameters pass through protobuf.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mqinfer.gateway.calls import LARGE, InferCall
from mqinfer.gateway.checks import check_names, check_shape
from mqinfer.gateway.errors import Unsupported
from mqinfer.gateway.grpc.contents import raw_contents
from mqinfer.gateway.grpc_calls import GrpcCaller
from mqinfer.gateway.messages import message_class, parse
from mqinfer.gateway.pictures import REQUEST_PARAMETERS, TENSOR_PARAMETERS
from mqinfer.gateway.protocol_answers import NO_SHARED_MEMORY
from mqinfer.protobuf_wire import DELIMITED, delimited, fields
from mqinfer.protocol.datatypes import Buffer, Datatype
from mqinfer.protocol.errors import BadTensor, InvalidRequest, LimitExceeded
from mqinfer.protocol.limits import DEFAULT_LIMITS
from mqinfer.protocol.types import EncodedTensor, RequestedOutput, Scalar
from mqinfer.value_object import value_object

_SMALL_INPUT = 256
"""Bytes of an input whose typed contents stay in the message; the largest number of such inputs has room in it."""

_REQUEST = message_class("inference.ModelInferRequest")
_INPUTS, _RAWS, _CONTENTS = 5, 7, 5  # fields of the request, and of an input
_RESERVED = (
    "parameter keys starting with 'triton_' are reserved for Triton usage. Only the following keys starting with"
    " 'triton_' are allowed: triton_enable_empty_final_response"
)
_KINDS = {  # of parameters that mean something
    "sequence_id": ("int64_param", "uint64_param", "string_param"),
    "sequence_start": ("bool_param",),
    "sequence_end": ("bool_param",),
    "priority": ("int64_param", "uint64_param"),
    "timeout": ("int64_param", "uint64_param"),
    "triton_enable_empty_final_response": ("bool_param",),
    "classification": ("int64_param", "uint64_param"),
}


@value_object(eq=False)
class GrpcRequest:
    """A request as it came.

    Attributes:
        message: Everything but the large tensors.
        raws: `raw_input_contents`, in order.
        contents: Typed contents that are not in the message, by the number of their input.
        size: Bytes of all typed contents.
    """

    message: Any
    raws: list[Buffer]
    contents: Mapping[int, memoryview]
    size: int = 0


def read_request(data: bytes) -> GrpcRequest:
    """Read a request.

    Raises:
        InvalidRequest: It is no such message.
        LimitExceeded: It has more tensors, or longer names and parameters, than are accepted.
    """
    if len(data) > LARGE:
        return _cut(memoryview(data))
    message = parse(_REQUEST, data)
    return GrpcRequest(message, message.raw_input_contents, {})


def read_call(request: GrpcRequest, caller: GrpcCaller) -> InferCall:
    """Return the call of a request; slow for large typed contents.

    Raises:
        InvalidRequest: Something in it is wrong, or not offered here.
    """
    message = request.message
    if message.outputs:
        check_names("output", [output.name for output in message.outputs])
    priority = timeout = 0
    stated: dict[str, Scalar] = {}
    if message.parameters:
        priority, timeout = _parameters(message.parameters)
        stated = _stated(message.parameters, REQUEST_PARAMETERS)
    return InferCall(
        message.model_name,
        message.model_version,
        tuple(_inputs(request)),
        tuple(map(_output, message.outputs)) if message.outputs else (),
        caller.name,
        caller.deadline_s,
        timeout / 1e6 if timeout else None,
        priority,
        caller.headers.get("traceparent", ""),
        tracestate=caller.headers.get("tracestate", ""),
        parameters=stated,
    )


def _cut(view: memoryview) -> GrpcRequest:
    """Take the tensors out of a large request."""
    head = _Head()
    raws: list[Buffer] = []
    contents: dict[int, memoryview] = {}
    inputs = size = 0
    for number, kind, begin, start, end in fields(view):
        if number == _RAWS and kind == DELIMITED:
            raws.append(view[start:end])
            _check_count(len(raws))
        elif number == _INPUTS and kind == DELIMITED:
            inputs += 1
            _check_count(inputs)
            rest, typed = _cut_input(view[start:end])
            if typed is not None:
                contents[inputs - 1] = typed
                size += len(typed)
            head.add(delimited(_INPUTS, len(rest)))
            head.add(rest)
        else:
            head.add(view[begin:end])
    return GrpcRequest(parse(_REQUEST, head.joined()), raws, contents, size)


def _cut_input(view: memoryview) -> tuple[Buffer, memoryview | None]:
    """Return an input without its typed contents, and these."""
    if len(view) <= _SMALL_INPUT:
        return view, None
    head, found = _Head(), []
    for number, kind, begin, start, end in fields(view):
        if number == _CONTENTS and kind == DELIMITED:
            found.append(view[start:end])
            _check_count(len(found))
        else:
            head.add(view[begin:end])
    return head.joined(), memoryview(found[0] if len(found) == 1 else b"".join(found)) if found else None


class _Head:
    """Collects what is left of a message without its tensors."""

    def __init__(self) -> None:
        self._pieces: list[Buffer] = []
        self._size = 0

    def add(self, piece: Buffer) -> None:
        self._pieces.append(piece)
        self._size += len(piece)
        if self._size > LARGE:
            raise LimitExceeded(f"names, shapes and parameters of the request take more than {LARGE} bytes")

    def joined(self) -> bytes:
        return b"".join(self._pieces)


def _check_count(count: int) -> None:
    if count > DEFAULT_LIMITS.tensors:
        raise LimitExceeded(f"the request has more than {DEFAULT_LIMITS.tensors} inputs, which is the most accepted")


def _inputs(request: GrpcRequest) -> list[EncodedTensor]:
    message, raws = request.message, request.raws
    model = message.model_name
    left = iter(raws)
    tensors = [
        _tensor(tensor, model, left if raws else None, request.contents.get(place))
        for place, tensor in enumerate(message.inputs)
    ]
    if raws and len(raws) != len(tensors):
        raise BadTensor(
            f"unexpected additional input data for model '{model}': {len(raws)} raw_input_contents for {len(tensors)}"
            " inputs"
        )
    return tensors


def _tensor(tensor: Any, model: str, raws: Any, typed: memoryview | None) -> EncodedTensor:
    """Return one input; takes the next of the raw contents, unless there are none at all (None)."""
    name = tensor.name
    parameters: dict[str, Scalar] = {}
    if tensor.parameters:
        _check_memory(tensor.parameters)
        parameters = _stated(tensor.parameters, TENSOR_PARAMETERS)
    datatype = _DATATYPES.get(tensor.datatype)
    if datatype is None:
        raise BadTensor(
            f"inference input '{name}' for model '{model}' has the datatype {tensor.datatype[:20]!r}; expected one of"
            f" {', '.join(Datatype)}"
        )
    shape = tuple(tensor.shape)
    stated = typed is not None or bool(tensor.contents)
    if raws is not None:
        if stated:
            raise BadTensor(
                f"contents field must not be specified when using raw_input_contents for '{name}' for model '{model}'"
            )
        data: Buffer | None = next(raws, None)
        if datatype is Datatype.BYTES:
            check_shape(name, datatype, shape)
    else:
        view = memoryview(b"".join(tensor.contents)) if typed is None else typed
        data = raw_contents(name, model, datatype, shape, view) if stated else None
    if data is None:
        raise BadTensor(f"unable to find data for input tensor '{name}' for model '{model}' in request.")
    return EncodedTensor(name, datatype, shape, "raw", data, parameters)


_DATATYPES = {str(datatype): datatype for datatype in Datatype}


def _output(output: Any) -> RequestedOutput:
    classification = 0
    if output.parameters:
        _check_memory(output.parameters)
        if "classification" in output.parameters:
            classification = _number("classification", output.parameters["classification"])
    return RequestedOutput(output.name, None, classification)


def _parameters(parameters: Any) -> tuple[int, int]:
    """Return priority and timeout in microseconds, 0 for none.

    Sequences are states of a model, and no model here has any: as Triton does for such models, it is only checked that
    the parameters are of their types.
    """
    numbers = {"priority": 0, "timeout": 0}
    for key, value in parameters.items():
        if key in numbers:
            numbers[key] = _number(key, value)
        elif key in _KINDS:
            _chosen(key, value)
        elif key.startswith("triton_"):
            raise InvalidRequest(_RESERVED)
        elif value.WhichOneof("parameter_choice") is None:
            raise InvalidRequest(
                f"invalid value type for '{key[:100]}' parameter, expected int64_param, bool_param, or string_param."
            )
    return numbers["priority"], numbers["timeout"]


def _stated(parameters: Any, known: frozenset[str]) -> dict[str, Scalar]:
    """Return the parameters that say how tensors come."""
    chosen = {key: parameters[key] for key in known.intersection(parameters)}
    return {
        key: getattr(value, value.WhichOneof("parameter_choice") or "string_param") for key, value in chosen.items()
    }


def _number(key: str, value: Any) -> int:
    number: int = _chosen(key, value)
    if number < 0:
        raise InvalidRequest(f"invalid value for '{key}', expected value >= 0.")
    return number


def _chosen(key: str, value: Any) -> Any:
    kind, expected = value.WhichOneof("parameter_choice"), _KINDS[key]
    if kind not in expected:
        raise InvalidRequest(f"invalid value type for '{key}' parameter, expected {' or '.join(expected)}.")
    return getattr(value, kind)


def _check_memory(parameters: Any) -> None:
    if any(key.startswith("shared_memory_") for key in parameters):
        raise Unsupported(NO_SHARED_MEMORY)
