"""Read frames from a folder of pictures, or from a single picture."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from mqinfer.bags.extent.unpacking import LARGEST
from mqinfer.bags.frame import WHOLE, Frame, StreamInfo, TimeRange
from mqinfer.images.compressed import picture_size
from mqinfer.images.picture import CompressedImage
from mqinfer.logs import encodable
from mqinfer.protocol.errors import SourceError

PICTURE_SUFFIXES = {".jpg": "jpeg", ".jpeg": "jpeg", ".png": "png"}

LARGEST_PICTURE = LARGEST // 2
"""Bytes of a file with one."""
FRAMES_PER_SECOND = 10
"""Frames a second of pictures, which have no log times."""


class FolderSource:
    """JPEG and PNG files in natural order (`2.png` before `10.png`), their bytes untouched.

    The log time counts from 0 at ten pictures a second; the capture stamp is the modification time of the file.

    Args:
        path: The folder, or one picture.
        span: The part to read.

    Raises:
        SourceError: There is no picture.
    """

    def __init__(self, path: Path, *, span: TimeRange = WHOLE) -> None:
        self._path, self._name = path, encodable(str(path))
        pictures = list_pictures(path)
        if not pictures:
            raise SourceError(
                f"{path}: neither a bag (no metadata.yaml, .mcap, .db3 or .bag) nor a folder of JPEG or PNG files"
            )
        begin, end = span.bounds(0)
        self._pictures = [
            (index, log_time_ns, picture)
            for index, picture in enumerate(pictures)
            if (log_time_ns := index * 1_000_000_000 // FRAMES_PER_SECOND) >= begin
            and (end is None or log_time_ns < end)
        ]

    def streams(self) -> tuple[StreamInfo, ...]:
        """List the folder as one stream; the size is that of its first picture."""
        width, height = _size(self._pictures[0][2]) if self._pictures else (0, 0)
        encoding = _format(self._pictures[0][2]) if self._pictures else ""
        count = len(self._pictures)
        return (StreamInfo(self._name, "picture", encoding, width, height, count, float(FRAMES_PER_SECOND)),)

    def frames(self) -> Iterator[Frame]:
        """Yield the pictures in natural order.

        Raises:
            SourceError: A file cannot be read any more, or is larger than pictures are.
        """
        for sequence, log_time_ns, picture in self._pictures:
            try:
                data, modified = _read(picture), picture.stat().st_mtime_ns
            except OSError as failed:
                raise SourceError(f"{picture}: {failed.strerror}") from failed
            image = CompressedImage(_format(picture), data)
            yield Frame(self._name, sequence, modified, log_time_ns, "", image)

    def close(self) -> None:
        """Do nothing: no file stays open between pictures."""


def list_pictures(path: Path) -> list[Path]:
    """Return the pictures of a folder in natural order, or a single one."""
    found = path.iterdir() if path.is_dir() else iter([path])
    return sorted((each for each in found if each.suffix.lower() in PICTURE_SUFFIXES), key=natural_order)


def natural_order(path: Path) -> tuple[list[tuple[int, str]], str]:
    """Return a sort key: runs of digits by value, the rest by letters; the name settles ties such as 01 and 1."""
    parts = re.split(r"([0-9]+)", path.name)
    return [(int(part), "") if index % 2 else (0, part) for index, part in enumerate(parts)], path.name


def _format(picture: Path) -> str:
    return PICTURE_SUFFIXES[picture.suffix.lower()]


def _read(picture: Path) -> bytes:
    with picture.open("rb") as file:
        data = file.read(LARGEST_PICTURE + 1)
    if len(data) > LARGEST_PICTURE:
        raise SourceError(f"{picture}: a picture of more than {LARGEST_PICTURE >> 20} MiB; it is damaged, or none")
    return data


def _size(picture: Path) -> tuple[int, int]:
    try:
        return picture_size(CompressedImage(_format(picture), _read(picture)))
    except (OSError, SourceError):
        return 0, 0
