"""Video of one stream as a receiver decodes it: an unbroken chain of pictures, whatever is lost or late on the way.

Each picture states the number of its chain, which a key frame begins, and its position there. A picture is decoded only
behind the one before it; where that is not here, the sender receives `reference_lost` and sends the picture again as a
key frame. So no picture is ever shown broken.
"""

from __future__ import annotations

import threading

from mqinfer.codecs.video import VideoDecoder, video_size
from mqinfer.protocol.datatypes import Array, array_bytes
from mqinfer.protocol.errors import BadEncoding, ReferenceLost
from mqinfer.protocol.header import CHAIN, POSITION
from mqinfer.protocol.limits import DEFAULT_LIMITS, Limits
from mqinfer.protocol.types import EncodedTensor

__all__ = ["VideoChain"]

_PIXEL_BYTES = 9
"""Memory of a decoder a pixel: six pictures of 1.5 bytes, as many as encoders use at their slower presets."""
_AHEAD_S, _AHEAD = 0.05, 8
"""A picture waits so long for those before it, which other threads may be about to decode, if they are so few."""


class VideoChain:
    """The newest chain of one stream. Thread-safe: pictures are decoded one at a time, in their order."""

    def __init__(self, ahead_s: float = _AHEAD_S) -> None:
        """Start without a picture.

        Args:
            ahead_s: How long a picture waits for those before it.
        """
        self.nbytes = 0
        """Memory that the decoder takes, about."""
        self._ahead_s = ahead_s
        self._changed = threading.Condition()
        self._decoder: VideoDecoder | None = None  # none before the first key frame, and once it has failed
        self._chain = -1
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
        size = video_size(tensor, limits)
        chain, position = _number(tensor, CHAIN), _number(tensor, POSITION)
        with self._changed:
            try:
                pixels = self._follow(tensor, chain, position) if position else self._begin(tensor, size, chain)
            finally:
                self._changed.notify_all()
        return pixels.reshape(tensor.shape)

    def _begin(self, tensor: EncodedTensor, size: tuple[int, int], chain: int) -> Array:
        decoder = VideoDecoder(tensor.encoding, *size)
        pixels = decoder.decode(tensor)
        if chain >= self._chain:  # else it was late, and the next chain has begun
            self._decoder, self._chain, self._next, self._waits = decoder, chain, 1, True
            self.nbytes = size[0] * size[1] * _PIXEL_BYTES
        return pixels

    def _follow(self, tensor: EncodedTensor, chain: int, position: int) -> Array:
        if not self._is_next(chain, position):
            self._await(chain, position)
        decoder = self._decoder
        if decoder is None or not self._is_next(chain, position):
            raise ReferenceLost(
                f"tensor {tensor.name!r}: picture {position} of chain {chain} can't be decoded, since this worker "
                "lacks one before it; send it as a key frame"
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
        if self._waits and chain == self._chain and 0 < position - self._next <= _AHEAD:
            came = self._changed.wait_for(lambda: (self._chain, self._next) >= (chain, position), self._ahead_s)
            self._waits = came or chain != self._chain

    def _is_next(self, chain: int, position: int) -> bool:
        return self._decoder is not None and (self._chain, self._next) == (chain, position)


def _number(tensor: EncodedTensor, name: str) -> int:
    value = tensor.parameters.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        what = f"tensor {tensor.name!r}: parameter {name} is {str(value)[:40]!r}"
        raise BadEncoding(f"{what}; expected a number from 0 on")
    return value
