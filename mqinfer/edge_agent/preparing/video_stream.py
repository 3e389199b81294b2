"""One stream's pictures as H.264 or H.265: each is encoded against the one before it, which its worker has.

Such a picture goes only to the worker that has answered the key frame of its chain. While that is not known, pictures
are key frames of their own, which any worker decodes; after a loss of any kind the next one begins a new chain.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from numpy.typing import NDArray

from mqinfer.client.result import InferResult
from mqinfer.codecs import encode_tensor, parse_encoding
from mqinfer.codecs.video import VideoEncoder, sealed, video_size
from mqinfer.protocol.datatypes import datatype_of
from mqinfer.protocol.header import CHAIN, POSITION
from mqinfer.protocol.limits import DEFAULT_LIMITS
from mqinfer.protocol.types import EncodedTensor, Outcome, Scalar

__all__ = ["VideoStream"]


class VideoStream:
    """Encodes one stream for one input. Thread-safe."""

    def __init__(self, name: str, level: str = "") -> None:
        """Start without a picture.

        Args:
            name: Of the codec: `h264` or `h265`.
            level: Constant rate factor or kbit/s; empty for the codec's default.

        Raises:
            BadEncoding: There is no such level.
        """
        self._encoding = f"{name}:{level}" if level else name
        self._codec = parse_encoding(self._encoding)
        self._lock = threading.Lock()
        self._encoder: VideoEncoder | None = None
        self._size = (0, 0)
        self._chain = time.time_ns() // 1000  # larger than those of an earlier process
        self._position = 0
        self._is_broken = False
        self._worker = ""

    def encode(
        self, name: str, array: NDArray[Any], parameters: Mapping[str, Scalar], *, whole: bool
    ) -> tuple[EncodedTensor, str]:
        """Encode a picture; as of `StreamEncoder`."""
        tensor = EncodedTensor(name, datatype_of(array.dtype), array.shape, self._codec.name, b"", parameters)
        size = video_size(tensor, DEFAULT_LIMITS)
        with self._lock:
            if self._encoder is None or self._is_broken or size != self._size:
                encoder = self._begin(size)
            elif whole or not self._worker:
                return encode_tensor(name, array, self._encoding, parameters), ""
            else:
                encoder = self._encoder
            self._encoder = None  # it can't be used once it has failed
            sent = self._next(encoder, tensor, array.reshape(*size, 3))
            self._encoder = encoder
            return sent, self._worker

    def on_result(self, tensor: EncodedTensor, result: InferResult) -> None:
        """Learn from a picture's outcome which worker has it, or that its chain may be broken; on any thread."""
        with self._lock:
            if tensor.parameters.get(CHAIN) != self._chain:
                return  # alone, or of a chain that has ended
            if result.outcome is Outcome.OK:
                self._worker = result.worker
            else:
                self._is_broken = True

    def _begin(self, size: tuple[int, int]) -> VideoEncoder:
        """Begin a new chain and return its encoder; its worker will be the one that answers its key frame."""
        encoder = self._encoder if size == self._size else None
        self._size, self._worker, self._is_broken = size, "", False
        self._chain, self._position = self._chain + 1, 0
        return encoder or VideoEncoder(self._codec.name, *size, self._codec.level)

    def _next(self, encoder: VideoEncoder, tensor: EncodedTensor, picture: NDArray[Any]) -> EncodedTensor:
        data = encoder.encode(picture, key=self._position == 0)
        encoded = sealed(data, {CHAIN: self._chain, POSITION: self._position})
        self._position += 1
        return replace(tensor, data=encoded.data, parameters={**tensor.parameters, **encoded.parameters})
