r"""Store frames on the disk until they can be sent: encoded, with their stamps, oldest first, within a bound.

Each frame is a file of its own, so damage to one never reaches another, frames survive a crash of the edge, and the
next run sends them first. A file is complete once it has its name, and a checksum covers all of it::

    xxh3 0123456789abcdef\n      over everything below
    {"number": 17, ...}\n        what the tensors are, where and when the frame was taken
    the encoded bytes of each

A frame that differs from its checksum is set aside under the suffix `.damaged` and never sent. One that can't be read
or written now, for want of descriptors or memory, or since the disk does not answer, is as good as before: `SpoolBusy`.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import threading
from bisect import bisect_right, insort
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from dataclasses import fields as fields_of
from pathlib import Path
from typing import Any, Self

from msgspec import MsgspecError, convert, to_builtins
from msgspec.structs import asdict

from mqinfer.bags.frame import Frame
from mqinfer.broker.packets import buffer_size
from mqinfer.edge_agent.frames.table import PreparedFrame, capture_of
from mqinfer.edge_agent.output_files import lock
from mqinfer.images.picture import CameraInfo
from mqinfer.images.placement import Placement
from mqinfer.logs import is_logged
from mqinfer.protocol.checksum import checksum
from mqinfer.protocol.datatypes import Datatype
from mqinfer.protocol.errors import ConfigError, MqinferError, SourceError
from mqinfer.protocol.types import Capture, EncodedTensor

log = logging.getLogger("mqinfer.edge_agent")
FULL_CHECK_S = 1.0
"""While the disk takes none, a frame that waits is offered to it again this often."""
_FRAME, _UNFINISHED, _DAMAGED = ".frame", ".new", ".damaged"
_REDACTED = "redacted"
"""A file that is there while all frames are."""
_DAMAGED_KEPT = 16
"""Damaged files that are kept for the operator; the oldest are deleted."""
_NO_FILE = frozenset({errno.ENOENT, errno.EISDIR, errno.ENOTDIR, errno.ELOOP, errno.ENXIO})
"""Errors that say that a frame's file is gone, or none; any other one may be over in a moment."""
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
_UNDELETED = "spool %s: %d frames have their outcome but can't be deleted; the next run sends them again"


@dataclass(frozen=True, slots=True, eq=False)
class _Description:
    """What the store keeps of a frame beside its tensors.

    Attributes:
        capture: Where and when it was taken.
        bytes_raw: Size of its pixels before encoding.
        log_time_ns: When it was recorded.
        joined: Where and when the frames were taken that go with it, one for each further tensor.
        cameras: Calibrations of the frame and of those that go with it; empty where an older version stored it.
        placement: Where the frame lies in what the model will see; None where an older version stored it.
        number: In the store, ascending; 0 where it is not there yet.
    """

    capture: Capture
    bytes_raw: int
    log_time_ns: int
    joined: tuple[Capture, ...] = ()
    cameras: tuple[CameraInfo | None, ...] = ()
    placement: Placement | None = None
    number: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class SpooledFrame(_Description):
    """A frame in the store.

    Attributes:
        tensors: As they will be sent; without a name where they are pictures as recorded, since no model was known yet.
    """

    tensors: tuple[EncodedTensor, ...] = ()

    @classmethod
    def of(cls, frame: Frame, prepared: PreparedFrame) -> Self:
        """Return what is kept of a frame that was prepared."""
        capture, *joined = (capture_of(each) for each in (frame, *frame.joined))
        cameras = tuple(each.camera for each in (frame, *frame.joined))
        return cls(
            capture,
            prepared.bytes_raw,
            frame.log_time_ns,
            tuple(joined),
            cameras,
            prepared.placement,
            tensors=prepared.tensors,
        )

    @property
    def is_recorded(self) -> bool:
        """Whether it is to be prepared for its model before it is sent."""
        return not self.tensors[0].name


class SpoolBusy(Exception):
    """A frame can't be read now; it stays in the spool as it is.

    Attributes:
        number: Of the frame.
    """

    def __init__(self, number: int, why: OSError | MemoryError) -> None:
        super().__init__(_reason(why))
        self.number = number


class Spool:
    """The store in one folder. Thread-safe; one process at a time.

    Args:
        folder: Created if it does not exist.
        max_bytes: Bound of the stored files; a single frame is always stored.
        redacts: Whether all frames that it gets are redacted, and those that it has have to be.

    Raises:
        ConfigError: The folder cannot be used, another process uses it, or its frames may not be redacted.
    """

    def __init__(self, folder: Path, max_bytes: int = 4 << 30, *, redacts: bool = False) -> None:
        self.refusal = ""
        """Why the last frame was not stored; empty if it was."""
        self.is_full = False
        """Whether that was for want of room, which an older frame could make."""
        self._refused = 0  # how often it became full
        self.damaged = 0
        """Number of frames that could not be read and were set aside."""
        self._folder = folder
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._bytes = 0
        self._sizes: dict[int, int] = {}
        self._numbers: list[int] = []  # the keys of `_sizes`, ascending
        self._settled: set[int] = set()  # frames with an outcome that could not be deleted yet
        self._last = 0
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._handle = lock(folder)
            try:
                self._open()
                self._mark(redacts=redacts)
            except BaseException:
                os.close(self._handle)
                raise
        except OSError as error:
            raise ConfigError(
                f"spool {folder} can't be used: {error.strerror or error}; give another folder, or free this one"
            ) from error
        self._left = self._last

    def _open(self) -> None:
        if not os.access(self._folder, os.W_OK | os.X_OK):
            raise OSError("no permission to write there")
        for path in self._folder.iterdir():  # unlike glob() it raises where it can't read
            number = int(path.stem) if path.stem.isdecimal() else 0  # other files are not the spool's
            if path.name == self._path(number, _UNFINISHED).name:
                path.unlink()  # of a process that was killed while it wrote
            elif path.name == self._path(number).name:
                self._last = max(self._last, number)
                if path.is_file():
                    self._add(number, path.stat().st_size)

    def _mark(self, *, redacts: bool) -> None:
        """Have it on the disk whether all frames are redacted, before there is a first one.

        Raises:
            OSError: There are frames already that are not.
        """
        mark = self._folder / _REDACTED
        if not redacts:
            mark.unlink(missing_ok=True)
        elif self._numbers and not mark.exists():
            raise OSError(f"{len(self._numbers)} frames in it were kept without --redact")
        else:
            mark.touch()

    def __len__(self) -> int:
        """Return the number of frames."""
        return len(self._numbers)

    def is_left(self, number: int) -> bool:
        """Return whether an earlier run left this frame."""
        return number <= self._left

    def put(self, frame: SpooledFrame) -> int | None:
        """Store a frame behind all others.

        Returns:
            Its number; None if it can't be stored now. `refusal` holds the reason, and `is_full` whether that is the
            bound, or a full disk.

        Raises:
            ConfigError: The spool was opened in another process.
        """
        self._check_process()
        with self._lock:
            size = sum(buffer_size(tensor.data) for tensor in frame.tensors)
            if self._numbers and self._bytes + size > self._max_bytes:
                self._refuse(f"its bound of {self._max_bytes / 1e6:.0f} MB is reached", is_full=True)
                return None
            try:
                self._write(replace(frame, number=self._last + 1), b"".join(tensor.data for tensor in frame.tensors))
            except (OSError, MemoryError) as error:
                self._refuse(_reason(error), is_full=isinstance(error, OSError) and error.errno in _NO_ROOM)
                return None
            self._last += 1
            self.refusal = ""
            return self._last

    def after(self, number: int) -> SpooledFrame | None:
        """Return the oldest undamaged frame with a higher number, which stays; set damaged ones before it aside.

        Raises:
            SpoolBusy: That frame can't be read now.
            ConfigError: The spool was opened in another process.
        """
        self._check_process()
        with self._lock:
            while (index := bisect_right(self._numbers, number)) < len(self._numbers):
                number = self._numbers[index]
                try:
                    return _decode(number, self._path(number).read_bytes())
                except (OSError, MemoryError) as error:
                    if not isinstance(error, OSError) or error.errno not in _NO_FILE:
                        raise SpoolBusy(number, error) from error
                    self._set_aside(number, error)
                except (MqinferError, MsgspecError, ValueError, KeyError, TypeError, RecursionError) as error:
                    self._set_aside(number, error)
        return None

    def remove(self, number: int) -> None:
        """Delete a frame that has its outcome; if that fails, try again with the next one.

        Raises:
            ConfigError: The spool was opened in another process.
        """
        self._check_process()
        with self._lock:
            self._settled.add(number)
            self._sweep()

    def close(self) -> None:
        """Unlock the folder; frames stay.

        Raises:
            ConfigError: The spool was opened in another process.
        """
        self._check_process()
        with self._lock:
            if self._handle < 0:
                return
            self._sweep()
            if self._settled:
                log.warning(_UNDELETED, self._folder, len(self._settled))
            if waiting := len(self._numbers) - len(self._settled):
                log.warning("spool %s: %d frames stay there for the next run", self._folder, waiting)
            os.close(self._handle)
            self._handle = -1

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise ConfigError(
                f"spool {self._folder} was opened in process {self._process} and can't be used in its child "
                f"{os.getpid()}; open a spool with a folder of its own there"
            )

    def _path(self, number: int, suffix: str = _FRAME) -> Path:
        return self._folder / f"{number:012d}{suffix}"

    def _add(self, number: int, size: int) -> None:
        self._drop(number)
        insort(self._numbers, number)
        self._sizes[number] = size
        self._bytes += size

    def _drop(self, number: int) -> None:
        if number in self._sizes:
            self._bytes -= self._sizes.pop(number)
            del self._numbers[bisect_right(self._numbers, number) - 1]

    def _write(self, frame: SpooledFrame, data: bytes) -> None:
        """Write a file under another name first, so that its own name stands for a complete one."""
        number = frame.number
        fields = {**to_builtins(replace(frame, tensors=())), "tensors": [*map(_describe, frame.tensors)]}
        head = json.dumps(fields).encode() + b"\n"
        first = " ".join(checksum((head, data))).encode() + b"\n"
        unfinished = self._path(number, _UNFINISHED)
        try:
            with unfinished.open("wb") as file:
                file.writelines((first, head, data))
                file.flush()
                os.fsync(file.fileno())
            unfinished.replace(self._path(number))
        except (OSError, MemoryError):
            with suppress(OSError):
                unfinished.unlink()
            raise
        self._add(number, len(first) + len(head) + len(data))
        os.fsync(self._handle)  # the name, too, survives a power cut

    def _refuse(self, why: str, *, is_full: bool) -> None:
        self.is_full = is_full
        self._refused += not self.refusal
        if not self.refusal and is_logged(self._refused):
            then = "the reader waits, or with latest the oldest one makes room" if is_full else "it is tried again"
            log.warning("spool %s stores no more frames: %s; %s", self._folder, why, then)
        self.refusal = why

    def _set_aside(self, number: int, error: Exception) -> None:
        """Keep a frame that can't be read for the operator, and forget it; the caller holds the lock."""
        self.damaged += 1
        self._drop(number)
        aside = self._path(number, _DAMAGED)
        log.error("spool %s: frame %d is damaged and set aside as %s: %s", self._folder, number, aside.name, error)
        with suppress(OSError):
            self._path(number).replace(aside)
            for old in sorted(self._folder.glob("[0-9]" * 12 + _DAMAGED))[:-_DAMAGED_KEPT]:
                old.unlink()

    def _sweep(self) -> None:
        """Delete the frames that have their outcome; the caller holds the lock."""
        for number in sorted(self._settled):
            try:
                self._path(number).unlink(missing_ok=True)
            except OSError as error:
                log.debug("spool %s: frame %d can't be deleted: %s", self._folder, number, error)
                return
            self._settled.discard(number)
            self._drop(number)


def _reason(error: OSError | MemoryError) -> str:
    return (isinstance(error, OSError) and error.strerror) or str(error) or "no memory is free"


def _decode(number: int, content: bytes) -> SpooledFrame:
    """Read a frame; raise for every file that is not exactly what was written."""
    first, _, body = content.partition(b"\n")
    if first != " ".join(checksum((body,))).encode():
        raise SourceError("its bytes differ from their checksum")
    head, _, data = body.partition(b"\n")
    fields = json.loads(head)
    found = convert(fields, _Description)
    described = fields.get("tensors") or [{**fields, "bytes": len(data)}]  # an older version stored one tensor
    tensors, begin = [], 0
    for each in described:
        tensors.append(_tensor(each, data[begin : begin + each["bytes"]]))
        begin += each["bytes"]
    if found.number != number:
        raise SourceError(f"it was stored as frame {found.number}")
    return SpooledFrame(**{each.name: getattr(found, each.name) for each in fields_of(found)}, tensors=tuple(tensors))


def _describe(tensor: EncodedTensor) -> dict[str, Any]:
    fields = asdict(tensor)
    size = buffer_size(fields.pop("data"))
    return fields | {"parameters": dict(tensor.parameters), "bytes": size}


def _tensor(described: Mapping[str, Any], data: bytes) -> EncodedTensor:
    return EncodedTensor(
        described["name"],
        Datatype(described["datatype"]),
        tuple(described["shape"]),
        described["encoding"],
        data,
        described["parameters"],
    )


convert({"capture": {}, "bytes_raw": 0, "log_time_ns": 0}, _Description)  # types are read at import, by one thread
