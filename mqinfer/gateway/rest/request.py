"""From the body of an inference request to the call that the core takes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import TypeVar

import msgspec
from msgspec import Raw, Struct

from mqinfer.gateway.checks import check_names, check_shape
from mqinfer.gateway.errors import Unsupported
from mqinfer.gateway.http import check_nesting
from mqinfer.gateway.pictures import REQUEST_PARAMETERS, TENSOR_PARAMETERS
from mqinfer.gateway.protocol_answers import NO_SHARED_MEMORY
from mqinfer.gateway.rest.json_data import raw_of_text
from mqinfer.images.sending import offer_contract
from mqinfer.protocol.card import ModelCard
from mqinfer.protocol.datatypes import Buffer, Datatype, array_bytes, nbytes
from mqinfer.protocol.decoding import JSON_STRINGS, MAX_JSON_BYTES, outside_strings, prepare, refusal, scalars
from mqinfer.protocol.errors import BadEnvelope, BadTensor, InvalidRequest, LimitExceeded
from mqinfer.protocol.limits import DEFAULT_LIMITS
from mqinfer.protocol.oip_json import HEADER_LENGTH
from mqinfer.protocol.types import Count, EncodedTensor, RequestedOutput, Scalar
from mqinfer.value_object import value_object

_MOST_QUOTES = 1 << 16
"""Quotes in JSON in which numbers that JSON lacks are put into quotes: text between strings is searched for them."""
_MOST_OBJECTS = 4 * DEFAULT_LIMITS.tensors + 2
"""Objects in JSON: a tensor and its parameters each, inputs and outputs. A parsed one takes 500 bytes."""
_NUMBER = re.compile("[0-9]{1,18}")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_SOURCES = ("data", "binary_data_size", "shared_memory_region")
_FIELD = re.compile(r"'(?:[^']*\.)?(\w+)(?:\[[^']*)?'")


class _InputParameters(Struct, frozen=True, gc=False):
    binary_data_size: Count | None = None
    shared_memory_region: Raw = Raw(b"")
    encoding: str | None = None
    image_encoding: str | None = None
    demosaic: str | None = None
    bit_depth: int | None = None
    chain: int | None = None
    position: int | None = None
    digest: str | None = None
    raw_size: int | None = None
    shape: str | None = None
    datatype: str | None = None


class _Input(Struct, frozen=True, gc=False):
    name: str
    datatype: str
    shape: tuple[Count, ...]
    parameters: _InputParameters | None = None
    data: Raw = Raw(b"")


class _OutputParameters(Struct, frozen=True, gc=False):
    binary_data: bool | None = None
    classification: Count = 0
    shared_memory_region: Raw = Raw(b"")


class _Output(Struct, frozen=True, gc=False):
    name: str
    parameters: _OutputParameters | None = None


class _Request(Struct, frozen=True, gc=False):
    inputs: list[_Input]
    id: str | None = None
    outputs: list[_Output] | None = None
    parameters: Raw = Raw(b"")


class _Parameters(Struct, frozen=True, gc=False):
    """Parameters that Triton knows; those of sequences are read and without effect, as for its models without any."""

    sequence_id: int | str = 0
    sequence_start: bool = False
    sequence_end: bool = False
    priority: Count = 0
    timeout: Count = 0
    binary_data_output: bool = False


_T = TypeVar("_T")
_NOTHING = (b"", b"null")
"""What is not there; clients that are made from a schema write null for it."""
_KNOWN = frozenset(_Parameters.__struct_fields__)
_DECODER = msgspec.json.Decoder(_Request)
prepare(_Parameters)
_DATATYPES = {str(datatype): datatype for datatype in Datatype}
_NO_INPUT_PARAMETERS, _NO_OUTPUT_PARAMETERS, _NO_PARAMETERS = _InputParameters(), _OutputParameters(), _Parameters()


@value_object(eq=False)
class RestRequest:
    """An inference request as it came.

    Attributes:
        inputs: Tensors; their bytes are views of the body where they came as bytes.
        id: Any text of the caller's; the reply repeats it.
        outputs: The requested outputs; empty for all.
        binary: Names of requested outputs that are sent as bytes.
        all_binary: Whether outputs that nobody named are.
        timeout_s: The parameter `timeout`, in seconds; None without one.
        priority: The parameter.
        parameters: Those that say how pictures come, and what is asked of them.
    """

    inputs: tuple[EncodedTensor, ...]
    id: str = ""
    outputs: tuple[RequestedOutput, ...] = ()
    binary: frozenset[str] = field(default=frozenset())
    all_binary: bool = False
    timeout_s: float | None = None
    priority: int = 0
    parameters: Mapping[str, Scalar] = field(default_factory=dict)


def header_length(header: str | None, size: int) -> int:
    """Return the length of a body's JSON part; 0 for a raw request.

    Args:
        header: Value of the header `Inference-Header-Content-Length`; None where the whole body is JSON.
        size: Of the body, in bytes.

    Raises:
        BadEnvelope: It is no number, or beyond the body.
    """
    if header is None:
        return size
    if not re.fullmatch(r"\s*[+-]?[0-9]{1,18}\s*", header, re.ASCII):
        raise BadEnvelope(f"Unable to parse {HEADER_LENGTH}, got: {header[:40]}")
    length = int(header)
    if not 0 <= length <= size:
        raise BadEnvelope(f"inference header size should be in range (0, {size}), got: {length}")
    return length


def read_request(body: Buffer, length: int, model: str) -> RestRequest:
    """Return the request that a body holds.

    Args:
        body: JSON, with binary tensors behind it.
        length: Of the JSON.
        model: Name of the model, for messages.

    Raises:
        InvalidRequest: Something in it is wrong, too large, or not offered here.
    """
    view = memoryview(body)
    found = _parse(bytes(view[:length]))
    known, further = _parameters(found.parameters)
    inputs = tuple(_inputs(found.inputs, view[length:], model))
    chosen = _outputs(found.outputs or [])
    return RestRequest(
        inputs,
        found.id or "",
        tuple(RequestedOutput(name, None, each.classification) for name, each in chosen.items()),
        frozenset(name for name, each in chosen.items() if _is_binary(each, known)),
        known.binary_data_output,
        known.timeout / 1e6 if known.timeout else None,
        known.priority,
        {name: value for name, value in further.items() if name in REQUEST_PARAMETERS},
    )


def expand_raw(body: Buffer, card: ModelCard) -> RestRequest:
    """Return the request of a body that is the bytes of a model's only input, of a batch of one.

    Raises:
        BadTensor: The model has several inputs, or the shape does not follow from the bytes.
    """
    if len(card.inputs) != 1:
        raise BadTensor(
            f"Raw request must only have 1 input (found 1) to be deduced but got {len(card.inputs)} inputs in"
            f" '{card.name}' model configuration"
        )
    spec, batch = card.inputs[0], (1,) if card.max_batch_size else ()
    shape = list(spec.shape[len(batch) :])
    data = body
    if spec.datatype is Datatype.BYTES:
        if shape != [1]:
            raise BadTensor(f"For BYTE datatype raw input '{spec.name}', the model must have input shape [1]")
        data = len(body).to_bytes(4, "little") + bytes(body)
    elif shape.count(-1) > 1:
        raise BadTensor(
            f"The shape of the raw input '{spec.name}' can not be deduced because there are more than one"
            " variable-sized dimension"
        )
    elif -1 in shape:
        place = shape.index(-1)
        shape[place] = 1
        shape[place] = len(body) // (nbytes(spec.datatype, tuple(shape)) or 1)
    shape_found = (*batch, *shape)
    array_bytes(spec.name, spec.datatype, shape_found, DEFAULT_LIMITS)
    return RestRequest((EncodedTensor(spec.name, spec.datatype, shape_found, "raw", data),), all_binary=True)


def picture_request(body: Buffer, card: ModelCard, query: Mapping[str, str]) -> RestRequest:
    """Return the request of a body that is a picture's file, for the model's only input of pictures.

    Args:
        body: The file.
        card: Of the model.
        query: The parameters of the request, as its URL has them.

    Raises:
        BadTensor: The model has none, or several inputs.
    """
    if not card.pictures:
        raise BadTensor(offer_contract(card))
    if len(card.inputs) != 1:
        names = ", ".join(spec.name for spec in card.inputs)
        raise BadTensor(f"the body is one picture, and model '{card.name}' has the inputs {names}; send them in JSON")
    data = len(body).to_bytes(4, "little") + bytes(body)
    tensor = EncodedTensor(card.pictures[0].input, Datatype.BYTES, (1,), "raw", data)
    return RestRequest(
        (tensor,), parameters={name: _scalar(query[name]) for name in query if name in REQUEST_PARAMETERS}
    )


def _scalar(text: str) -> Scalar:
    """Return the value of a parameter of a URL, where everything is text."""
    return text == "true" if text in {"true", "false"} else int(text) if _NUMBER.fullmatch(text) else text


def read_json(text: Buffer, shape: type[_T]) -> _T:
    """Parse JSON of a few fields, such as the body of a call about a model's repository; no text is an empty object.

    Raises:
        BadEnvelope: It is not JSON, nested too deep, or not of the shape.
        LimitExceeded: It is longer than 8 MiB.
    """
    if len(text) > MAX_JSON_BYTES:
        raise LimitExceeded(f"request JSON size of {len(text)} bytes exceeds the maximum of {MAX_JSON_BYTES} here")
    check_nesting(text)
    try:
        return msgspec.json.decode(text or b"{}", type=shape)
    except msgspec.ValidationError as error:
        found = refusal(error, Struct, "body")
        named = _FIELD.search(str(found))
        if named and "must be a boolean" in str(found):  # in Triton's words
            raise BadEnvelope(f"Invalid value for '{named[1]}': expected a boolean") from error
        raise found from error
    except (ValueError, RecursionError) as error:
        raise _not_json(error) from error


def _parse(text: bytes) -> _Request:
    text = text.removeprefix(_BYTE_ORDER_MARK)
    if (found := text.count(b"{")) > _MOST_OBJECTS:
        found = sum(map(len, outside_strings(text, b"{")))
    if found > _MOST_OBJECTS:
        raise LimitExceeded(f"{found} objects in JSON; a request has at most {_MOST_OBJECTS}")
    check_nesting(text)
    try:
        return _decode(text)
    except msgspec.ValidationError as error:
        raise _wrong(error, _Request, "request") from error
    except (ValueError, RecursionError) as error:
        raise _not_json(error) from error


def _decode(text: bytes) -> _Request:
    try:
        return _DECODER.decode(text)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        if (b"NaN" not in text and b"Infinity" not in text) or text.count(b'"') > _MOST_QUOTES:
            raise
        return _DECODER.decode(_quote_numbers(text))


def _quote_numbers(text: bytes) -> bytes:
    """Return JSON with the numbers that it lacks, but many libraries write, as strings."""
    pieces: list[bytes] = []
    start = 0
    for string in JSON_STRINGS.finditer(text):
        pieces += (_quoted(text[start : string.start()]), string[0])
        start = string.end()
    return b"".join((*pieces, _quoted(text[start:])))


def _quoted(text: bytes) -> bytes:
    quoted = text.replace(b"NaN", b'"NaN"').replace(b"Infinity", b'"Infinity"')
    return quoted.replace(b'-"Infinity"', b'"-Infinity"')


def _not_json(error: Exception) -> BadEnvelope:
    return BadEnvelope(f"failed to parse the request JSON buffer: {error}")


def _wrong(error: msgspec.ValidationError, shape: type[Struct], what: str) -> InvalidRequest:
    """Return the error for a field of a wrong type; begins as Triton's do."""
    found = refusal(error, shape, what)
    named = _FIELD.search(str(found))
    return type(found)(f"Unable to parse '{named[1]}': {found}") if named else found


def _parameters(raw: Raw) -> tuple[_Parameters, Mapping[str, Scalar]]:
    text = bytes(raw)
    if text in _NOTHING:
        return _NO_PARAMETERS, {}
    if len(text) > DEFAULT_LIMITS.header_bytes:
        raise LimitExceeded(f"parameters of {len(text)} bytes; at most {DEFAULT_LIMITS.header_bytes} are accepted")
    try:
        parameters = msgspec.json.decode(text)
    except ValueError as error:  # a `Raw` has the form of JSON, but whether its strings are UTF-8 was not looked at
        raise _not_json(error) from error
    if not isinstance(parameters, dict):
        raise BadEnvelope("Unable to parse 'parameters': expected an object")
    parameters = {name: value for name, value in parameters.items() if value is not None}
    if any(name.startswith("triton_") for name in parameters):
        raise BadEnvelope(
            "parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified."
        )
    further = scalars(parameters, _KNOWN, "request")
    try:
        return msgspec.convert(parameters, _Parameters), further
    except msgspec.ValidationError as error:
        raise _wrong(error, _Parameters, "request parameters") from error


def _is_binary(chosen: _OutputParameters, known: _Parameters) -> bool:
    return known.binary_data_output if chosen.binary_data is None else chosen.binary_data


def _outputs(described: Sequence[_Output]) -> dict[str, _OutputParameters]:
    check_names("output", [output.name for output in described])
    chosen = {output.name: output.parameters or _NO_OUTPUT_PARAMETERS for output in described}
    if any(each.shared_memory_region for each in chosen.values()):
        raise Unsupported(NO_SHARED_MEMORY)
    return chosen


def _inputs(described: Sequence[_Input], tail: memoryview, model: str) -> Iterator[EncodedTensor]:
    check_names("input", [each.name for each in described])
    for each in described:
        name, shape, known = each.name, each.shape, each.parameters or _NO_INPUT_PARAMETERS
        _check_source(each, known)
        datatype = _datatype(each)
        check_shape(name, datatype, shape)
        size = known.binary_data_size
        if size is None:
            data: Buffer = raw_of_text(name, datatype, shape, each.data)
        elif size > len(tail):
            raise BadTensor(
                f"unexpected size for input '{name}', expecting {size - len(tail)} additional bytes for model"
                f" '{model}'; the header {HEADER_LENGTH} states where they begin"
            )
        else:
            data, tail = tail[:size], tail[size:]
        yield EncodedTensor(name, datatype, shape, "raw", data, _stated(known))
    if tail:
        raise BadTensor(f"unexpected additional input data for model '{model}': {len(tail)} bytes")


def _stated(known: _InputParameters) -> dict[str, Scalar]:
    """Return what an input's parameters say of its bytes."""
    if known is _NO_INPUT_PARAMETERS:
        return {}
    return {name: value for name in TENSOR_PARAMETERS if (value := getattr(known, name)) is not None}


def _check_source(described: _Input, known: _InputParameters) -> None:
    """Check that a tensor's content comes in one way."""
    given = (bool(described.data), known.binary_data_size is not None, bool(known.shared_memory_region))
    if sum(given) != 1:
        names = [f"'{name}'" for name, is_set in zip(_SOURCES, given, strict=True) if is_set]
        raise BadTensor(
            "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters',"
            f" 'shared_memory_region' in 'parameters'. But {'set ' + ' '.join(names) if names else 'no field is set'}"
            f" for input '{described.name[:100]}'"
        )
    if given[2]:
        raise Unsupported(NO_SHARED_MEMORY)


def _datatype(described: _Input) -> Datatype:
    name, found = described.name[:100], _DATATYPES.get(described.datatype)
    if described.data and (found is Datatype.FP16 or described.datatype == "BF16"):
        raise BadTensor(
            f"receiving {described.datatype} data via JSON is not supported. Please use the binary data format for"
            f" input {name}"
        )
    if found is None:
        raise BadTensor(
            f"invalid datatype {described.datatype[:20]!r} for input '{name}'; expected one of {', '.join(Datatype)}"
        )
    return found
