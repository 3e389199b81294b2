"""Count the packets of a stream that gave no picture, for codecs of which each gives one."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from av import Packet, VideoFrame, VideoStream

_MPEG = re.compile(rb"\x00\x00\x01\xb8...[\x40-\x7f\xc0-\xff]", re.DOTALL)
_CLOSED = {
    "h264": re.compile(rb"\x00\x00\x01[\x05\x25\x45\x65]"),
    "hevc": re.compile(rb"\x00\x00\x01[\x26\x28]"),
    "mpeg1video": _MPEG,
    "mpeg2video": _MPEG,
}
"""What a key frame has after which no picture refers to one before it, of each of these codecs."""


class ShownPackets:
    """Finds out which packets gave a picture: the decoder passes the number of each on to its picture.

    Args:
        stream: Before anything of it was decoded.
        is_stated: Whether the container states how many pictures there are; nothing is counted then.
    """

    def __init__(self, stream: VideoStream, *, is_stated: bool) -> None:
        self._closed = None if is_stated else _CLOSED.get(stream.codec_context.name)
        self._is_closed = False
        self._shown = bytearray()
        stream.codec_context.copy_opaque = self._closed is not None

    def note(self, packet: Packet[Any]) -> None:
        """Number a packet that is about to be decoded."""
        if self._closed is None:
            return
        if not self._shown and packet.is_keyframe:
            self._is_closed = self._closed.search(bytes(packet)) is not None
        packet.opaque = len(self._shown)
        self._shown.append(0)

    def see(self, frame: VideoFrame) -> None:
        """Cross off the packet of a picture that was decoded."""
        if frame.interlaced_frame:  # each of its fields may have been a packet
            self._closed = None
        number: Any = frame.opaque
        if self._closed is not None and number is not None:
            self._shown[number] = 1

    def count_silent(self) -> int:
        """Count the packets without a picture; those around a first key frame may refer to what was not recorded."""
        if self._closed is None:
            return 0
        first = 0 if self._is_closed else self._shown.find(1)
        begin = first if self._is_closed else self._shown.find(1, first + 1)
        return self._shown.count(0, begin if begin >= 0 else first + 1)
