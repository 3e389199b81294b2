"""What the packets of a video show of pictures that were lost or damaged, of which decoders say nothing.

They go on in silence where noise hides pictures, and leave out what they don't expect. Source for JPEG: ITU-T T.81,
sections B.1.1 and B.2.1.
"""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mqinfer.codecs.h264_sps import UNIT, Bits, SequenceSet
from mqinfer.protocol.errors import SourceError

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
        self.is_closed = False
        """Whether the first packet is a key frame after which no picture refers to one before it."""
        self._shown = bytearray()
        stream.codec_context.copy_opaque = self._closed is not None

    def note(self, packet: Packet[Any]) -> None:
        """Number a packet that is about to be decoded."""
        if self._closed is None:
            return
        if not self._shown and packet.is_keyframe:
            self.is_closed = self._closed.search(bytes(packet)) is not None
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
        first = 0 if self.is_closed else self._shown.find(1)
        begin = first if self.is_closed else self._shown.find(1, first + 1)
        return self._shown.count(0, begin if begin >= 0 else first + 1)


MOST_UNITS = 10_000
"""Units of one picture, for each of which FFmpeg takes 4 KiB at once: the largest has a few hundred slices at most."""
_FIRST_SLICE = {
    ".h264": re.compile(rb"\x00\x00\x01[\x01\x05\x21\x25\x41\x45\x61\x65][\x80-\xff]"),
    ".hevc": re.compile(rb"\x00\x00\x01[\x00-\x3f].[\x80-\xff]", re.DOTALL),
}
"""What begins a picture in a raw stream, by the suffix of its file."""
_PIECE = 1 << 20
"""Bytes that are looked at together."""


def check_flood(path: Path) -> None:
    """Raise for a raw stream with a picture of too many units.

    Raises:
        SourceError: It has one.
    """
    if is_flooded(path):
        raise SourceError(f"{path}: a picture of this video has more than {MOST_UNITS} units; it is damaged")


def is_flooded(path: Path) -> bool:
    """Return whether a raw stream has a picture of too many units; False for a file of another kind."""
    first_slice = _FIRST_SLICE.get(path.suffix.lower())
    if first_slice is None:
        return False
    units = 0
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            if units + (count := piece.count(UNIT)) <= MOST_UNITS // 2:
                found = first_slice.search(piece)  # what comes behind it counts as one picture's
                units = piece.count(UNIT, found.start()) if found else units + count
                continue
            begins = [found.start() for found in first_slice.finditer(piece)]
            for number, (begin, end) in enumerate(pairwise([0, *begins, len(piece)])):
                units = piece.count(UNIT, begin, end) + (0 if number else units)
                if units > MOST_UNITS:
                    return True
    return False


def has_too_many_units(packet: bytes) -> bool:
    """Return whether a packet has too many, whether codes begin them or their lengths, of four bytes."""
    if packet.startswith((UNIT, b"\0" + UNIT)):
        return packet.count(UNIT) > MOST_UNITS
    at = units = 0
    while at < len(packet) and units <= MOST_UNITS:
        at += 4 + int.from_bytes(packet[at : at + 4])
        units += 1
    return units > MOST_UNITS


_IMPOSSIBLE = re.compile(rb"\x00\x00(?:\x00+[^\x00]|\x02|\x03[^\x00-\x03])")
"""Bytes that encoders never write inside a unit; zeros may follow its end."""
_HEAD = 64
"""Bytes of a unit in which its header ends."""
_SLICE, _LAST_SLICE, _IDR, _PARAMETERS = 1, 5, 5, 7


class PictureUnits:
    """Compares the numbers of an H.264 stream's pictures, and looks for bytes that no picture of either codec has.

    Source: ITU-T H.264, sections 7.3.2.1, 7.3.3, 7.4.1 and 7.4.3 (`frame_num`); H.265, section 7.4.2.

    Args:
        codec: `h264` or `hevc`.
    """

    def __init__(self, codec: str) -> None:
        self._is_h264 = codec == "h264"
        self._length = 0
        self._last: int | None = None

    def is_damaged(self, packet: bytes) -> bool:
        """Return whether one picture's units are damaged, or pictures before it are missing."""
        found, is_first = False, True
        for unit in packet.split(UNIT)[1:]:
            kind = (unit[:1] or b"\0")[0]
            if self._is_h264 and kind & 31 == _PARAMETERS:
                self._length, self._last = _number_bits(unit[1:]), None
            is_picture = _SLICE <= kind & 31 <= _LAST_SLICE if self._is_h264 else kind < 64
            if is_picture:
                found |= _IMPOSSIBLE.search(unit) is not None or (is_first and self._is_behind_gap(kind, unit))
                is_first = False
        return found

    def _is_behind_gap(self, kind: int, unit: bytes) -> bool:
        """Return whether a picture's number does not follow that of the last one that others refer to."""
        if not (self._is_h264 and self._length):
            return False
        bits = Bits(unit[1 : 1 + _HEAD])
        try:
            for _ in range(3):  # first macroblock, kind of slice, parameters
                bits.number()
            number = bits.take(self._length)
        except ValueError:
            return True
        last, is_idr = self._last, kind & 31 == _IDR
        if kind & 0x60 or is_idr:
            self._last = number
        follows = last is None or (number - last) % (1 << self._length) <= 1
        return not (is_idr or follows)


def _number_bits(parameters: bytes) -> int:
    """Return the length of a picture's number; 0 where it is not known, or numbers may be left out."""
    bits = Bits(parameters[:_HEAD])
    try:
        found, may_be_left_out = SequenceSet.read(bits), bits.take(1)
    except ValueError:
        return 0
    return found.number_bits if found.is_plain and found.order != 1 and not may_be_left_out else 0


_MARKER = re.compile(rb"\xff+([^\x00\xff])")
_END_OF_SCAN = re.compile(rb"\xff+([^\x00\xd0-\xd7\xff])")
"""A marker that is neither a byte of the picture nor the place where a decoder may begin anew."""
_BEGIN = b"\xff\xd8"
_END, _SCAN = 0xD9, 0xDA
_BEHIND_SCAN = frozenset({_END, _SCAN, 0xC4, 0xDB, 0xDC, 0xDD, 0xFE, *range(0xE0, 0xF0)})
"""The end, another scan, and tables and comments before it."""


def is_whole_jpeg(packet: bytes) -> bool:
    """Return whether a picture, or each of two fields, has all segments from its begin to its end."""
    begin, is_whole = packet.find(_BEGIN), False
    while begin >= 0:
        end = _find_end(packet, begin + len(_BEGIN))
        if end < 0:
            return False
        begin, is_whole = packet.find(_BEGIN, end), True  # anything may stand between, as in a stream over HTTP
    return is_whole


def _find_end(packet: bytes, at: int) -> int:
    """Return the place behind a picture; -1 if it has no end, or something that is no segment."""
    while found := _MARKER.match(packet, at):
        kind, at = found[1][0], found.end()
        if kind == _END:
            return at
        at += int.from_bytes(packet[at : at + 2], "big")
        if kind == _SCAN:
            behind = _END_OF_SCAN.search(packet, at)
            if behind is None or behind[1][0] not in _BEHIND_SCAN:
                return -1
            at = behind.start()
    return -1
