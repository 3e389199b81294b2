"""The protocol of a codec: from an array to bytes, and back to exactly the array that the message declares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from mqinfer.protocol.datatypes import Array
from mqinfer.protocol.limits import Limits
from mqinfer.protocol.types import Buffer, EncodedTensor, Scalar

__all__ = ["Codec", "Encoded"]


@dataclass(frozen=True, slots=True, eq=False)
class Encoded:
    """An encoded array: its bytes, and the parameters that a receiver needs to decode them."""

    data: Buffer
    parameters: Mapping[str, Scalar] = field(default_factory=dict)


class Codec(Protocol):
    """One encoding of tensors. Stateless: any thread may use it."""

    @property
    def levels(self) -> range:
        """Levels that may follow its name after a colon; empty for none."""

    def encode(self, name: str, array: Array, level: int | None) -> Encoded:
        """Encode an array.

        Args:
            name: Name of the tensor, for messages.
            array: Little-endian, of any strides.
            level: One of `levels`, or None for the codec's default.

        Raises:
            BadEncoding: The codec can't encode such an array.
            BadTensor: An element is not of its datatype.
        """

    def decode(self, tensor: EncodedTensor, limits: Limits) -> Array:
        """Decode an array; its declared shape has been checked against `limits`.

        Raises:
            BadEncoding: The bytes are not those of the declared array.
            BadTensor: The raw bytes are not those of the declared array.
            LimitExceeded: A limit that only this codec can check is exceeded.
        """
