"""The contract of a codec: an array to bytes, and back to exactly the array that the message declares."""

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
    """What a codec makes of an array: bytes, and what else a receiver must know to read them."""

    data: Buffer
    parameters: Mapping[str, Scalar] = field(default_factory=dict)


class Codec(Protocol):
    """One way to write a tensor. Stateless: any thread may use it."""

    @property
    def levels(self) -> range:
        """The levels that may follow its name after a colon; empty where there are none."""

    def encode(self, name: str, array: Array, level: int | None) -> Encoded:
        """Write an array.

        Args:
            name: The tensor's, for messages.
            array: Little-endian, of any strides.
            level: One of `levels`, or None for the codec's default.

        Raises:
            BadEncoding: The codec can't write such an array.
            BadTensor: An element is not what its datatype says.
        """

    def decode(self, tensor: EncodedTensor, limits: Limits) -> Array:
        """Read an array; its declared shape has been checked against `limits`.

        Raises:
            BadEncoding: The bytes don't make the declared array.
            BadTensor: The raw bytes don't make it.
            LimitExceeded: A bound that only this codec knows is exceeded.
        """
