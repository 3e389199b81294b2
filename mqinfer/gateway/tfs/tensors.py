"""TensorProtos to arrays and back.

As in TensorFlow, a tensor's values are in `tensor_content` or in the field of its type, where fewer values than
elements repeat the last one and none stand for zeros. Replies use the field of the type, as TensorFlow Serving's do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from mqinfer.gateway.tfs.messages import VALUES
from mqinfer.protocol.datatypes import Array, Datatype, array_bytes, dtype_of, from_raw, little_endian
from mqinfer.protocol.errors import BadTensor, LimitExceeded
from mqinfer.protocol.limits import DEFAULT_LIMITS, Limits

__all__ = ["NUMBERS", "pack_varints", "read_tensor", "read_tensors", "unpack_varints", "write_tensor"]

NUMBERS = {
    Datatype.FP32: 1, Datatype.FP64: 2, Datatype.INT32: 3, Datatype.UINT8: 4, Datatype.INT16: 5, Datatype.INT8: 6,
    Datatype.BYTES: 7, Datatype.INT64: 9, Datatype.BOOL: 10, Datatype.UINT16: 17, Datatype.FP16: 19,
    Datatype.UINT32: 22, Datatype.UINT64: 23,
}  # fmt: skip
"""TensorFlow's numbers of datatypes (tensorflow `core/framework/types.proto`)."""

_DATATYPES = {number: datatype for datatype, number in NUMBERS.items()}
_FIELDS = {
    Datatype.FP32: "float_val", Datatype.FP64: "double_val", Datatype.INT64: "int64_val", Datatype.BOOL: "bool_val",
    Datatype.FP16: "half_val", Datatype.UINT32: "uint32_val", Datatype.UINT64: "uint64_val",
}  # fmt: skip
_SMALL_INTEGERS = "int_val"
_CHUNK = 1 << 18
"""Varints are decoded so many bytes at a time: it takes some 30 times as much memory."""
_LONGEST = 10
"""Bytes of the longest varint."""


def read_tensors(tensors: Mapping[str, Any], most: int, limits: Limits = DEFAULT_LIMITS) -> dict[str, Array]:
    """Return the arrays of TensorProtos; numbers are views of the message where possible.

    Args:
        tensors: By name.
        most: Bytes that they may take together.
        limits: Bounds for each.

    Raises:
        BadTensor: A tensor is not what its type and shape say.
        LimitExceeded: They take more than a limit.
    """
    if len(tensors) > limits.tensors:
        raise LimitExceeded(f"{len(tensors)} inputs; at most {limits.tensors} are accepted")
    arrays: dict[str, Array] = {}
    for name, tensor in tensors.items():
        arrays[name], size = read_tensor(name, tensor, most, limits)
        most -= size
    return arrays


def read_tensor(name: str, tensor: Any, most: int, limits: Limits = DEFAULT_LIMITS) -> tuple[Array, int]:
    """Return the array of a TensorProto, and its bytes; arguments and errors as for `read_tensors`."""
    datatype = _DATATYPES.get(tensor.dtype)
    if datatype is None:
        raise BadTensor(
            f"input {name!r}: TensorFlow's datatype number {tensor.dtype} is not supported; expected one of "
            f"{', '.join(f'{number} ({each})' for each, number in NUMBERS.items())}"
        )
    if tensor.tensor_shape.unknown_rank:
        raise BadTensor(f"input {name!r}: its shape has unknown_rank; state every axis")
    shape = tuple([axis.size for axis in tensor.tensor_shape.dim[: limits.dimensions + 1]])
    size = array_bytes(name, datatype, shape, limits)
    _check_size(name, size, most)
    elements = int(np.prod(shape, dtype=np.int64)) if size else 0
    if datatype is Datatype.BYTES:
        return _read_strings(name, tensor, shape, elements, most)
    if tensor.tensor_content:
        return from_raw(name, datatype, shape, tensor.tensor_content), size
    field = _FIELDS.get(datatype, _SMALL_INTEGERS)
    values = _read_values(name, b"".join(getattr(tensor, field)), field, datatype, elements)
    return _filled(values, elements).reshape(shape), size


def _check_size(name: str, size: int, most: int) -> None:
    if size > most:
        raise LimitExceeded(f"input {name!r} takes {size} bytes, and {most} are left; send less in one request")


def _read_strings(name: str, tensor: Any, shape: tuple[int, ...], elements: int, most: int) -> tuple[Array, int]:
    if tensor.tensor_content:
        found = _split_content(name, tensor.tensor_content, elements)
    else:
        if len(tensor.string_val) > elements:
            raise _too_many(name, len(tensor.string_val), elements)
        found = list(tensor.string_val)
    last = found[-1] if found else b""
    size = sum(map(len, found)) + (elements - len(found)) * len(last) + 4 * elements
    _check_size(name, size, most)  # before the one string becomes a million
    strings = np.empty(elements, np.object_)
    strings[: len(found)] = found
    strings[len(found) :] = last
    return strings.reshape(shape), size


def _split_content(name: str, content: bytes, elements: int) -> list[bytes]:
    """Split the strings of a `tensor_content`: their lengths as varints, and then all of them."""
    lengths: list[int] = []
    start = 0
    for _ in range(elements):
        length, shift, more = 0, 0, True
        while more:
            if start >= len(content) or shift >= 7 * _LONGEST:
                raise BadTensor(f"input {name!r}: tensor_content ends within the lengths of its strings")
            length |= (content[start] & 0x7F) << shift
            more, shift, start = content[start] > 0x7F, shift + 7, start + 1
        lengths.append(length)
    if start + sum(lengths) != len(content):
        raise BadTensor(f"input {name!r}: the lengths of {elements} strings don't add up to its tensor_content")
    found = []
    for length in lengths:
        found.append(content[start : start + length])
        start += length
    return found


def _read_values(name: str, data: bytes, field: str, datatype: Datatype, elements: int) -> Array:
    kind, _ = VALUES[field]
    dtype = dtype_of(datatype)
    if kind in {"float", "double"}:
        if len(data) % dtype.itemsize:
            raise BadTensor(f"input {name!r}: {field} has {len(data)} bytes, no multiple of {dtype.itemsize}")
        values: Array = np.frombuffer(data, dtype)
    else:
        values = _converted(name, unpack_varints(data, f"input {name!r}: {field}", elements), field, datatype)
    if len(values) > elements:
        raise _too_many(name, len(values), elements)
    return values


def _too_many(name: str, values: int, elements: int) -> BadTensor:
    return BadTensor(f"input {name!r}: {values} values, and its shape has {elements} elements")


def _converted(name: str, values: npt.NDArray[np.uint64], field: str, datatype: Datatype) -> Array:
    if datatype is Datatype.BOOL:
        found: Array = values != 0
        return found
    dtype = dtype_of(datatype)
    if datatype is Datatype.FP16:  # its bits
        dtype = np.dtype("<u2")
    signed = values.view(np.int64) if VALUES[field][0] in {"int32", "int64"} else values
    found = signed.astype(dtype)
    if not np.array_equal(found, signed):
        raise BadTensor(f"input {name!r}: {field} has a value that {datatype} has not")
    return found.view(dtype_of(datatype)) if datatype is Datatype.FP16 else found


def _filled(values: Array, elements: int) -> Array:
    if len(values) == elements:
        return values
    found = np.zeros(elements, values.dtype)
    found[: len(values)] = values
    if len(values):
        found[len(values) :] = values[-1]
    return found


def unpack_varints(data: bytes, what: str, most: int) -> npt.NDArray[np.uint64]:
    """Return the integers of varints.

    Args:
        data: As packed fields have them.
        what: Where they are, for messages.
        most: How many there may be.

    Raises:
        BadTensor: The last one is cut off, one is too long, or there are too many.
    """
    content = np.frombuffer(data, np.uint8)
    ends = content < 0x80
    count = int(np.count_nonzero(ends))
    if count > most:
        raise BadTensor(f"{what} has {count} values, and the shape has {most} elements")
    if len(data) and not ends[-1]:
        raise BadTensor(f"{what} ends within a value")
    found = np.empty(count, np.uint64)
    start = done = 0
    while start < len(data):
        stop = min(start + _CHUNK, len(data))
        while not ends[stop - 1]:  # the last byte ends a value
            stop += 1
        part = _unpack(content[start:stop], what)
        found[done : done + len(part)] = part
        start, done = stop, done + len(part)
    return found


def _unpack(content: npt.NDArray[np.uint8], what: str) -> npt.NDArray[np.uint64]:
    ends = np.flatnonzero(content < 0x80)
    starts = np.concatenate([[0], ends[:-1] + 1])
    lengths = ends - starts + 1
    if lengths.max() > _LONGEST:
        raise BadTensor(f"{what} has a value of more than {_LONGEST} bytes")
    places = np.arange(len(content)) - np.repeat(starts, lengths)
    shifted = (content & 0x7F).astype(np.uint64) << (7 * places).astype(np.uint64)
    return np.add.reduceat(shifted, starts)


def pack_varints(values: npt.NDArray[np.uint64]) -> bytes:
    """Return integers as varints."""
    parts = []
    for start in range(0, len(values), _CHUNK):
        left = values[start : start + _CHUNK].copy()
        content = np.zeros((len(left), _LONGEST), np.uint8)
        used = np.zeros((len(left), _LONGEST), np.bool_)
        for place in range(_LONGEST):
            used[:, place] = (left > 0) if place else True
            content[:, place] = left & 0x7F
            left >>= 7
            content[:, place] |= ((left > 0) * 0x80).astype(np.uint8)
        parts.append(content[used].tobytes())
    return b"".join(parts)


def write_tensor(array: Array, tensor: Any) -> None:
    """Fill a TensorProto with an array, its values in the field of its type.

    Args:
        array: Of a datatype of the Open Inference Protocol.
        tensor: Empty.
    """
    flat = little_endian(array).reshape(-1)
    datatype = _datatype(flat.dtype)
    tensor.dtype = NUMBERS[datatype]
    tensor.tensor_shape.SetInParent()
    for size in array.shape:
        tensor.tensor_shape.dim.add(size=size)
    if datatype is Datatype.BYTES:
        tensor.string_val.extend(each.encode() if isinstance(each, str) else each for each in flat)
    elif flat.size:
        getattr(tensor, _FIELDS.get(datatype, _SMALL_INTEGERS)).append(_packed(flat, datatype))


def _datatype(dtype: np.dtype[Any]) -> Datatype:
    return next(datatype for datatype in NUMBERS if dtype_of(datatype) == dtype)


def _packed(flat: Array, datatype: Datatype) -> bytes:
    if datatype in {Datatype.FP32, Datatype.FP64, Datatype.BOOL}:
        return flat.tobytes()
    if datatype is Datatype.FP16:
        flat = flat.view(np.uint16)
    wide = flat.astype(np.int64).view(np.uint64) if flat.dtype.kind == "i" else flat.astype(np.uint64)
    return pack_varints(wide)
