"""`raw`: an array's own bytes, without a copy either way."""

from __future__ import annotations

from mqinfer.codecs.codec import Encoded
from mqinfer.protocol.datatypes import Array
from mqinfer.protocol.limits import Limits
from mqinfer.protocol.raw_form import from_raw, raw_bytes
from mqinfer.protocol.types import EncodedTensor

__all__ = ["RawCodec"]


class RawCodec:
    """The codec of that name."""

    levels = range(0)

    def encode(self, name: str, array: Array, _level: int | None) -> Encoded:
        """Write an array; nothing is copied where it is contiguous."""
        return Encoded(raw_bytes(name, array))

    def decode(self, tensor: EncodedTensor, _limits: Limits) -> Array:
        """Read an array as a read-only view."""
        return from_raw(tensor.name, tensor.datatype, tensor.shape, tensor.data)
