"""`difference`: an array as its difference to one that the receiver has kept, element by element and without loss.

Both sides name an array by its contents, the XXH3 (128 bits) of its raw bytes, so that a wrong one is never used. The
difference of integers is taken modulo 2^n; of other datatypes it is the exclusive or of their bytes. Where little
changes nearly all of it is 0, which the inner codec makes small.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import xxhash

from mqinfer.codecs.registry import decode_tensor, encode_tensor
from mqinfer.protocol.datatypes import Array, Datatype, datatype_of, raw_bytes
from mqinfer.protocol.errors import BadEncoding, ReferenceLost
from mqinfer.protocol.header import INNER_ENCODING, KEEP, REFERENCE
from mqinfer.protocol.limits import DEFAULT_LIMITS, Limits
from mqinfer.protocol.types import EncodedTensor, Scalar

__all__ = ["DIFFERENCE", "add_difference", "array_name", "take_difference"]

DIFFERENCE = "difference"
_OWN = (INNER_ENCODING, REFERENCE, KEEP)
_INNER = ("raw", "lz4", "shuffle-lz4", "png")
"""Lossless codecs that need nothing but the bytes."""


def array_name(array: Array) -> str:
    """Return the name of an array: the XXH3 of its raw bytes, 32 hex digits."""
    digest: str = xxhash.xxh3_128_hexdigest(raw_bytes("", array))
    return digest


def take_difference(  # noqa: PLR0913, PLR0917 - an array, and what it is the difference to
    name: str, array: Array, parameters: Mapping[str, Scalar], reference: Array, reference_name: str, codec: str
) -> EncodedTensor:
    """Return a tensor that carries an array as its difference to another one.

    Args:
        name: Of the model's input.
        array: To be sent.
        parameters: Further parameters of the tensor.
        reference: Of the same shape and datatype; the receiver has it.
        reference_name: From `array_name`.
        codec: One that loses nothing, for the difference.

    Raises:
        BadEncoding: The codec is unknown, or can't carry such arrays.
    """
    carried = encode_tensor(name, _subtract(array, reference), codec)
    own = {INNER_ENCODING: carried.encoding, REFERENCE: reference_name}
    return replace(
        carried,
        datatype=datatype_of(array.dtype),
        shape=array.shape,
        encoding=DIFFERENCE,
        parameters={**parameters, **carried.parameters, **own},
    )


def add_difference(tensor: EncodedTensor, reference: Array | None, limits: Limits = DEFAULT_LIMITS) -> Array:
    """Return the array that a difference stands for.

    Args:
        tensor: As received.
        reference: What the receiver has kept under the name that the tensor states; None where that is gone.
        limits: Limits of this receiver.

    Raises:
        ReferenceLost: There is no such array here, or it has another shape or datatype.
        BadEncoding: The bytes are no difference, or damaged.
        LimitExceeded: Something is larger than `limits`.
    """
    inner, name = tensor.parameters.get(INNER_ENCODING), str(tensor.parameters.get(REFERENCE, ""))
    if inner not in _INNER:
        raise BadEncoding(
            f"tensor {tensor.name!r}: {INNER_ENCODING} is {str(inner)[:80]!r}; expected one of {', '.join(_INNER)}"
        )
    if reference is None or reference.shape != tensor.shape or datatype_of(reference.dtype) is not tensor.datatype:
        raise ReferenceLost(
            f"tensor {tensor.name!r}: this worker has no picture {name[:40]!r} of {tensor.datatype} "
            f"{list(tensor.shape)}; send the frame again, encoded on its own"
        )
    parameters = {key: value for key, value in tensor.parameters.items() if key not in _OWN}
    datatype = tensor.datatype if reference.dtype.kind == "u" else Datatype.UINT8
    shape = tensor.shape if reference.dtype.kind == "u" else (*tensor.shape, reference.itemsize)
    carried = replace(tensor, datatype=datatype, shape=shape, encoding=str(inner), parameters=parameters)
    return _add(decode_tensor(carried, limits), reference)


def _subtract(array: Array, reference: Array) -> Array:
    if array.dtype.kind == "u":
        return np.subtract(array, reference)
    return np.bitwise_xor(_bytes(array), _bytes(reference))


def _add(difference: Array, reference: Array) -> Array:
    if reference.dtype.kind == "u":
        return np.add(difference, reference)
    found = np.bitwise_xor(difference, _bytes(reference))
    return np.ascontiguousarray(found).view(reference.dtype).reshape(reference.shape)


def _bytes(array: Array) -> Array:
    """Return the bytes of each element along a last axis of their own."""
    return np.ascontiguousarray(array)[..., np.newaxis].view(np.uint8)
