"""Decode a topic whose messages are packets of a video."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any

from mqinfer.bags.extent.packets import PictureUnits, has_too_many_units
from mqinfer.bags.frame import Frame
from mqinfer.bags.videos.decoder import DETECTION, to_bgr
from mqinfer.bags.videos.packets import is_key
from mqinfer.bags.videos.source import raw_bgr
from mqinfer.extras import missing_extra
from mqinfer.images.picture import CompressedImage, RawImage
from mqinfer.protocol.errors import SourceError
from mqinfer.protocol.limits import DEFAULT_LIMITS

_DECODERS = {"av1": "libdav1d"}
"""Decoders whose name is not the codec's: FFmpeg's own one of AV1 needs hardware."""
_STRICT = {"err_detect": "explode"}
_OF_UNITS = ("h264", "hevc")
_MOST_WAITING = 32
"""Packets without a picture, which may come later: those of B frames. Codecs keep 16 at most."""


class VideoTopic:
    """Decodes the packets of one topic, each one picture. Not thread-safe.

    What is damaged, and what refers to it, gives no picture: decoding goes on at the next key frame.

    Args:
        name: Of the topic.

    Raises:
        MissingExtra: PyAV is not installed.
    """

    def __init__(self, name: str) -> None:
        try:
            self._av: Any = import_module("av")
        except ImportError as missing:
            raise missing_extra("av", "edge") from missing
        self._name = name
        self._codec = ""
        self._waiting: dict[int, Frame] = {}
        self._number = 0
        self._last: tuple[int, int] | None = None
        self._is_broken = True
        self.lost: list[int] = []
        """Log times of the packets without a picture, from the first key frame on."""
        self.early = 0
        """Number of packets before the first key frame."""

    @property
    def pixels(self) -> int:
        """How many pixels a picture has, of which a decoder may keep 17; 0 before the first one."""
        return int(self._context.width * self._context.height) if self._codec else 0

    def add(self, packet: Frame) -> list[Frame]:
        """Decode the next packet, and return the frames that are complete now, in the order of their stamps.

        Raises:
            SourceError: The stamps are not those of the pictures.
        """
        image = packet.image
        codec, data = image.format if isinstance(image, CompressedImage) else "", bytes(image.data)
        found: list[Frame] = []
        if codec != self._codec:
            found = self.flush()
            self._open(codec)
        if self._is_broken and is_key(codec, data):
            self._context.flush_buffers()
            self._units, self._is_broken = PictureUnits(codec) if codec in _OF_UNITS else None, False
        if self._is_broken:
            self._lose([packet])
            return found
        self._number += 1
        self._waiting[self._number] = packet
        if len(self._waiting) > _MOST_WAITING:
            self._lose([self._waiting.pop(min(self._waiting))])
        return found + (self._break() if self._is_damaged(data) else self._decode(data))

    def flush(self) -> list[Frame]:
        """Return the frames that are left; no packet comes any more, or one of another video."""
        found = [] if self._is_broken else self._decode(None)
        self._break()
        return found

    def _open(self, codec: str) -> None:
        context = self._av.CodecContext.create(_DECODERS.get(codec, codec), "r")
        context.thread_type = "SLICE"  # frames on threads would come later
        context.options = {"max_pixels": str(DEFAULT_LIMITS.image_pixels), **DETECTION.get(codec, _STRICT)}
        if codec == "av1":
            context.flags |= import_module("av.codec.context").Flags.low_delay
        self._context, self._codec, self._is_broken = context, codec, True
        self._converter = import_module("av.video.reformatter").VideoReformatter()

    def _is_damaged(self, data: bytes) -> bool:
        if self._units is None:
            return not data
        return not data or has_too_many_units(data) or self._units.is_damaged(data)

    def _decode(self, data: bytes | None) -> list[Frame]:
        packet = None if data is None else self._av.Packet(data)
        if packet is not None:
            packet.pts = self._number
        try:
            frames = self._context.decode(packet)
        except (self._av.FFmpegError, ValueError, MemoryError):
            return self._break()
        found: list[Frame] = []
        for frame in frames:
            if frame.is_corrupt:
                return found + self._break()
            if (own := self._waiting.pop(frame.pts, None)) is not None:
                found += self._shown(frame, own)
        return found

    def _shown(self, frame: Any, own: Frame) -> list[Frame]:
        before, self._last = self._last, (frame.pts, own.capture_time_ns)
        if before is not None and frame.pts < before[0] and own.capture_time_ns < before[1]:
            raise SourceError(
                f"{self._name}: a video with B frames that are stamped in the order of decoding; encode it without them"
            )
        try:
            return [replace(own, image=raw_bgr(to_bgr(self._converter, frame)))]
        except (self._av.FFmpegError, ValueError):  # colours that can't be converted
            self._lose([own])
            return []

    def _break(self) -> list[Frame]:
        self._lose(list(self._waiting.values()))
        self._waiting.clear()
        self._is_broken = True
        return []

    def _lose(self, packets: Sequence[Frame]) -> None:
        if self._number:
            self.lost += [each.log_time_ns for each in packets]
        else:
            self.early += len(packets)


def video_size(packet: CompressedImage) -> tuple[int, int]:
    """Return width and height of a packet's picture; `(0, 0)` where it has none of its own, or is damaged."""
    topic = VideoTopic("")
    found = [*topic.add(Frame("", 0, 0, 0, "", packet)), *topic.flush()]
    sizes = [(each.image.width, each.image.height) for each in found if isinstance(each.image, RawImage)]
    return sizes[0] if sizes else (0, 0)
