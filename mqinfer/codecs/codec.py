"""The protocol of a codec: from an array to bytes, and back to exactly the array that the message declares."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from mqinfer.protocol.datatypes import Array
from mqinfer.protocol.limits import Limits
from mqinfer.protocol.types import Buffer, EncodedTensor, Scalar

__all__ = ["Addressed", "Codec", "Encoded", "StreamDecoder", "StreamEncoder", "StreamHalves", "Traits"]

Addressed = tuple[EncodedTensor, str]
"""A tensor, and the worker that has what it is encoded against; empty where any worker can decode it."""


@dataclass(frozen=True, slots=True, eq=False)
class Encoded:
    """An encoded array: its bytes, and the parameters that a receiver needs to decode them."""

    data: Buffer
    parameters: Mapping[str, Scalar] = field(default_factory=dict)


class StreamEncoder(Protocol):
    """Encodes one stream's pictures for one input with the help of those before them.

    `encode` is called for one picture at a time, in the order of the frames; `settled` by any thread.
    """

    def encode(self, name: str, array: Array, parameters: Mapping[str, Scalar], *, whole: bool) -> Addressed:
        """Encode a picture.

        Args:
            name: The model's input.
            array: `[1, H, W, C]` or `[1, H, W]`.
            parameters: Further parameters of the tensor.
            whole: Whether any worker must be able to decode it on its own; such frames come out of order.

        Raises:
            BadEncoding: The codec cannot encode pictures of this kind.
        """

    def settled(self, tensor: EncodedTensor, worker: str | None) -> None:
        """Learn what became of a picture.

        Args:
            tensor: As `encode` returned it.
            worker: The worker that has decoded it; None where it had any outcome but `ok`.
        """


class StreamDecoder(Protocol):
    """Decodes one stream's pictures for one input, in whatever order they come. Thread-safe."""

    @property
    def nbytes(self) -> int:
        """Bytes of memory that it takes, about."""

    def decode(self, tensor: EncodedTensor, limits: Limits) -> Array:
        """Decode a picture.

        Raises:
            ReferenceLost: The pictures that it is encoded against are not here.
            BadEncoding, BadTensor, LimitExceeded: As of `Codec.decode`.
        """


@dataclass(frozen=True, slots=True)
class StreamHalves:
    """What an encoding that needs earlier pictures keeps of each stream.

    Attributes:
        parameter: Parameter of the tensors that need it; others are decoded by the codec alone.
        encoder: Makes the sender's half for a level.
        decoder: Makes the receiver's half.
    """

    parameter: str
    encoder: Callable[[int | None], StreamEncoder]
    decoder: Callable[[], StreamDecoder]


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
