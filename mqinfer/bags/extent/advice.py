"""Choose what to advise about a recording that can't be read, by what it holds and not by its name."""

from __future__ import annotations

import os
from pathlib import Path

from mqinfer.codecs.image import lfs_pointer

_MCAP_MAGIC = b"\x89MCAP0\r\n"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
"""Begins what zstd compressed; a message of ROS 2 that is not begins with a zero."""
_MAGIC = {
    ".bag": (b"#ROSBAG V2.0\n", "a ROS 1 bag"),
    ".mcap": (_MCAP_MAGIC, "an MCAP file"),
    ".db3": (b"SQLite format 3\0", "an SQLite file"),
    ".zst": (ZSTD_MAGIC, "a file that zstd compressed"),
    ".zstd": (ZSTD_MAGIC, "a file that zstd compressed"),
}
_HEAD = 32
"""Bytes that tell what a file is."""
_READABLE = {"cdr"}
"""Encodings of the messages of ROS 2."""

_UNCLOSED = "{} that was not closed, is cut off or still grows can be read after: mqinfer bag repair FILE NEW"
_FOLDER = "it is damaged, cut off, or not a ROS 2 bag; a folder can be repaired with: ros2 bag reindex FOLDER"
_PACKED = (
    "copy it again, or unpack it: zstd -dc FILE > PART; an MCAP file is then read after: mqinfer bag repair PART NEW"
)
_DATABASE = "it is damaged or still grows; what is left is found by: sqlite3 FILE .recover | sqlite3 NEW.db3"


def advise(path: Path) -> str:
    """Return what a recording that can't be read is, and what can be done."""
    if path.is_dir():
        files = sorted(path.glob("*.mcap"), key=lambda file: (_ends(file)[1] == _MCAP_MAGIC, file))
        return advise(files[0]) if files else _FOLDER
    head, tail = _ends(path)
    if pointer := lfs_pointer(head, "the recording"):
        return f"it is {pointer}"
    magic, kind = _MAGIC.get(path.suffix, (b"", "a recording"))
    if not head or not magic.startswith(head[: len(magic)]):
        return _about_foreign(kind, head)
    if magic == tail == _MCAP_MAGIC:
        return _about_whole(path)
    if magic == ZSTD_MAGIC:
        return _PACKED
    return _DATABASE if path.suffix == ".db3" else _UNCLOSED.format(kind)


def _about_foreign(kind: str, head: bytes) -> str:
    """Return what a file is whose head is not that of its kind."""
    if not head:
        return "it is empty: nothing was recorded, or it was not copied"
    others = [
        f"but {what}; name it so ({suffix})" for suffix, (start, what) in _MAGIC.items() if head.startswith(start)
    ]
    return f"it is not {kind}, {others[0]}" if others else f"it is not {kind}, and nothing can be read of it"


def _about_whole(path: Path) -> str:
    """Return what an MCAP file that is not cut off holds, where that is why it can't be read."""
    try:
        from mcap.reader import make_reader

        with path.open("rb") as file:
            reader = make_reader(file)
            header, summary = reader.get_header(), reader.get_summary()
    except Exception:  # noqa: BLE001 - whatever parsers raise on damage, or mcap is not installed
        summary = None
    if summary is not None:
        found = {channel.message_encoding for channel in summary.channels.values()}
        if header.library.startswith("mqinfer"):
            return "it holds results of a replay, for Foxglove; replay the recording that they were made from"
        if found - _READABLE or header.profile != "ros2":
            named = ", ".join(sorted(found)) or "nothing"
            what = f"its profile is {header.profile!r}, its messages are {named}"
            return f"{what}; expected 'ros2' and cdr; convert it first"
    return "the file is not cut off: it is damaged inside, which mqinfer bag repair FILE NEW reads around"


def _ends(path: Path) -> tuple[bytes, bytes]:
    """Return the first and the last bytes of a file; nothing of a folder."""
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD)
            file.seek(max(0, file.seek(0, os.SEEK_END) - len(_MCAP_MAGIC)))
            return head, file.read()
    except OSError:
        return b"", b""
