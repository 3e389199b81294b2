"""Read from the header of an ASF file (`.wmv`) where its packets lie."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

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
