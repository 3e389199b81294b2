"""`h264` and `h265`: pictures encoded against those before them, through PyAV (FFmpeg, with x264 and x265).

H.264 is ITU-T H.264, H.265 is ITU-T H.265; both travel as the byte stream of annex B, one access unit a picture, with
parameter sets before each key frame. Pictures come out in the order in which they went in, at once: no B frames, no
lookahead. A decoder that has lost a picture would show others that are broken, so it is asked for an unbroken chain
only (`.stream_memory`); a picture encoded alone is a chain of one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np
from xxhash import xxh3_64_intdigest

from mqinfer.codecs.codec import Encoded
from mqinfer.protocol.datatypes import Array, Datatype
from mqinfer.protocol.errors import BadEncoding, LimitExceeded, MissingExtra
from mqinfer.protocol.header import DIGEST
from mqinfer.protocol.limits import Limits
from mqinfer.protocol.types import EncodedTensor, Scalar

__all__ = ["VIDEO", "VideoCodec", "VideoDecoder", "VideoEncoder", "sealed", "video_size"]


@dataclass(frozen=True, slots=True)
class _Library:
    """FFmpeg's names for an encoding, and how its encoder is set up.

    Attributes:
        decoder: Of the decoder.
        encoder: Of the encoder.
        options: Of the encoder.
    """

    decoder: str
    encoder: str
    options: dict[str, str]


VIDEO = {
    "h264": _Library("h264", "libx264", {"preset": "veryfast"}),
    "h265": _Library("hevc", "libx265", {"preset": "ultrafast", "x265-params": "log-level=none"}),
}
"""By encoding. The presets are those that take an edge about a frame's time: see docs/encodings.md."""
_QUALITY = 23
"""Constant rate factor where no level is stated: the default of x264."""
_QUALITIES = 52
"""Levels below are constant rate factors (0: best), others are kbit/s."""
_LEVELS = range(100_001)
_FPS = 30
"""The rate that kbit/s are for. Encoders that hold no picture back do not look at the time between two."""
_NO_MORE_KEYS = 1 << 24
"""Pictures between two key frames that the encoder makes by itself: none; they are asked for."""
_BLOCK = 64
"""Coded sizes are rounded up to a multiple of this at most: the largest block of H.265 (H.264: 16)."""


@cache
def _av() -> Any:
    """Import PyAV.

    Raises:
        MissingExtra: It is not installed.
    """
    try:
        av = import_module("av")
    except ImportError:
        raise MissingExtra.of("av", "video") from None
    # PyAV's log stays off, as it is: with a level, FFmpeg's threads wait for the interpreter's lock to log an error
    # while a decoder that is closed holds the lock and waits for them.
    return av


class VideoEncoder:
    """Encodes pictures of one size, each against the one before. Not thread-safe."""

    def __init__(self, encoding: str, height: int, width: int, level: int | None) -> None:
        """Open the encoder.

        Args:
            encoding: `h264` or `h265`.
            height: Of the pictures, in pixels.
            width: Likewise.
            level: A constant rate factor below 52, kbit/s for 30 pictures a second from there; None for 23.

        Raises:
            MissingExtra: PyAV is not installed.
            BadEncoding: It can't encode so, or pictures of that size.
        """
        av, library = _av(), VIDEO[encoding]
        self._what = f"{encoding} pictures of {width}x{height}"
        self._stamp = 0
        self._picture_types = import_module("av.video.frame").PictureType
        try:
            context = av.CodecContext.create(library.encoder, "w")
            context.width, context.height, context.pix_fmt = width + width % 2, height + height % 2, "yuv420p"
            context.time_base, context.framerate = Fraction(1, _FPS), Fraction(_FPS)
            context.gop_size, context.max_b_frames, context.thread_count = _NO_MORE_KEYS, 0, 1
            options = {**library.options, "tune": "zerolatency", "forced-idr": "1"}
            if level is not None and level >= _QUALITIES:
                context.bit_rate = 1000 * level
                options |= {"maxrate": f"{level}k", "bufsize": f"{level}k"}
            else:
                options["crf"] = str(_QUALITY if level is None else level)
            context.options = options
            context.open()
        except (av.FFmpegError, ValueError) as error:  # ValueError: this FFmpeg was built without that encoder
            raise BadEncoding(f"{self._what} can't be encoded here: {error}; choose jpeg") from error
        self._context = context

    def encode(self, picture: Array, *, key: bool) -> bytes:
        """Encode the next picture.

        Args:
            picture: `[H, W, 3]`, RGB, UINT8.
            key: Whether it can be decoded without those before, and those behind it too.

        Raises:
            BadEncoding: The encoder failed.
        """
        av, types = _av(), self._picture_types
        odd = [(0, side % 2) for side in picture.shape[:2]]
        if any(more for _, more in odd):  # colours have half the resolution
            picture = np.pad(picture, [*odd, (0, 0)], mode="edge")
        self._stamp += 1
        try:
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), format="rgb24").reformat(format="yuv420p")
            frame.pts, frame.pict_type = self._stamp, types.I if key else types.NONE
            return b"".join(bytes(packet) for packet in self._context.encode(frame))
        except av.FFmpegError as error:
            raise BadEncoding(f"{self._what}: the encoder failed: {error}") from error


class VideoDecoder:
    """Decodes an unbroken chain of pictures of one size, from a key frame on. Not thread-safe."""

    def __init__(self, encoding: str, height: int, width: int) -> None:
        """Open the decoder; it takes memory for pictures of that size at most, whatever the stream claims.

        Args:
            encoding: `h264` or `h265`.
            height: Of the pictures, in pixels.
            width: Likewise.

        Raises:
            MissingExtra: PyAV is not installed.
        """
        self._size = height, width
        self._encoding = encoding
        self._context = context = _av().CodecContext.create(VIDEO[encoding].decoder, "r")
        context.thread_count = 1  # more would delay each picture by one
        context.flags |= import_module("av.codec.context").Flags.low_delay
        coded = _rounded(height) * _rounded(width)
        context.options = {"max_pixels": str(coded), "err_detect": "explode+crccheck+bitstream", "ec": "0"}
        self._is_first = True

    def decode(self, tensor: EncodedTensor) -> Array:
        """Decode the next picture to `[H, W, 3]`, RGB.

        Args:
            tensor: Holds one access unit.

        Raises:
            BadEncoding: The bytes are corrupt, of another size, or no key frame where the chain begins. The decoder
                can't be used any more.
        """
        av, data = _av(), bytes(tensor.data)
        what = f"tensor {tensor.name!r}: the {self._encoding} of {len(data)} bytes"
        if tensor.parameters.get(DIGEST) not in {None, f"{xxh3_64_intdigest(data):016x}"}:
            raise BadEncoding(f"{what} is truncated or corrupt: its digest is another")
        try:
            frames = self._context.decode(av.Packet(data))
        except (av.FFmpegError, ValueError, MemoryError) as error:  # MemoryError: it claims to be larger
            raise BadEncoding(f"{what} is corrupt, or claims another size: {error}") from error
        height, width = self._size
        if len(frames) != 1 or frames[0].is_corrupt:
            raise BadEncoding(f"{what} does not make one whole picture: truncated, or encoded with B frames")
        frame = frames[0]
        if self._is_first and not frame.key_frame:
            raise BadEncoding(f"{what} is no key frame, and there is nothing before it")
        self._is_first = False
        if (frame.height, frame.width) != (height + height % 2, width + width % 2):
            raise BadEncoding(f"{what} holds {frame.width}x{frame.height} pixels; {width}x{height} are declared")
        pixels: Array = frame.to_ndarray(format="rgb24")
        return pixels[:height, :width]


class VideoCodec:
    """The codecs `h264` and `h265` for single pictures: each is a key frame, decoded alone."""

    levels = _LEVELS

    def __init__(self, encoding: str) -> None:
        """Make a codec.

        Args:
            encoding: `h264` or `h265`.
        """
        self._encoding = encoding

    def encode(self, name: str, array: Array, level: int | None) -> Encoded:
        """Encode a picture."""
        height, width = _size(name, self._encoding, array.shape, array.dtype == np.uint8)
        encoder = VideoEncoder(self._encoding, height, width, level)
        return sealed(encoder.encode(array.reshape(height, width, 3), key=True))

    def decode(self, tensor: EncodedTensor, limits: Limits) -> Array:
        """Decode a picture."""
        height, width = video_size(tensor, limits)
        return VideoDecoder(self._encoding, height, width).decode(tensor).reshape(tensor.shape)


def sealed(data: bytes, parameters: Mapping[str, Scalar] | None = None) -> Encoded:
    """Return an access unit with its digest: decoders do not notice each truncation.

    Args:
        data: The access unit.
        parameters: Further parameters of the tensor.
    """
    return Encoded(data, {**(parameters or {}), DIGEST: f"{xxh3_64_intdigest(data):016x}"})


def video_size(tensor: EncodedTensor, limits: Limits) -> tuple[int, int]:
    """Return height and width of a picture that travels as video, as they are declared.

    Raises:
        BadEncoding: It is not declared as 8-bit RGB.
        LimitExceeded: It has too many pixels.
    """
    height, width = _size(tensor.name, tensor.encoding, tensor.shape, tensor.datatype is Datatype.UINT8)
    if height * width > limits.image_pixels:
        raise LimitExceeded(
            f"tensor {tensor.name!r}: {width}x{height} pixels; at most {limits.image_pixels} are accepted"
        )
    return height, width


def _size(name: str, encoding: str, shape: tuple[int, ...], is_bytes: bool) -> tuple[int, int]:  # noqa: FBT001
    picture = shape[1:] if len(shape) == 4 and shape[0] == 1 else shape
    if not is_bytes or len(picture) != 3 or picture[2] != 3 or 0 in picture:
        raise BadEncoding(
            f"tensor {name!r}: {encoding} takes 8-bit RGB of shape [H, W, 3], with an optional leading 1, not "
            f"{list(shape)}; use lz4 or raw"
        )
    return picture[0], picture[1]


def _rounded(side: int) -> int:
    return -(-side // _BLOCK) * _BLOCK
