"""The store of collected frames: a file for each, within bytes on the disk and bytes a day.

An entry is an MCAP file of ROS 2 messages, `STAMP-STREAM-HASH.mcap`, named by the frame itself, so that none comes
twice. It is whole once it has its name. The folder is a recording: whatever reads bags reads it.

`budget.json` has the bytes of the day. It is written before an entry gets its name: a process that is killed between
the two may have counted a frame that it did not keep, never the other way round.
"""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from enum import StrEnum
from pathlib import Path

import msgspec
import numpy as np

from mqinfer.bags.calibration import info_topic
from mqinfer.bags.frame import Frame
from mqinfer.bags.writer import BagWriter
from mqinfer.broker.packets import buffer_size
from mqinfer.edge_agent.output_files import lock, writing
from mqinfer.edge_agent.sinks.sink import file_name
from mqinfer.extras import check_packages
from mqinfer.logs import encodable, log_dropped
from mqinfer.protocol.checksum import checksum
from mqinfer.protocol.types import Count, Finite
from mqinfer.toml_files import MAX_FILE_BYTES, read_bytes

log = logging.getLogger("mqinfer.edge_agent")
ENTRY, _UNFINISHED = ".mcap", ".new"
_ENTRIES = f"{'?' * 20}-*-{'[0-9a-f]' * 16}{ENTRY}"
_BUDGET = "budget.json"
_DAY_S = 86400
_LONGEST = 100
"""Characters of a stream's name in that of a file."""
_MESSAGE = 512
"""Bytes of points beside their arrays."""
_OVERHEAD = 64 << 10
"""Bytes of a file beside what is in it, at most: definitions of types, an index."""
_COUNT_S = 1.0
"""While the folder is full, its files are counted again this often: an upload makes room."""


class Drop(StrEnum):
    """Why a frame that matters was not kept."""

    THERE = "there"  # the folder has it from an earlier run
    DAY = "day"  # the bytes of the day are used up
    FOLDER = "folder"  # the folder has all the bytes that it may have; an upload makes room
    FAILED = "failed"  # the disk is full or broken, or ROS has no room for a stamp or a name
    NO_PIXELS = "no_pixels"  # it has come from the spool, which keeps what travels, and not the frame as it was read


class _Budget(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `budget.json` has: when it was written, by the store's clock, and the bytes that were kept on its day."""

    now: Finite
    used: Count


class Store:
    """Keeps entries in one folder. Not thread-safe; one process at a time, beside one that uploads.

    Its clock begins with the system's time or, if that is later, the time of the last entry, and follows no change of
    the system's clock after that. So a clock that is set back gives no further bytes.

    Args:
        folder: Created if it does not exist.
        max_bytes: Bound of all entries.
        day_bytes: Bound of the entries of one day (of UTC).
        wall: The system's clock, in seconds since the epoch.
        monotonic: In seconds.

    Raises:
        ConfigError: The folder can't be used, or another process uses it.
        MissingExtra: rosbags is not installed.
    """

    def __init__(
        self,
        folder: Path,
        max_bytes: int,
        day_bytes: int,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        check_packages({"rosbags": "rosbags"}, "edge")
        self._folder, self._max_bytes, self._day_bytes, self._monotonic = folder, max_bytes, day_bytes, monotonic
        self._failures, self._counted, now = 0, monotonic(), wall()
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            self._handle = lock(folder)
            for path in folder.glob(_ENTRIES + _UNFINISHED):  # of a process that was killed while it wrote
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            self.bytes = self._count()
        budget = _read_budget(folder / _BUDGET) or _Budget(now, self.bytes)  # as if all that is here were of today
        self._ahead = max(now, budget.now) - monotonic()
        self._day, self.used_today = budget.now // _DAY_S, budget.used

    def keep(self, frame: Frame, describe: Callable[[], str]) -> Drop | None:
        """Store a frame as it was read, and the frames and points that are joined with it.

        Args:
            frame: The frame.
            describe: Returns what is to stand beside it, as JSON.

        Returns:
            Why it is not stored; None if it is.
        """
        if not buffer_size(frame.image.data):
            return Drop.NO_PIXELS
        try:
            path = self._folder / (_name_of(frame) + ENTRY)
            if path.exists():
                return Drop.THERE
            text = describe()
            size = sum(map(_size_of, (frame, *frame.joined))) + len(text)
            most = size + size // 128 + _OVERHEAD  # however badly it compresses
            drop = self._lack(most)
            if drop is None:
                self._write(path, frame, text, most)
        except Exception as error:  # noqa: BLE001 - a disk's errors, and whatever rosbags raises for what ROS can't state
            self._failures += 1
            log_dropped(log, f"{frame.source}, frame {frame.sequence}: {error!r}", "collect", self._failures)
            return Drop.FAILED
        return drop

    def close(self) -> None:
        """Unlock the folder."""
        os.close(self._handle)

    def _lack(self, most: int) -> Drop | None:
        """Return which bound leaves no room for so many bytes."""
        if (day := (self._ahead + self._monotonic()) // _DAY_S) > self._day:
            self._day, self.used_today = day, 0
        if self.used_today + most > self._day_bytes:
            return Drop.DAY
        if self.bytes + most > self._max_bytes and self._monotonic() - self._counted >= _COUNT_S:
            self.bytes, self._counted = self._count(), self._monotonic()
        return Drop.FOLDER if self.bytes + most > self._max_bytes else None

    def _write(self, path: Path, frame: Frame, text: str, most: int) -> None:
        unfinished = path.with_name(path.name + _UNFINISHED)
        try:
            with BagWriter(unfinished, "mcap", compression="zstd") as bag:
                for each in (frame, *frame.joined):
                    topic, times = encodable(each.source), (each.capture_time_ns, frame.log_time_ns, each.frame_id)
                    if each.camera:
                        bag.write_camera(info_topic(topic), each.camera, *times)
                    if not each.points:
                        bag.write(topic, each.image, *times)
                    for points in each.points:
                        bag.add(topic, points, frame.log_time_ns)
                message = bag.message("std_msgs/msg/String", text)
                bag.add(f"{encodable(frame.source).rstrip('/')}/mqinfer/result", message, frame.log_time_ns)
            (made,) = unfinished.glob("*" + ENTRY)
            sync(made)
            if (size := made.stat().st_size) > most:
                raise OSError(f"its file has {size} bytes; expected at most {most}: names in it are too long")
            budget = unfinished / _BUDGET
            budget.write_bytes(msgspec.json.encode(_Budget(self._ahead + self._monotonic(), self.used_today + size)))
            sync(budget)
            budget.replace(self._folder / _BUDGET)
            self.used_today += size
            made.replace(path)
            self.bytes += size
            os.fsync(self._handle)  # the name, too, survives a power cut
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)

    def _count(self) -> int:
        """Return the bytes of all entries; an upload may remove some meanwhile."""
        found = 0
        for path in entries(self._folder):
            with suppress(FileNotFoundError):
                found += path.stat().st_size
        return found


def entries(folder: Path) -> Iterator[Path]:
    """Yield the entries of a folder; whatever else is there, links and pipes included, is not the store's."""
    return filter(_is_plain, folder.glob(_ENTRIES))


def _is_plain(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def _read_budget(path: Path) -> _Budget | None:
    """Return what a budget has; None where there is none, or it is damaged."""
    try:
        return msgspec.json.decode(read_bytes(path, MAX_FILE_BYTES), type=_Budget) if _is_plain(path) else None
    except (OSError, msgspec.MsgspecError):
        return None


def _size_of(frame: Frame) -> int:
    """Return how many bytes a picture or points take in a file."""
    arrays = (getattr(each, name, None) for each in frame.points for name in each.__dataclass_fields__)
    numbers = sum(array.nbytes for array in arrays if isinstance(array, np.ndarray))
    return buffer_size(frame.image.data) + numbers + len(frame.points) * _MESSAGE


def _name_of(frame: Frame) -> str:
    """Return a name that is the same whenever this frame is read, and that no other frame has."""
    images = (each.image.data for each in (frame, *frame.joined))
    _, digits = checksum((frame.source.encode(errors="surrogateescape"), *images))
    return f"{frame.capture_time_ns:020d}-{file_name(frame.source)[:_LONGEST]}-{digits}"


def sync(path: Path) -> None:
    """Have a file, or the names of a folder, on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
