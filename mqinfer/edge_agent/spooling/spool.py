r"""Store frames on the disk until they can be sent: encoded, with their stamps, oldest first, within a bound.

Each frame is a file of its own, so damage to one never reaches another, frames survive a crash of the edge, and the
next run sends them first. A file is complete once it has its name, and a checksum covers all of it::

    xxh3 0123456789abcdef\n      over everything below
    {"number": 17, ...}\n        what the tensors are, where and when the frame was taken
    the encoded bytes of each

A frame that differs from its checksum, or can't be read, is set aside under the suffix `.damaged` and never sent.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import threading
from bisect import bisect_right, insort
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from msgspec import structs

from mqinfer.broker.packets import buffer_size
from mqinfer.images.camera import CameraInfo
from mqinfer.images.placement import Placement
from mqinfer.protocol.checksum import checksum
from mqinfer.protocol.datatypes import Datatype
from mqinfer.protocol.errors import ConfigError, MqinferError, SourceError
from mqinfer.protocol.types import Capture, EncodedTensor

__all__ = ["Spool", "SpooledFrame"]

log = logging.getLogger("mqinfer.edge_agent")
_FRAME, _UNFINISHED, _DAMAGED = ".frame", ".new", ".damaged"
_DAMAGED_KEPT = 16
"""Damaged files that are kept for the operator; the oldest are deleted."""
_UNDELETED = "spool %s: %d frames have their outcome but can't be deleted; the next run sends them again"


@dataclass(frozen=True, slots=True, eq=False)
class SpooledFrame:
    """A frame from the store.

    Attributes:
        number: In the store, ascending.
        tensors: As they will be sent; without a name where they are pictures as recorded, since no model was known yet.
        capture: Where and when it was taken.
        bytes_raw: Size of its pixels before encoding.
        log_time_ns: When it was recorded.
        joined: Where and when the frames were taken that go with it, one for each further tensor.
        cameras: Calibrations of the frame and of those that go with it; empty where an older version stored it.
        placement: Where the frame lies in what the model will see; None where an older version stored it, or where it
            is to be prepared.
    """

    number: int
    tensors: tuple[EncodedTensor, ...]
    capture: Capture
    bytes_raw: int
    log_time_ns: int
    joined: tuple[Capture, ...] = ()
    cameras: tuple[CameraInfo | None, ...] = ()
    placement: Placement | None = None

    @property
    def is_recorded(self) -> bool:
        """Whether it is to be prepared for its model before it is sent."""
        return not self.tensors[0].name


class Spool:
    """The store in one folder. Thread-safe; one process at a time."""

    def __init__(self, folder: Path, max_bytes: int = 4 << 30) -> None:
        """Open or create the store.

        Args:
            folder: Created if it does not exist.
            max_bytes: Bound of the stored files; a single frame is always stored.

        Raises:
            ConfigError: The folder cannot be used, or another process uses it.
        """
        self.refusal = ""
        """Why the last frame was not stored; empty if it was."""
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
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            try:
                self._open()
            except BaseException:
                os.close(self._handle)
                raise
        except OSError as error:
            raise ConfigError(
                f"spool {folder} can't be used: {error.strerror or error}; give another folder, or free this one"
            ) from error
        self._last = self._left = max(self._numbers, default=0)

    def _open(self) -> None:
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)  # held until the end
        except BlockingIOError:
            raise OSError("locked by another process") from None
        if not os.access(self._folder, os.W_OK | os.X_OK):
            raise OSError("no permission to write there")
        for path in self._folder.glob("*" + _UNFINISHED):
            path.unlink()  # of a process that was killed while it wrote
        for path in self._folder.glob("*" + _FRAME):
            if path.stem.isdecimal():
                self._add(int(path.stem), path.stat().st_size)

    def __len__(self) -> int:
        """Return the number of frames."""
        return len(self._numbers)

    def is_left(self, number: int) -> bool:
        """Return whether an earlier run left this frame."""
        return number <= self._left

    def put(  # noqa: PLR0913 - what is kept of a frame
        self,
        tensors: Sequence[EncodedTensor],
        capture: Capture,
        bytes_raw: int,
        log_time_ns: int | None = None,
        joined: Sequence[Capture] = (),
        *,
        cameras: Sequence[CameraInfo | None] = (),
        placement: Placement | None = None,
    ) -> int | None:
        """Store a frame behind all others.

        Args:
            tensors: As they will be sent, or without a name; the first is the frame's own.
            capture: Where and when it was taken.
            bytes_raw: Size of its pixels before encoding.
            log_time_ns: When it was recorded; None for its capture stamp.
            joined: Where and when the frames of the further tensors were taken.
            cameras: Calibrations of the frames.
            placement: Where the frame lies in what the model will see; None if that is not known yet.

        Returns:
            Its number; None if it does not fit. `refusal` holds the reason: the bound, or a full disk.

        Raises:
            ConfigError: The spool was opened in another process.
        """
        fields = {
            "tensors": [_describe(tensor) for tensor in tensors],
            "capture": structs.asdict(capture),
            "joined": [structs.asdict(each) for each in joined],
            "cameras": [each and asdict(each) for each in cameras],
            "placement": placement and asdict(placement),
            "bytes_raw": bytes_raw,
            "log_time_ns": (capture.capture_time_ns or 0) if log_time_ns is None else log_time_ns,
        }
        data = b"".join(tensor.data for tensor in tensors)
        self._check_process()
        with self._lock:
            if self._numbers and self._bytes + len(data) > self._max_bytes:
                self._refuse(f"its bound of {self._max_bytes / 1e6:.0f} MB is reached")
                return None
            try:
                self._write(self._last + 1, fields, data)
            except OSError as error:
                self._refuse(error.strerror or str(error))
                return None
            self._last += 1
            self.refusal = ""
            return self._last

    def after(self, number: int) -> SpooledFrame | None:
        """Return the oldest undamaged frame with a higher number, which stays; set damaged ones before it aside.

        Raises:
            ConfigError: The spool was opened in another process.
        """
        self._check_process()
        with self._lock:
            while (index := bisect_right(self._numbers, number)) < len(self._numbers):
                number = self._numbers[index]
                try:
                    return _decode(number, self._path(number).read_bytes())
                except (OSError, MemoryError, MqinferError, ValueError, KeyError, TypeError) as error:
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

    def _write(self, number: int, fields: Mapping[str, Any], data: bytes) -> None:
        """Write a file under another name first, so that its own name stands for a complete one."""
        head = json.dumps({**fields, "number": number}).encode() + b"\n"
        first = " ".join(checksum((head, data))).encode() + b"\n"
        unfinished = self._path(number, _UNFINISHED)
        try:
            with unfinished.open("wb") as file:
                file.writelines((first, head, data))
                file.flush()
                os.fsync(file.fileno())
            unfinished.replace(self._path(number))
        except OSError:
            with suppress(OSError):
                unfinished.unlink()
            raise
        self._add(number, len(first) + len(head) + len(data))
        os.fsync(self._handle)  # the name, too, survives a power cut

    def _refuse(self, why: str) -> None:
        if not self.refusal:
            log.warning(
                "spool %s stores no more frames: %s; the reader waits, or the oldest one is dropped", self._folder, why
            )
        self.refusal = why

    def _set_aside(self, number: int, error: Exception) -> None:
        """Keep a frame that can't be read for the operator, and forget it; the caller holds the lock."""
        self.damaged += 1
        self._drop(number)
        aside = self._path(number, _DAMAGED)
        log.error("spool %s: frame %d is damaged and set aside as %s: %s", self._folder, number, aside.name, error)
        with suppress(OSError):
            self._path(number).replace(aside)
            for old in sorted(self._folder.glob("*" + _DAMAGED))[:-_DAMAGED_KEPT]:
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


def _decode(number: int, content: bytes) -> SpooledFrame:
    """Read a frame; raise for every file that is not exactly what was written."""
    first, _, body = content.partition(b"\n")
    if first != " ".join(checksum((body,))).encode():
        raise SourceError("its bytes differ from their checksum")
    head, _, data = body.partition(b"\n")
    fields = json.loads(head)
    if fields["number"] != number:
        raise SourceError(f"it was stored as frame {fields['number']}")
    return _frame(number, fields, data)


def _frame(number: int, fields: Mapping[str, Any], data: bytes) -> SpooledFrame:
    described = fields.get("tensors") or [{**fields, "bytes": len(data)}]  # an older version stored one tensor
    tensors, begin = [], 0
    for each in described:
        tensors.append(_tensor(each, data[begin : begin + each["bytes"]]))
        begin += each["bytes"]
    joined = tuple(Capture(**each) for each in fields.get("joined", ()))
    capture = Capture(**fields["capture"])
    return SpooledFrame(
        number,
        tuple(tensors),
        capture,
        fields["bytes_raw"],
        fields["log_time_ns"],
        joined,
        tuple(map(_camera, fields.get("cameras", ()))),
        _placement(fields.get("placement")),
    )


def _camera(fields: Mapping[str, Any] | None) -> CameraInfo | None:
    return None if fields is None else CameraInfo(**{key: _as_tuple(value) for key, value in fields.items()})


def _placement(fields: Mapping[str, Any] | None) -> Placement | None:
    if fields is None:
        return None
    plain = {key: _as_tuple(value) for key, value in fields.items() if key != "camera"}
    return Placement(**plain, camera=_camera(fields["camera"]))


def _as_tuple(value: Any) -> Any:
    """Return what JSON made a list as the tuple that it was."""
    return tuple(value) if isinstance(value, list) else value


def _describe(tensor: EncodedTensor) -> dict[str, Any]:
    return {
        "name": tensor.name,
        "datatype": tensor.datatype,
        "shape": tensor.shape,
        "encoding": tensor.encoding,
        "parameters": dict(tensor.parameters),
        "bytes": buffer_size(tensor.data),
    }


def _tensor(described: Mapping[str, Any], data: bytes) -> EncodedTensor:
    return EncodedTensor(
        described["name"],
        Datatype(described["datatype"]),
        tuple(described["shape"]),
        described["encoding"],
        data,
        described["parameters"],
    )
