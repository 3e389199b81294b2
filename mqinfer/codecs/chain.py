"""Both halves of a stream whose pictures are encoded against those before them: a sender's and a receiver's.

Each picture states the number of its chain, which a key frame begins, and its position there. A receiver decodes it
only behind the one before it; where that is not there, the sender receives `reference_lost` and sends the picture again
as a key frame. So no picture is ever shown broken, whatever is lost or late on the way.

A picture goes only to the worker that has answered the key frame of its chain. While that is not known, pictures are
key frames of their own, which any worker decodes; after a loss of any kind the next one begins a new chain.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from msgspec.structs import replace
from xxhash import xxh3_64_intdigest

from mqinfer.codecs.codec import Codec, Encoded
from mqinfer.protocol.datatypes import Array, Datatype, array_bytes, datatype_of
from mqinfer.protocol.errors import BadEncoding, LimitExceeded, ReferenceLost
from mqinfer.protocol.header import CHAIN, DIGEST, POSITION
from mqinfer.protocol.limits import DEFAULT_LIMITS, Limits
from mqinfer.protocol.types import EncodedTensor, Scalar

Addressed = tuple[EncodedTensor, str]
"""A tensor, and the worker that has what it is encoded against; empty where any worker can decode it."""

_AHEAD_S, _AHEAD = 0.05, 8
"""A picture waits so long for those before it, which other threads may be about to decode, if they are so few."""


class PictureEncoder(Protocol):
    """Encodes pictures of one size, each against the one before. It can't be used once it has failed."""

    def encode(self, picture: Array, *, key: bool) -> bytes:
        """Encode the next picture, `[H, W, 3]`; with `key` it can be decoded without those before."""


class PictureDecoder(Protocol):
    """Decodes pictures of one size, each behind the one before. It can't be used once it has failed."""

    @property
    def nbytes(self) -> int:
        """Bytes of memory that it takes, about."""

    def decode(self, tensor: EncodedTensor) -> Array:
        """Decode the next picture to `[H, W, 3]`."""


class ChainEncoder:
    """Encodes one stream for one input. Thread-safe.

    `encode` is called for one picture at a time, in the order of the frames; `settled` by any thread.
    """

    def __init__(
        self, name: str, codec: Codec, make: Callable[[int, int, int | None], PictureEncoder], level: int | None
    ) -> None:
        """Start without a picture.

        Args:
            name: Name of the encoding.
            codec: Encodes pictures on their own.
            make: Makes an encoder for a height, a width and a level.
            level: One of the codec's, or None for its default.
        """
        self._name, self._codec, self._make, self._level = name, codec, make, level
        self._lock = threading.Lock()
        self._encoder: PictureEncoder | None = None
        self._size = (0, 0)
        self._chain = time.time_ns() // 1000  # larger than those of an earlier process
        self._position = 0
        self._is_broken = False
        self._worker = ""

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
        tensor = EncodedTensor(name, datatype_of(array.dtype), array.shape, self._name, b"", parameters)
        size = picture_size(tensor, DEFAULT_LIMITS)
        with self._lock:
            if self._encoder is None or self._is_broken or size != self._size:
                encoder = self._begin(size)
            elif whole or not self._worker:
                return _filled(tensor, self._codec.encode(name, array, self._level)), ""
            else:
                encoder = self._encoder
            self._encoder = None  # it can't be used once it has failed
            picture = array.reshape(*size, 3)
            try:
                data = encoder.encode(picture, key=self._position == 0)
            except BadEncoding:  # one in hardware may fail; what is made now is another one
                encoder = self._begin(size)
                data = encoder.encode(picture, key=True)
            encoded = sealed(data, {CHAIN: self._chain, POSITION: self._position})
            self._position += 1
            self._encoder = encoder
            return _filled(tensor, encoded), self._worker

    def settled(self, tensor: EncodedTensor, worker: str | None) -> None:
        """Learn which worker has a picture, or that its chain may be broken; on any thread."""
        with self._lock:
            if tensor.parameters.get(CHAIN) != self._chain:
                return  # alone, or of a chain that has ended
            if worker is None:
                self._is_broken = True
            else:
                self._worker = worker

    def _begin(self, size: tuple[int, int]) -> PictureEncoder:
        """Begin a new chain and return its encoder; its worker will be the one that answers its key frame."""
        encoder = self._encoder if size == self._size else None
        self._size, self._worker, self._is_broken = size, "", False
        self._chain, self._position = self._chain + 1, 0
        return encoder or self._make(*size, self._level)


class ChainDecoder:
    """Decodes the newest chain of one stream, a picture at a time in their order. Thread-safe."""

    def __init__(self, make: Callable[[int, int], PictureDecoder], ahead_s: float = _AHEAD_S) -> None:
        """Start without a picture.

        Args:
            make: Makes a decoder for a height and a width.
            ahead_s: How long a picture waits for those before it.
        """
        self.nbytes = 0
        """Memory that the decoder takes, about."""
        self._make = make
        self._ahead_s = ahead_s
        self._changed = threading.Condition()
        self._decoder: PictureDecoder | None = None  # none before the first key frame, and once it has failed
        self.chain = -1
        """Number of the newest one; below 0 for none."""
        self._size = (0, 0)
        self._next = 0  # position of the picture that the decoder takes next
        self._waits = True  # until pictures of this chain were waited for in vain

    def decode(self, tensor: EncodedTensor, limits: Limits = DEFAULT_LIMITS) -> Array:
        """Decode a picture.

        Args:
            tensor: As received, with the number of its chain and its position there.
            limits: Limits of this receiver.

        Raises:
            ReferenceLost: The pictures before it are not here.
            BadEncoding: The bytes are not the declared picture; those behind it are lost, up to the next key frame.
            LimitExceeded: It is larger than `limits`.
        """
        array_bytes(tensor.name, tensor.datatype, tensor.shape, limits)
        size = picture_size(tensor, limits)
        chain, position = _number(tensor, CHAIN), _number(tensor, POSITION)
        with self._changed:
            try:
                pixels = self._follow(tensor, size, chain, position) if position else self._begin(tensor, size, chain)
            finally:
                self.nbytes = self._decoder.nbytes if self._decoder else 0
                self._changed.notify_all()
        return pixels.reshape(tensor.shape)

    def _begin(self, tensor: EncodedTensor, size: tuple[int, int], chain: int) -> Array:
        decoder = self._make(*size)
        pixels = decoder.decode(tensor)
        if chain >= self.chain:  # else it was late, and the next chain has begun
            self._decoder, self.chain, self._next, self._waits = decoder, chain, 1, True
            self._size = size
        return pixels

    def _follow(self, tensor: EncodedTensor, size: tuple[int, int], chain: int, position: int) -> Array:
        if not self._is_next(chain, position):
            self._await(chain, position)
        decoder = self._decoder
        if decoder is None or not self._is_next(chain, position):
            raise ReferenceLost(
                f"tensor {tensor.name!r}: picture {position} of chain {chain} can't be decoded, since this worker "
                "lacks one before it; send it as a key frame"
            )
        if size != self._size:
            (height, width), (rows, columns) = size, self._size
            raise BadEncoding(
                f"tensor {tensor.name!r}: picture {position} of chain {chain} is declared as {width}x{height}, but the "
                f"chain began with {columns}x{rows}; begin another chain with a key frame"
            )
        self._decoder = None  # it can't be used once it has failed
        pixels = decoder.decode(tensor)
        self._decoder = decoder
        self._next += 1
        return pixels

    def _await(self, chain: int, position: int) -> None:
        """Wait for the pictures before one, as long as other threads may have them.

        The key frame is not waited for: senders have its result before they send what is encoded against it.
        """
        if self._waits and chain == self.chain and 0 < position - self._next <= _AHEAD:
            came = self._changed.wait_for(lambda: (self.chain, self._next) >= (chain, position), self._ahead_s)
            self._waits = came or chain != self.chain

    def _is_next(self, chain: int, position: int) -> bool:
        return self._decoder is not None and (self.chain, self._next) == (chain, position)


@dataclass(frozen=True, slots=True)
class StreamHalves:
    """What an encoding that needs earlier pictures keeps of each stream.

    Attributes:
        encoder: Maker of the sender's half for a level.
        decoder: Maker of the receiver's half.
    """

    encoder: Callable[[int | None], ChainEncoder]
    decoder: Callable[[], ChainDecoder]


def sealed(data: bytes, parameters: Mapping[str, Scalar] | None = None) -> Encoded:
    """Return an encoded picture with its digest: decoders of video do not notice each truncation.

    Args:
        data: The picture.
        parameters: Further parameters of the tensor.
    """
    return Encoded(data, {**(parameters or {}), DIGEST: f"{xxh3_64_intdigest(data):016x}"})


def picture_size(tensor: EncodedTensor, limits: Limits | None = None) -> tuple[int, int]:
    """Return height and width of a picture that travels as video, as they are declared.

    Args:
        tensor: The picture.
        limits: Limits of a receiver; None for none.

    Raises:
        BadEncoding: It is not declared as 8-bit RGB.
        LimitExceeded: It has too many pixels.
    """
    shape = tensor.shape
    picture = shape[1:] if len(shape) == 4 and shape[0] == 1 else shape
    if tensor.datatype is not Datatype.UINT8 or len(picture) != 3 or picture[2] != 3 or 0 in picture:
        raise BadEncoding(
            f"tensor {tensor.name!r}: {tensor.encoding} takes 8-bit RGB of shape [H, W, 3], with an optional leading "
            f"1, not {list(shape)}; use lz4 or raw"
        )
    height, width, _ = picture
    if limits and height * width > limits.image_pixels:
        raise LimitExceeded(
            f"tensor {tensor.name!r}: {width}x{height} pixels; at most {limits.image_pixels} are accepted"
        )
    return height, width


def _filled(tensor: EncodedTensor, encoded: Encoded) -> EncodedTensor:
    return replace(tensor, data=encoded.data, parameters={**tensor.parameters, **encoded.parameters})


def _number(tensor: EncodedTensor, name: str) -> int:
    value = tensor.parameters.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        what = f"tensor {tensor.name!r}: parameter {name} is {str(value)[:40]!r}"
        raise BadEncoding(f"{what}; expected a number from 0 on")
    return value
