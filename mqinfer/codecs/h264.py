"""`h264`: pictures encoded against those before them, through PyAV (FFmpeg, with x264 or an encoder in hardware).

It travels as the byte stream of annex B of ITU-T H.264, one access unit a picture, with parameter sets before each key
frame. Pictures come out in the order in which they went in, at once: no B frames, no lookahead. A decoder that has lost
a picture would show others that are broken, so it is asked for an unbroken chain only (`.chain`); a picture encoded
alone is a chain of one.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from fractions import Fraction
from functools import cache, partial
from importlib import import_module
from typing import Any

import numpy as np
from xxhash import xxh3_64_intdigest

from mqinfer.codecs.chain import ChainDecoder, ChainEncoder, StreamHalves, picture_size, sealed
from mqinfer.codecs.codec import Encoded, Traits
from mqinfer.codecs.h264_sps import UNIT, references
from mqinfer.extras import missing_extra
from mqinfer.logs import log_once, reason
from mqinfer.protocol.datatypes import Array, Datatype, datatype_of
from mqinfer.protocol.errors import BadEncoding
from mqinfer.protocol.header import DIGEST
from mqinfer.protocol.limits import Limits
from mqinfer.protocol.types import EncodedTensor

log = logging.getLogger("mqinfer.codecs")
_NAME = "h264"
_Settings = tuple[Mapping[str, str], Mapping[str, str] | None, Mapping[str, str]]
"""Options of an encoder of FFmpeg: always, for a quality, whose number is `{}` (None: it has none), and for kbit/s."""
_SOFTWARE = "libx264"
_OPTIONS: _Settings = {"preset": "veryfast", "tune": "zerolatency", "forced-idr": "1"}, {"crf": "{}"}, {}
"""Settings of x264. The preset takes an edge about a frame's time: see docs/reference/encodings.md."""
_HARDWARE: dict[str, _Settings] = {
    "h264_nvenc": (
        {"preset": "p4", "tune": "ull", "zerolatency": "1", "delay": "0", "forced-idr": "1"},
        {"rc": "constqp", "qp": "{}"},
        {"rc": "cbr"},
    ),
    "h264_vaapi": ({"async_depth": "1"}, {"rc_mode": "CQP", "qp": "{}"}, {"rc_mode": "CBR"}),
    "h264_v4l2m2m": ({}, None, {}),
}
"""Settings of the encoders in hardware, in the order in which they are tried: one picture in, one picture out."""
_failed: dict[str, str] = {}
"""Encoders in hardware that this process does without, and why."""
_QUALITY = 23
"""Constant rate factor where no level is stated: the default of x264."""
_QUALITIES = 52
"""Levels below are constant rate factors (0: best), others are kbit/s."""
_FPS = 30
"""The rate that kbit/s are for. Encoders that hold no picture back do not look at the time between two."""
_NO_MORE_KEYS = 1 << 24
"""Pictures between two key frames that the encoder makes by itself: none; they are asked for."""
_BLOCK = 64
"""A decoder's bound is for sizes that are rounded up to a multiple of this: it pads rows and columns."""
_MOTION_BYTES = 0.5
"""Memory of a decoder for a pixel of each picture that it keeps, beside the samples: vectors and such (measured)."""
_UNIT_BYTES = 4352
"""Memory that FFmpeg takes for each unit of an access unit, however short it is, and keeps for the next one."""
_MOST_UNITS = 1024
"""Units of one picture. Encoders make one for each slice: at most one a row of macroblocks, or one an IP packet."""


@cache
def _av() -> Any:
    """Import PyAV.

    Raises:
        MissingExtra: It is not installed.
    """
    try:
        av = import_module("av")
    except ImportError:
        raise missing_extra("av", "video") from None
    # PyAV's log stays off, as it is: with a level, FFmpeg's threads wait for the interpreter's lock to log an error
    # while a decoder that is closed holds the lock and waits for them.
    return av


class H264Encoder:
    """Encodes pictures of one size, each against the one before. Not thread-safe."""

    def __init__(self, height: int, width: int, level: int | None, name: str = _SOFTWARE) -> None:
        """Open the encoder.

        Args:
            height: Rows of the pictures.
            width: Columns of the pictures.
            level: A constant rate factor below 52, kbit/s for 30 pictures a second from there; None for 23.
            name: FFmpeg's name of the encoder.

        Raises:
            MissingExtra: PyAV is not installed.
            BadEncoding: It can't encode so, or pictures of that size.
        """
        av, level = _av(), _QUALITY if level is None else level
        self._name, self._what = name, f"{_NAME} pictures of {width}x{height}"
        self._stamp = 0
        self._picture_types = import_module("av.video.frame").PictureType
        always, quality, rate = _HARDWARE.get(name, _OPTIONS)
        is_vaapi = name.endswith("_vaapi")  # its pictures are copied to the device, as what all drivers take
        try:
            device = import_module("av.codec.hwaccel").HWAccel("vaapi") if is_vaapi else None
            context = av.CodecContext.create(name, "w", device)
            context.width, context.height = width + width % 2, height + height % 2
            context.pix_fmt = "nv12" if is_vaapi else "yuv420p"
            context.time_base, context.framerate = Fraction(1, _FPS), Fraction(_FPS)
            context.gop_size, context.max_b_frames, context.thread_count = _NO_MORE_KEYS, 0, 1
            options = dict(always)
            if level >= _QUALITIES:
                context.bit_rate = 1000 * level
                options |= {**rate, "maxrate": f"{level}k", "bufsize": f"{level}k"}
            else:
                options |= {key: value.format(level) for key, value in (quality or {}).items()}
            context.options = options
            context.open()
        except (av.FFmpegError, ValueError, NotImplementedError) as error:  # FFmpeg was built without the encoder
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
            packets = self._context.encode(frame)
        except av.FFmpegError as error:
            raise self._failure(_why(error)) from error
        if len(packets) != 1 or (key and not packets[0].is_keyframe):
            raise self._failure("it holds pictures back, or makes no key frame where one is asked for")
        return bytes(packets[0])

    def _failure(self, why: str) -> BadEncoding:
        _failed[self._name] = why
        return BadEncoding(f"{self._what}: the encoder failed: {why}")


class H264Decoder:
    """Decodes an unbroken chain of pictures of one size, from a key frame on. Not thread-safe."""

    def __init__(self, height: int, width: int) -> None:
        """Open the decoder; it takes memory for pictures of that size at most, whatever the stream claims.

        Args:
            height: Rows of the pictures.
            width: Columns of the pictures.

        Raises:
            MissingExtra: PyAV is not installed.
        """
        self.nbytes = 0
        """Memory that it takes, at most: by the pictures that the stream makes it keep, the largest and its units."""
        self._references = 0
        self._size = height, width
        self._context = context = _av().CodecContext.create(_NAME, "r")
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
        what = f"tensor {tensor.name!r}: the {_NAME} of {len(data)} bytes"
        if tensor.parameters.get(DIGEST) not in {None, f"{xxh3_64_intdigest(data):016x}"}:
            raise BadEncoding(f"{what} is truncated or corrupt: its digest is another")
        units = data.count(UNIT)
        if units > _MOST_UNITS:
            raise BadEncoding(f"{what} has {units} NAL units; at most {_MOST_UNITS} are accepted: use fewer slices")
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
        self._references = max(self._references, references(data))
        sample = frame.format.padded_bits_per_pixel / 8 + _MOTION_BYTES
        kept = round(height * width * ((self._references + 1) * sample + 1))
        self.nbytes = max(self.nbytes, kept + units * _UNIT_BYTES + len(data))
        try:
            pixels: Array = frame.to_ndarray(format="rgb24")
        except (av.FFmpegError, ValueError) as error:
            colours = f"{frame.format.name} of colour space {frame.colorspace}"
            raise BadEncoding(f"{what} has colours that can't be converted to RGB ({colours}): {error}") from error
        return pixels[:height, :width]


def _open_encoder(height: int, width: int, level: int | None) -> H264Encoder:
    """Open the encoder of a stream: one in hardware that works, else x264. What fails once is not tried again."""
    is_rate, is_lossless = level is not None and level >= _QUALITIES, level == 0
    names = [name for name, (_, quality, _) in _HARDWARE.items() if is_rate or not (quality is None or is_lossless)]
    for name in names:
        if encoder := _in_hardware(name, height, width, level):
            log_once(log, logging.INFO, "h264 is encoded in hardware: %s", name)
            return encoder
    others = "".join(f"; {name} does not work: {_failed[name]}" for name in names if name in _failed)
    log_once(log, logging.INFO, "h264 is encoded in software: %s%s", _SOFTWARE, others)
    return H264Encoder(height, width, level)


def _in_hardware(name: str, height: int, width: int, level: int | None) -> H264Encoder | None:
    if name in _failed or name not in _av().codecs_available:
        return None
    try:
        encoder = H264Encoder(height, width, level, name)
        _prove(encoder, height, width)
    except BadEncoding as error:
        _failed.setdefault(name, _why(error.__cause__ or error))
        return None
    return encoder


def _prove(encoder: H264Encoder, height: int, width: int) -> None:
    """Raise `BadEncoding` unless a worker decodes each picture at once, and from each key frame on without the rest."""
    for position, grey in enumerate((40, 90, 140, 190)):
        if is_key := position % 2 == 0:
            decoder = H264Decoder(height, width)
        picture = np.full((height, width, 3), grey, np.uint8)
        data = encoder.encode(picture, key=is_key)
        found = decoder.decode(EncodedTensor("trial", Datatype.UINT8, picture.shape, _NAME, data))
        if abs(float(found.mean()) - grey) > 8:
            raise BadEncoding("it makes other pictures than it was given")


def _why(error: BaseException) -> str:
    return getattr(error, "strerror", None) or reason(error)  # FFmpeg's have the whole call in them, too


def _stream_encoder(level: int | None) -> ChainEncoder:
    return ChainEncoder(_NAME, H264Codec(), _open_encoder, level)


class H264Codec:
    """The codec `h264` for single pictures: each is a key frame, decoded alone."""

    traits = Traits(
        range(100_001),
        default_level=_QUALITY,
        is_lossy=True,
        share=0.02,
        package="av",
        auto_colours=True,
        stream=StreamHalves(_stream_encoder, partial(ChainDecoder, H264Decoder)),
    )

    def encode(self, name: str, array: Array, level: int | None) -> Encoded:
        """Encode a picture."""
        tensor = EncodedTensor(name, datatype_of(array.dtype), array.shape, _NAME, b"")
        height, width = picture_size(tensor)
        return sealed(H264Encoder(height, width, level).encode(array.reshape(height, width, 3), key=True))

    def decode(self, tensor: EncodedTensor, limits: Limits) -> Array:
        """Decode a picture."""
        return H264Decoder(*picture_size(tensor, limits)).decode(tensor).reshape(tensor.shape)


def _rounded(side: int) -> int:
    return -(-side // _BLOCK) * _BLOCK
