"""The protocol of a codec: from an array to bytes, and back to exactly the array that the message declares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from mqinfer.protocol.datatypes import Array
from mqinfer.protocol.limits import Limits
from mqinfer.protocol.types import Buffer, EncodedTensor, Scalar

if TYPE_CHECKING:
    from mqinfer.codecs.chain import StreamHalves


@dataclass(frozen=True, slots=True, eq=False)
class Encoded:
    """An encoded array: its bytes, and the parameters that a receiver needs to decode them."""

    data: Buffer
    parameters: Mapping[str, Scalar] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Traits:
    """What senders and receivers must know of an encoding before they use it.

    Attributes:
        levels: Levels that may follow its name after a colon; empty for none.
        default_level: Level where none is stated; None where that is a mode of its own.
        is_lossy: Whether it changes samples or has no room for all: no carrier of distances, or of a sensor's mosaic.
        share: Bytes of a frame in proportion to its raw ones, before anything is measured: those of a synthetic drive.
        package: Import name of the package that it needs; empty for none.
        auto_colours: Whether `auto` tries it for colour pictures.
        auto_depth: Whether `auto` tries it for distances.
        stream: State of each stream, where pictures are encoded against others; None where each stands alone.
    """

    levels: range = range(0)
    default_level: int | None = None
    is_lossy: bool = False
    share: float = 1.0
    package: str = ""
    auto_colours: bool = False
    auto_depth: bool = False
    stream: StreamHalves | None = None


class Codec(Protocol):
    """One encoding of tensors. Stateless: any thread may use it."""

    @property
    def traits(self) -> Traits:
        """What is to know of the encoding."""

    def encode(self, name: str, array: Array, level: int | None) -> Encoded:
        """Encode an array.

        Args:
            name: Name of the tensor, for messages.
            array: Little-endian, of any strides.
            level: One of the traits' levels, or None for the codec's default.

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
