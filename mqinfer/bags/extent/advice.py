"""Choose what to advise about a recording that can't be read, by what it holds and not by its name."""

from __future__ import annotations

import os
from pathlib import Path

from mqinfer.bags.extent.unpacking import chunk_records, zstd
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
_DATA_END = 13
"""Bytes of the record that an MCAP file has before its summary."""
_HEAD = 32
"""Bytes that tell what a file is."""
_PIECE = 1 << 20
"""Bytes that are unpacked at a time."""
_READABLE = {"cdr"}
"""Encodings of the messages of ROS 2."""

_UNCLOSED = "{} that was not closed, is cut off or still grows can be read after: mqinfer bag repair FILE NEW"
_FOLDER = "it is damaged, cut off, or not a ROS 2 bag; a folder can be repaired with: ros2 bag reindex FOLDER"
_PACKED = (
    "copy it again, or unpack it: zstd -dc FILE > PART{0}; what is left is then found by: "
    "mqinfer bag repair PART{0} NEW{0}"
)
_DATABASE = "it is damaged or still grows; what is left is found by: mqinfer bag repair FILE NEW.db3"
_MESSAGE = (
    "a message is damaged, or not of its type, and no repair mends it; --start and --duration read what lies before "
    "and behind it"
)
_SOUND = "no record of it is damaged, so no repair changes that"


def advise(path: Path, *, is_message: bool = False) -> str:
    """Return what a recording that can't be read is, and what can be done.

    Args:
        path: The recording.
        is_message: Whether it is a message that can't be decoded, which a repair would copy as it is.
    """
    if path.is_dir():
        return _about_folder(path, is_message=is_message)
    head, tail = _ends(path)
    magic, kind = _MAGIC.get(path.suffix, (b"", "a recording"))
    if len(head) < len(magic) or not head.startswith(magic):
        return _about_foreign(kind, head)
    if magic == tail == _MCAP_MAGIC:
        return _about_whole(path, _MESSAGE if is_message else _SOUND)
    if is_message:
        return _MESSAGE
    if magic == ZSTD_MAGIC:
        return _PACKED.format(Path(path.stem).suffix)
    return _DATABASE if path.suffix == ".db3" else _UNCLOSED.format(kind)


def _about_folder(folder: Path, *, is_message: bool) -> str:
    """Return what is advised about the first file that is not whole; the folder's metadata is at fault if all are."""
    files = sorted(file for file in folder.iterdir() if file.suffix in _MAGIC)
    broken = next((file for file in files if not _is_whole(file)), None)
    if broken is not None:
        return f"{broken.name}: {advise(broken, is_message=is_message)}"
    otherwise = _MESSAGE if is_message else _FOLDER
    recordings = [file for file in files if file.suffix == ".mcap"]
    return _about_whole(recordings[0], otherwise) if recordings else otherwise


def _is_whole(file: Path) -> bool:
    """Return whether a file has the begin of its kind and, where it can be told, its end."""
    head, tail = _ends(file)
    magic = _MAGIC[file.suffix][0]
    if file.suffix == ".bag":
        return _has_index(file)
    if magic != ZSTD_MAGIC:
        return head.startswith(magic) and (magic != _MCAP_MAGIC or tail == magic)
    try:
        with zstd().open(file, "rb") as unpacked:
            while unpacked.read(_PIECE):
                pass
    except Exception:  # noqa: BLE001 - whatever is raised on damage, or backports.zstd is not installed
        return False
    return True


def _has_index(file: Path) -> bool:
    """Return whether a ROS 1 bag was closed, and is not cut off: its index stands at its end."""
    from rosbags.rosbag1 import Reader

    try:
        with Reader(file):
            return True
    except Exception:  # noqa: BLE001 - whatever parsers raise on damage
        return False


def _about_foreign(kind: str, head: bytes) -> str:
    """Return what a file is whose head is not that of its kind."""
    if not head:
        return "it is empty: nothing was recorded, or it was not copied"
    if pointer := lfs_pointer(head, "the recording"):
        return f"it is {pointer}"
    if any(start.startswith(head) for start, _ in _MAGIC.values()):
        return "it is cut off behind its first bytes, and nothing can be read of it"
    others = [
        f"but {what}; name it so ({suffix})" for suffix, (start, what) in _MAGIC.items() if head.startswith(start)
    ]
    return f"it is not {kind}, {others[0]}" if others else f"it is not {kind}, and nothing can be read of it"


def _about_whole(path: Path, otherwise: str) -> str:
    """Return what an MCAP file that is not cut off holds, where that is why it can't be read, or that it is damaged."""
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
        if _is_sound(path, [each.chunk_start_offset for each in summary.chunk_indexes]):
            return otherwise
    return "the file is not cut off: it is damaged inside, which mqinfer bag repair FILE NEW reads around"


def _is_sound(path: Path, indexed: list[int]) -> bool:
    """Return whether an MCAP file has the checksums that it states, and its index is right: what a repair mends.

    Args:
        path: The file.
        indexed: Where its chunks begin, by its index.
    """
    from mcap.opcode import Opcode
    from mcap.records import Chunk, Footer
    from mcap.stream_reader import StreamReader

    chunks = summary_start = 0
    try:
        with Path(str(path)).open("rb") as file:  # not one at an address, all of which would be read
            for record in StreamReader(file, validate_crcs=True, emit_chunks=True).records:
                if isinstance(record, Chunk):
                    chunk_records(record)
                    chunks += 1
                elif isinstance(record, Footer):
                    summary_start = record.summary_start
            begins = dict.fromkeys(indexed, Opcode.CHUNK) | {summary_start - _DATA_END: Opcode.DATA_END}
            return len(begins) == chunks + 1 and all(os.pread(file.fileno(), 1, at)[0] == begins[at] for at in begins)
    except Exception:  # noqa: BLE001 - whatever parsers raise on damage
        return False


def _ends(path: Path) -> tuple[bytes, bytes]:
    """Return the first and the last bytes of a file; nothing of a folder."""
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD)
            file.seek(max(0, file.seek(0, os.SEEK_END) - len(_MCAP_MAGIC)))
            return head, file.read()
    except OSError:
        return b"", b""
