"""The JSON of TensorFlow Serving's REST API: requests to arrays, and arrays to replies.

https://www.tensorflow.org/tfx/serving/api_rest, `util/json_tensor.cc`; its sentences about wrong requests come first.
`NaN` and `Infinity` stand bare in both directions.
"""

from __future__ import annotations

import json
import threading
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import chain
from math import isfinite, prod
from typing import Any

import msgspec
import numpy as np

from mqinfer.gateway.http import LargeJson, check_nesting, dump_json, large_json
from mqinfer.protocol.card import SignatureTensor
from mqinfer.protocol.datatypes import Array, Datatype, array_bytes, dtype_of, to_bytes
from mqinfer.protocol.decoding import outside_strings
from mqinfer.protocol.errors import BadEnvelope, BadTensor, LimitExceeded
from mqinfer.protocol.limits import DEFAULT_LIMITS
from mqinfer.protocol.types import Buffer

_MOST_ITEMS = 8 << 20
"""Values, names, lists and objects in one body; each takes up to 64 bytes of memory, an object as much as four."""
_LARGE_BYTES = 1 << 20
"""Bytes of a body above which one is read at a time: what is parsed takes up to twenty times as much."""
_LARGE = threading.Lock()
_SHOWN = 256
"""Characters of a value in a message."""
_BYTES_SUFFIX = "_bytes"
"""Outputs whose name ends so are written in base64."""

_DTYPE_NAMES = {
    Datatype.FP32: "float", Datatype.FP64: "double", Datatype.FP16: "half", Datatype.BYTES: "string",
}  # fmt: skip
_TYPES = {dict: "Object", list: "Array", str: "String", bool: "Boolean", type(None): "Null", int: "Number"}
_NUMBERS = frozenset((int, float))
_ACCEPTED = {Datatype.BYTES: frozenset((str, dict)), Datatype.BOOL: frozenset((bool,))}


def dtype_name(datatype: Datatype) -> str:
    """Return TensorFlow's name of a datatype, such as `float`."""
    return _DTYPE_NAMES.get(datatype, datatype.lower())


def one_large(text: Buffer) -> AbstractContextManager[object]:
    """Return the context in which a body is parsed and read; that of a large one waits for the others' to end."""
    return _LARGE if len(text) > _LARGE_BYTES else nullcontext()


def parse(text: Buffer, most_named: int = _MOST_ITEMS) -> dict[str, Any]:
    """Parse the body of a request.

    Args:
        text: The body.
        most_named: Objects and their fields in it, where there may be fewer than memory allows.

    Raises:
        BadEnvelope: It is not an object of JSON, or nested too deep.
        LimitExceeded: It has too many values.
    """
    content = bytes(text)
    if not content:
        raise BadEnvelope("JSON Parse error: The document is empty")
    _check_count(content, most_named)
    check_nesting(content)
    try:
        found = msgspec.json.decode(content)
    except (ValueError, RecursionError) as error:
        found = _parse_bare(content, error)
    if not isinstance(found, dict):
        raise BadEnvelope(f"JSON Value: {shown(found)} Is not object")
    return found


def _check_count(content: bytes, most_named: int) -> None:
    """Check how much is in JSON, before anything is made of it."""
    fields, objects = content.count(b":"), content.count(b"{")
    if sum(map(content.count, (b",", b"["))) + fields + 4 * objects > _MOST_ITEMS:
        raise LimitExceeded(f"JSON of more than {_MOST_ITEMS} values; send less in one request, or use gRPC")
    if fields + objects > most_named and sum(map(len, outside_strings(content, b":{"))) > most_named:
        raise LimitExceeded(
            f"JSON of more than {most_named} examples and features; send less in one request, or use gRPC"
        )


def _parse_bare(content: bytes, error: Exception) -> Any:
    """Parse JSON that may have numbers that JSON lacks."""
    if b"NaN" in content or b"Infinity" in content:
        try:
            return json.loads(content)
        except (ValueError, RecursionError) as further:
            error = further
    raise BadEnvelope(f"JSON Parse error: {error}") from error


def shown(value: Any) -> str:
    """Return the beginning of a value as JSON, for a message."""
    text = ""
    for part in json.JSONEncoder(ensure_ascii=False).iterencode(value):
        text += part[:_SHOWN]
        if len(text) >= _SHOWN:
            break
    return text[:_SHOWN]


def is_base64(value: Any) -> bool:
    """Return whether a value stands for binary data: `{"b64": "…"}`."""
    return isinstance(value, dict) and len(value) == 1 and isinstance(value.get("b64"), str)


def to_binary(value: Any) -> bytes:
    """Return the binary data of `{"b64": "…"}`; both alphabets of base64 do, with padding or without.

    Raises:
        BadTensor: It is not such an object, or not base64.
    """
    if not is_base64(value):
        raise BadTensor(f"JSON Value: {shown(value)} not formatted correctly for base64 data")
    text = value["b64"].strip().rstrip("=").replace("-", "+").replace("_", "/")
    try:
        return b64decode(text + "=" * (-len(text) % 4), validate=True)
    except ValueError as error:
        raise BadTensor("Unable to base64 decode") from error


def read_predict(content: Mapping[str, Any], inputs: Sequence[SignatureTensor]) -> tuple[dict[str, Array], bool]:
    """Return the inputs of a request to predict, and whether it has the row form.

    Args:
        content: The parsed body.
        inputs: Of the signature.

    Raises:
        BadEnvelope, BadTensor: It does not fit the signature.
    """
    if "instances" in content and "inputs" in content:
        raise BadEnvelope(
            f"JSON Value: {shown(content)} Not formatted correctly expecting only one of 'inputs' or 'instances' keys "
            "to exist "
        )
    if "instances" in content:
        return _read_rows(content, content["instances"], inputs), True
    if "inputs" in content:
        return _read_columns(content["inputs"], inputs), False
    raise BadEnvelope("Missing 'inputs' or 'instances' key")


def _read_rows(content: Mapping[str, Any], rows: Any, inputs: Sequence[SignatureTensor]) -> dict[str, Array]:
    if not isinstance(rows, list):
        raise BadEnvelope(f"JSON Value: {shown(content)} Expecting 'instances' to be an list/array")
    if not rows:
        raise BadEnvelope(f"JSON Value: {shown(content)} No values in 'instances' array")
    if not isinstance(rows[0], dict) and len(inputs) > 1:
        raise BadEnvelope(
            "instances is a plain list, but expecting list of objects as multiple input tensors required as per "
            "tensorinfo_map"
        )
    named = _is_row(rows[0])
    for place, row in enumerate(rows):
        if _is_row(row) is not named:
            what = "object but got list" if named else "value/list but got object"
            raise BadEnvelope(f"Expecting {what} at item {place} of input list")
    return _read_named_rows(rows, inputs) if named else {inputs[0].name: _column(rows, inputs[0])}


def _read_named_rows(rows: list[dict[str, Any]], inputs: Sequence[SignatureTensor]) -> dict[str, Array]:
    names = {tensor.name for tensor in inputs}
    for place, row in enumerate(rows):
        if row.keys() != names:
            raise BadEnvelope(
                f"Failed to process element: {place} of 'instances' list. JSON object: {shown(row)} keys must be equal "
                f"to: {','.join(sorted(names))}"
            )
    return {tensor.name: _column([row[tensor.name] for row in rows], tensor, tensor.name) for tensor in inputs}


def _is_row(value: Any) -> bool:
    return isinstance(value, dict) and not is_base64(value)


def _column(rows: list[Any], tensor: SignatureTensor, key: str = "") -> Array:
    try:
        return _read_tensor(rows, tensor)
    except BadTensor:
        _explain(rows, tensor, f" key: {key}" if key else "")
        raise


def _explain(rows: list[Any], tensor: SignatureTensor, key: str) -> None:
    """Raise the error of the first row that is wrong."""
    first: tuple[int, ...] | None = None
    for place, row in enumerate(rows):
        try:
            shape = _read_tensor(row, tensor).shape
            first = shape if first is None else first
            _check_shape(shape, first)
        except BadTensor as error:
            raise BadTensor(
                f"Failed to process element: {place}{key} of 'instances' list. Error: INVALID_ARGUMENT: {error}"
            ) from None


def _check_shape(shape: tuple[int, ...], first: tuple[int, ...]) -> None:
    if prod(shape) != prod(first):
        raise BadTensor(f"Expecting tensor size: {prod(first)} but got: {prod(shape)}")
    if shape != first:
        raise BadTensor(f"Expecting shape {_shape_text(first)} but got: {_shape_text(shape)}")


def _shape_text(shape: tuple[int, ...]) -> str:
    return f"[{','.join(map(str, shape))}]"


def _read_columns(value: Any, inputs: Sequence[SignatureTensor]) -> dict[str, Array]:
    if not _is_row(value):
        if len(inputs) > 1:
            raise BadEnvelope(
                "inputs is a plain value/list, but expecting an object as multiple input tensors required as per "
                "tensorinfo_map"
            )
        return {inputs[0].name: _read_tensor(value, inputs[0])}
    for tensor in inputs:
        if tensor.name not in value:
            raise BadEnvelope(f"Missing named input: {tensor.name} in 'inputs' object.")
    return {tensor.name: _read_tensor(value[tensor.name], tensor) for tensor in inputs}


def _read_tensor(value: Any, tensor: SignatureTensor) -> Array:
    """Return the array of a scalar or of nested lists."""
    shape: list[int] = []
    first = value
    while isinstance(first, list):
        shape.append(len(first))
        if not first:
            break
        first = first[0]
    array_bytes(tensor.name, tensor.datatype, shape, DEFAULT_LIMITS)
    flat = [value]
    for level, size in enumerate(shape):
        for each in flat:
            _check_list(each, level, size, len(shape))
        flat = list(chain.from_iterable(flat))
    return _from_values(flat, tensor).reshape(shape)


def _check_list(value: Any, level: int, size: int, rank: int) -> None:
    if not isinstance(value, list):
        raise BadTensor(
            f"JSON Value: {shown(value)} found at incorrect level: {level + 1} in the JSON DOM. Expected at level: "
            f"{rank}"
        )
    if len(value) != size:
        raise BadTensor(f"Encountered list at unexpected size: {len(value)} at level: {level} expected size: {size}")


def _from_values(values: list[Any], tensor: SignatureTensor) -> Array:
    datatype = tensor.datatype
    dtype = dtype_of(datatype)
    accepted = _ACCEPTED.get(datatype, _NUMBERS if dtype.kind == "f" else frozenset((int,)))
    if not accepted.issuperset(map(type, values)):
        raise _refusal(next(value for value in values if type(value) not in accepted), datatype)
    if datatype is Datatype.BYTES:
        strings = np.empty(len(values), np.object_)
        strings[:] = [to_binary(each) if isinstance(each, dict) else to_bytes(each, tensor.name) for each in values]
        return strings
    try:
        with np.errstate(over="ignore"):
            return np.array(values, dtype)
    except OverflowError:
        raise _refusal(next(value for value in values if not _fits(value, dtype)), datatype) from None


def _fits(value: float, dtype: np.dtype[Any]) -> bool:
    try:
        np.array(value, dtype)
    except OverflowError:
        return False
    return True


def _refusal(value: Any, datatype: Datatype) -> BadTensor:
    if isinstance(value, list):
        return BadTensor(f"JSON Value: {shown(value)}: encountered list at unexpected level")
    kind = str(value) if isinstance(value, bool) else _TYPES.get(type(value), "Number")
    return BadTensor(f"JSON Value: {shown(value)} Type: {kind} is not of expected type: {dtype_name(datatype)}")


def write_predictions(outputs: Mapping[str, Array], *, rows: bool) -> bytes | LargeJson:
    """Return the body of a reply; one output stands alone, several have names.

    Args:
        outputs: By name.
        rows: Whether the request had the row form.

    Raises:
        BadTensor: The outputs have no rows, or differ in how many.
    """
    count = _row_count(outputs) if rows else 0
    values: Any = {name: _values(name, array) for name, array in outputs.items()}
    if len(values) == 1:
        (values,) = values.values()
    elif rows:
        values = [{name: each[place] for name, each in values.items()} for place in range(count)]
    content = {"predictions" if rows else "outputs": values}
    return write_json(content) if _has_bare(content) else large_json(content, outputs)


def _row_count(outputs: Mapping[str, Array]) -> int:
    """Return how many rows the outputs have; raise BadTensor where they have none or differ."""
    count = -1
    for name, array in outputs.items():
        if not array.ndim:
            raise BadTensor(f"Tensor name: {name} has no shape information ")
        if count not in {-1, len(array)}:
            raise BadTensor(f"Tensor name: {name} has inconsistent batch size: {len(array)} expecting: {count}")
        count = len(array)
    return count


def write_json(content: dict[str, Any]) -> bytes:
    """Return JSON; arrays are of numbers or booleans, and numbers that JSON lacks stand bare."""
    if not _has_bare(content):
        return dump_json(content)
    return json.dumps(content, default=_plain, ensure_ascii=False, separators=(",", ":")).encode()


def _has_bare(content: Any) -> bool:
    if isinstance(content, dict):
        return any(map(_has_bare, content.values()))
    if isinstance(content, list):
        return any(map(_has_bare, content))
    if isinstance(content, np.ndarray):
        return content.dtype.kind == "f" and not bool(np.isfinite(content).all())
    return isinstance(content, float | np.floating) and not isfinite(content)


def _plain(value: Any) -> Any:
    """Return numbers of NumPy as Python's, with no more digits than they need."""
    if value.dtype.kind == "f":
        return np.asarray(value).astype(str).astype(np.float64).tolist()
    return value.tolist()


def _values(name: str, array: Array) -> Any:
    if array.dtype.kind == "O":
        return _strings(array.tolist(), as_bytes=name.endswith(_BYTES_SUFFIX))
    if array.dtype == np.float16:
        array = array.astype(str).astype(np.float64)
    return np.ascontiguousarray(array) if array.ndim else array[()]


def _strings(value: Any, *, as_bytes: bool) -> Any:
    if isinstance(value, list):
        return [_strings(each, as_bytes=as_bytes) for each in value]
    data = value.encode() if isinstance(value, str) else value
    if not as_bytes:
        try:
            return data.decode()
        except UnicodeDecodeError:  # JSON has no such string
            pass
    return {"b64": b64encode(data).decode()}
