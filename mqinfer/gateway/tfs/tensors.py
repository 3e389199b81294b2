"""TensorProtos to arrays and back.

As in TensorFlow, a tensor's values are in `tensor_content` or in the field of its type, where fewer values than
elements repeat the last one and none stand for zeros. Replies use the field of the type, as TensorFlow Serving's do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from mqinfer.gateway.varints import count_varints, pack_varints, unpack_varints
from mqinfer.protobuf_wire import read_varint
from mqinfer.protocol.datatypes import Array, Datatype, array_bytes, dtype_of, from_raw, little_endian
from mqinfer.protocol.errors import BadTensor, LimitExceeded
from mqinfer.protocol.limits import DEFAULT_LIMITS

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
_FLOATS = frozenset(("float_val", "double_val"))


def read_tensors(tensors: Mapping[str, Any], most: int) -> dict[str, Array]:
    """Return the arrays of TensorProtos; numbers are views of the message where possible.

    Args:
        tensors: By name.
        most: Bytes that they may take together.

    Raises:
        BadTensor: A tensor is not what its type and shape say.
        LimitExceeded: They take more than a limit.
    """
    if len(tensors) > DEFAULT_LIMITS.tensors:
        raise LimitExceeded(f"{len(tensors)} inputs; at most {DEFAULT_LIMITS.tensors} are accepted")
    arrays: dict[str, Array] = {}
    for name, tensor in tensors.items():
        arrays[name], size = read_tensor(name, tensor, most)
        most -= size
    return arrays


def read_tensor(name: str, tensor: Any, most: int) -> tuple[Array, int]:
    """Return the array of a TensorProto, and its bytes; arguments and errors as for `read_tensors`."""
    datatype = _DATATYPES.get(tensor.dtype)
    if datatype is None:
        raise BadTensor(
            f"input {name!r}: TensorFlow's datatype number {tensor.dtype} is not supported; expected one of "
            f"{', '.join(f'{number} ({each})' for each, number in NUMBERS.items())}"
        )
    if tensor.tensor_shape.unknown_rank:
        raise BadTensor(f"input {name!r}: its shape has unknown_rank; state every axis")
    shape = tuple([axis.size for axis in tensor.tensor_shape.dim[: DEFAULT_LIMITS.dimensions + 1]])
    size = array_bytes(name, datatype, shape, DEFAULT_LIMITS)
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
    start, view = 0, memoryview(content)
    for _ in range(elements):
        length, start = read_varint(view, start)
        lengths.append(length)
    if start + sum(lengths) != len(content):
        raise BadTensor(f"input {name!r}: the lengths of {elements} strings don't add up to its tensor_content")
    found = []
    for length in lengths:
        found.append(content[start : start + length])
        start += length
    return found


def _read_values(name: str, data: bytes, field: str, datatype: Datatype, elements: int) -> Array:
    dtype, what = dtype_of(datatype), f"values of input {name!r} ({field})"
    is_varint = field not in _FLOATS
    if not is_varint and len(data) % dtype.itemsize:
        raise BadTensor(f"{what} have {len(data)} bytes, no multiple of {dtype.itemsize}")
    count = count_varints(data) if is_varint else len(data) // dtype.itemsize
    if count > elements:
        raise _too_many(name, count, elements)
    return unpack_varints(data, datatype, what) if is_varint else np.frombuffer(data, dtype)


def _too_many(name: str, values: int, elements: int) -> BadTensor:
    return BadTensor(f"input {name!r}: {values} values, and its shape has {elements} elements")


def _filled(values: Array, elements: int) -> Array:
    if len(values) == elements:
        return values
    found = np.zeros(elements, values.dtype)
    found[: len(values)] = values
    if len(values):
        found[len(values) :] = values[-1]
    return found


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
