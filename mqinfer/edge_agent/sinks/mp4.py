"""Write an MP4 file that can be read at any moment: in fragments while it grows, as a plain file once it is closed.

While it grows, a reader finds an empty movie followed by fragments (ISO/IEC 14496-12, section 8.8). `close` appends a
movie with the tables of all samples, and turns the `free` box near the start into an `mdat` that spans everything in
between: from then on the file is a plain MP4 that every player can seek.

::

    while it grows   ftyp  free  moov (empty)  moof mdat  moof mdat ...
    once closed      ftyp  mdat [moov (empty)  moof mdat  moof mdat ...]  moov
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Clip", "Mp4File", "read_clip"]

_MATRIX = struct.pack(">9I", 1 << 16, 0, 0, 0, 1 << 16, 0, 0, 0, 1 << 30)
_SYNC, _NOT_SYNC = 0x02000000, 0x01010000
_BOX = struct.Struct(">I4s")
_LARGE_BOX = struct.Struct(">I4sQ")
_FREE_AT = 24


@dataclass(frozen=True, slots=True)
class Clip:
    """The samples of a short MP4 file with one video track.

    Attributes:
        description: Its `stsd` box: codec, size, and the decoder's configuration.
        timescale: Units a second.
        period: Units a sample.
        sizes: Bytes of each sample.
        sync: Numbers of the samples that need no other one, from 0.
        data: All samples.
    """

    description: bytes
    timescale: int
    period: int
    sizes: tuple[int, ...]
    sync: frozenset[int]
    data: bytes


def read_clip(content: bytes) -> Clip:
    """Read a short MP4 file with one video track of a constant rate, as OpenCV writes it.

    Raises:
        ValueError: It is incomplete.
    """
    top = dict(_boxes(content))
    try:
        media = _inside(top[b"moov"], b"trak", b"mdia")
        tables = dict(_boxes(_inside(media, b"minf", b"stbl")))
        (timescale,) = struct.unpack_from(">I", dict(_boxes(media))[b"mdhd"], 12)
        (period,) = struct.unpack_from(">I", tables[b"stts"], 12)
        size, count = struct.unpack_from(">II", tables[b"stsz"], 4)
        sizes = (size,) * count if size else struct.unpack_from(f">{count}I", tables[b"stsz"], 12)
        sync = frozenset(range(count))
        if b"stss" in tables:
            entries = struct.unpack_from(">I", tables[b"stss"], 4)[0]
            sync = frozenset(number - 1 for number in struct.unpack_from(f">{entries}I", tables[b"stss"], 8))
        clip = Clip(_box(b"stsd", tables[b"stsd"]), timescale, period, sizes, sync, top[b"mdat"])
    except (KeyError, struct.error) as error:
        raise ValueError("the MP4 is incomplete") from error
    if sum(sizes) != len(clip.data):
        raise ValueError(f"the MP4 has {len(clip.data)} of {sum(sizes)} bytes")
    return clip


class Mp4File:
    """An MP4 file with one video track, to which clips are appended. Not thread-safe.

    Args:
        path: Created, or truncated.
        width: Of the pictures, in pixels.
        height: Of the pictures, in pixels.

    Raises:
        OSError: The file cannot be created.
    """

    def __init__(self, path: Path, width: int, height: int) -> None:
        self._path = path
        self._size = (width, height)
        self._first: Clip | None = None
        self._sizes = array("I")
        self._sync = array("I")
        self._chunks: list[tuple[int, int]] = []  # offset and number of samples
        self._end = 0
        self._file = path.open(
            "wb", buffering=0
        )  # each fragment is one write, and on the disk if the process is killed

    def append(self, clip: Clip) -> None:
        """Append a clip as one fragment; all clips have the same codec, size and rate.

        Raises:
            OSError: The disk is full; the file ends with the last complete fragment.
        """
        begin = b""
        if self._first is None:
            self._first = clip
            begin = _box(b"ftyp", b"isom\0\0\2\0isomiso6") + _LARGE_BOX.pack(16, b"free", 0) + self._movie(clip, None)
        head = _fragment(len(self._chunks) + 1, len(self._sizes) * clip.period, clip)
        offset = self._end + len(begin) + len(head) + _BOX.size
        self._write(begin + head + _box(b"mdat", clip.data))
        self._chunks.append((offset, len(clip.sizes)))
        self._sync.extend(len(self._sizes) + number for number in sorted(clip.sync))
        self._sizes.extend(clip.sizes)

    def close(self) -> None:
        """Append the movie with all samples, and close the file; remove it if there are none.

        Raises:
            OSError: The disk is full; the file can be read as it is.
        """
        with self._file:
            if self._chunks and self._first:
                end = self._end
                self._write(self._movie(self._first, self._tables()))
                self._file.seek(_FREE_AT)
                self._file.write(_LARGE_BOX.pack(1, b"mdat", end - _FREE_AT))
            else:
                self._path.unlink()

    def _write(self, content: bytes) -> None:
        left = memoryview(content)
        try:
            while left:
                left = left[self._file.write(left) :]
        except OSError:
            self._file.truncate(self._end)
            self._file.seek(self._end)
            raise
        self._end += len(content)

    def _tables(self) -> bytes:
        """Return the tables of all samples."""
        counts = [count for _, count in self._chunks]
        runs = [(number, count) for number, count in enumerate(counts, 1) if number == 1 or counts[number - 2] != count]
        chunks = b"".join(struct.pack(">3I", number, count, 1) for number, count in runs)
        period = self._first.period if self._first else 0
        sync = [number + 1 for number in self._sync]
        return (
            _full(b"stts", struct.pack(">3I", 1, len(self._sizes), period))
            + _full(b"stss", struct.pack(f">{1 + len(sync)}I", len(sync), *sync))
            + _full(b"stsc", struct.pack(">I", len(runs)) + chunks)
            + _full(b"stsz", struct.pack(f">{2 + len(self._sizes)}I", 0, len(self._sizes), *self._sizes))
            + _full(b"co64", struct.pack(f">I{len(counts)}Q", len(counts), *(offset for offset, _ in self._chunks)))
        )

    def _movie(self, clip: Clip, tables: bytes | None) -> bytes:
        """Return a movie; without tables it is an empty one whose samples follow in fragments."""
        width, height = self._size
        duration = 0 if tables is None else len(self._sizes) * clip.period
        times = struct.pack(">4I", 0, 0, clip.timescale, duration)
        if tables is None:
            tables = b"".join(
                _full(kind, bytes(8 if kind == b"stsz" else 4)) for kind in (b"stts", b"stsc", b"stsz", b"stco")
            )
            extends = _box(b"mvex", _full(b"trex", struct.pack(">5I", 1, 1, clip.period, 0, 0)))
        else:
            extends = b""
        header = times + struct.pack(">IH10x", 1 << 16, 1 << 8) + _MATRIX + bytes(24) + struct.pack(">I", 2)
        track = struct.pack(">5I", 0, 0, 1, 0, duration) + bytes(16) + _MATRIX
        track += struct.pack(">2I", width << 16, height << 16)
        source = _box(b"dinf", _full(b"dref", struct.pack(">I", 1) + _full(b"url ", b"", 1)))
        samples = _box(b"stbl", clip.description + tables)
        media = _box(b"minf", _full(b"vmhd", bytes(8), 1) + source + samples)
        handler = _full(b"hdlr", bytes(4) + b"vide" + bytes(12) + b"video\0")
        language = struct.pack(">2H", 0x55C4, 0)  # undetermined
        return _box(
            b"moov",
            _full(b"mvhd", header)
            + _box(
                b"trak", _full(b"tkhd", track, 3) + _box(b"mdia", _full(b"mdhd", times + language) + handler + media)
            )
            + extends,
        )


def _fragment(number: int, start: int, clip: Clip) -> bytes:
    """Return the `moof` of a clip, whose samples follow in an `mdat`."""
    entries = b"".join(
        struct.pack(">2I", size, _SYNC if index in clip.sync else _NOT_SYNC) for index, size in enumerate(clip.sizes)
    )

    def build(offset: int) -> bytes:
        samples = _full(b"trun", struct.pack(">2I", len(clip.sizes), offset) + entries, 0x601)
        times = _full(b"tfdt", struct.pack(">Q", start), 1 << 24)  # version 1: 64 bits
        track = _box(b"traf", _full(b"tfhd", struct.pack(">I", 1), 0x020000) + times + samples)
        return _box(b"moof", _full(b"mfhd", struct.pack(">I", number)) + track)

    return build(len(build(0)) + _BOX.size)


def _boxes(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield kind and body of each box; one that is cut off ends it."""
    place = 0
    while place + _BOX.size <= len(content):
        size, kind = _BOX.unpack_from(content, place)
        head = _BOX.size
        if size == 1 and place + 16 <= len(content):
            size, head = _LARGE_BOX.unpack_from(content, place)[2], 16
        if size < head or place + size > len(content):
            return
        yield kind, content[place + head : place + size]
        place += size


def _inside(content: bytes, *kinds: bytes) -> bytes:
    for kind in kinds:
        content = dict(_boxes(content))[kind]
    return content


def _box(kind: bytes, body: bytes) -> bytes:
    return _BOX.pack(_BOX.size + len(body), kind) + body


def _full(kind: bytes, body: bytes, flags: int = 0) -> bytes:
    """Return a box with version and flags."""
    return _box(kind, struct.pack(">I", flags) + body)
