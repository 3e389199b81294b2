"""What containers of video need beside FFmpeg.

MPEG transport streams that were joined in one file are distinguished from one in which packets are missing; an ASF
file (`.wmv`) says in its header where its packets lie; an AVI file has no times, and FFmpeg counts its packets as they
are stored.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from av import Packet

_BEFORE = 2 << 20
"""Bytes before a break in which the table of programs was sent before."""
_MOST = 16 << 20
"""Bytes that are looked at for one break."""
_SYNC = 0x47
_PLAIN, _TIMED = 188, 192
"""Bytes of a packet, and of one behind a time, as in `.m2ts`."""
_PROGRAMS, _SERVICES, _PADDING = 0x00, 0x11, 0x1FFF
"""Streams of tables, and of what only fills."""
_FAR_S = 10.0
"""A recording that begins anew has earlier times, those that follow, or much later ones."""


class TransportBreaks:
    """Decides about the pictures in which packets of the container are missing, once the next key frame has come.

    FFmpeg reports a join as missing packets of one of the last two pictures before it. At a join the numbers of all
    streams begin anew, that of the table of programs first.

    Args:
        path: The file.
        period_s: Seconds from one frame to the next.
    """

    def __init__(self, path: Path, period_s: float) -> None:
        self._path = path
        self._period_s = period_s
        self._open: int | None = None
        self._later = 0
        self._last_s = 0.0

    @property
    def is_open(self) -> bool:
        """Whether packets are missing at the end."""
        return self._open is not None

    def is_broken(self, packet: Packet[Any]) -> bool:
        """Return whether a packet of the stream proves that something is missing before it."""
        time_s = float((packet.dts or 0) * packet.time_base)
        step_s, self._last_s = time_s - self._last_s, time_s
        place: Any = packet.pos  # known in this container
        begin, is_broken = self._open, False
        self._later += 1
        if begin is not None and (packet.is_keyframe or self._later > 1 or packet.is_corrupt):
            self._open = None
            is_broken = not (packet.is_keyframe and self._is_anew(step_s) and self._is_join(begin, place))
        if packet.is_corrupt:
            self._open, self._later = place, 0
        return is_broken

    def _is_anew(self, step_s: float) -> bool:
        return step_s < 1.5 * self._period_s or step_s > _FAR_S

    def cleaned(self, packet: Packet[Any]) -> Packet[Any]:
        """Return a packet without the container's mark, so that a picture's mark is the decoder's own."""
        if not packet.is_corrupt:
            return packet
        clean: Packet[Any] = type(packet)(bytes(packet))
        clean.pts, clean.dts, clean.is_keyframe = packet.pts, packet.dts, packet.is_keyframe
        clean.time_base = packet.time_base
        return clean

    def _is_join(self, begin: int, end: int) -> bool:
        """Return whether all numbers between two places go on, but for once each behind a table of another count."""
        numbers: dict[int, int] = {}
        breaks: list[int] = []
        for place, head in self._heads(begin, end):
            stream, number = (head[1] & 0x1F) << 8 | head[2], head[3] & 0x0F
            if head[0] != _SYNC:
                return False
            if head[3] & 0x10 and stream != _PADDING:  # content alone is counted
                if place >= begin and (number - numbers.get(stream, number - 1)) % 16 > 1:
                    breaks.append(stream)
                numbers[stream] = number
        return breaks[:1] in ([_PROGRAMS], [_SERVICES]) and len(set(breaks)) == len(breaks)

    def _heads(self, begin: int, end: int) -> Iterator[tuple[int, bytes]]:
        """Yield place and head of each of the container's packets from some before one place to another."""
        with self._path.open("rb") as file:
            size = _PLAIN if file.read(1)[0] == _SYNC else _TIMED
            first = max(0, begin - _BEFORE, end - _MOST) // size * size
            file.seek(first)
            data = file.read(end + size - first)
        for at in range(size - _PLAIN, len(data) - _PLAIN + 1, size):
            yield first + at, data[at : at + 4]


_HEAD = 4096
_PROPERTIES = bytes.fromhex("a1dcab8c47a9cf118ee400c00c205365")
"""Identifier of the object in the header that states sizes."""
_DATA_HEAD = 50
"""Bytes of the object of packets before the first packet."""


@dataclass(frozen=True, slots=True)
class AsfExtent:
    """Sizes and places in bytes.

    Attributes:
        size: Of the file; 0 where it is not stated, as in a live recording.
        begin: Of the first packet.
        packet: Size of each packet.
        end: Of the last packet; 0 where it is not stated.
    """

    size: int
    begin: int
    packet: int
    end: int

    @classmethod
    def read(cls, path: Path) -> AsfExtent:
        """Read a file's header."""
        with path.open("rb") as file:
            head = file.read(_HEAD)
        stated = head.partition(_PROPERTIES)[2]
        size, count, flags, packet = (
            int.from_bytes(stated[at:end], "little") for at, end in ((24, 32), (40, 48), (72, 76), (76, 80))
        )
        begin = int.from_bytes(head[16:24], "little") + _DATA_HEAD
        is_live = flags & 1 or not stated
        return cls(0 if is_live else size, begin, max(packet, 1), 0 if is_live else begin + count * packet)

    def has_at(self, place: int) -> bool:
        """Return whether a packet begins at a place."""
        return (place - self.begin) % self.packet == 0

    def is_cut(self, size: int, end_byte: int) -> bool:
        """Return whether a file of this size, whose packets were read to a place, lacks its end."""
        return size < self.size or end_byte + 2 * self.packet < self.end


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
