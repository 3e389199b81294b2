"""Find when pictures of an AVI file are shown: it has no times, and FFmpeg counts packets as they are stored."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from av import Packet, VideoFrame


class AviTimes:
    """Hands the times of packets in turn to pictures of H.264 and HEVC; of other codecs FFmpeg knows the order.

    Args:
        container: Name of the format; nothing is changed in others than `avi`.
        codec: Name of the codec.
    """

    def __init__(self, container: str, codec: str) -> None:
        self._is_avi = container == "avi"
        self._is_stored = self._is_avi and codec in {"h264", "hevc"}
        self._waiting: deque[int] = deque()
        self.origin: int | None = None
        """Time of the first packet, which may be later than the stated start; None in other containers."""

    def note(self, packet: Packet[Any]) -> None:
        """Correct the time of a packet that was read."""
        if self._is_stored:
            packet.pts = packet.dts
        if self._is_avi and self.origin is None:
            self.origin = packet.pts

    def decode(self, packet: Packet[Any]) -> None:
        """Keep the time of a packet that goes to the decoder."""
        if self._is_stored and packet.pts is not None:
            self._waiting.append(packet.pts)

    def show(self, frame: VideoFrame) -> None:
        """Correct the time of a picture."""
        if not self._is_stored or frame.pts is None:
            return
        while frame.key_frame and self._waiting and self._waiting[0] < frame.pts:  # of packets that gave no picture
            self._waiting.popleft()
        if self._waiting:
            frame.pts = self._waiting.popleft()
