"""Store frames on the disk until they can be sent: encoded, with their stamps, oldest first, within a bound.

The store is an SQLite file, so frames survive a crash of the edge; the next run sends them first.

Frames with an outcome must leave the store even if the disk is full, or the next run would send them again. Deleting
needs space too: with a write-ahead log every deletion fails on a full disk (measured). This store therefore uses a
rollback journal whose file stays (`journal_mode = PERSIST`), and extends it beyond the need of a deletion while there
is space. Bytes after the last record of a journal are allowed: https://www.sqlite.org/fileformat.html, section 3.
"""

from __future__ import annotations

import json
import logging
import sqlite3
import threading
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from mqinfer.protocol.datatypes import Datatype
from mqinfer.protocol.errors import ConfigError
from mqinfer.protocol.types import Capture, EncodedTensor

__all__ = ["Spool", "SpooledFrame"]

log = logging.getLogger("mqinfer.edge_agent")
_TABLE = (
    "CREATE TABLE IF NOT EXISTS frames (id INTEGER PRIMARY KEY AUTOINCREMENT, head TEXT NOT NULL, data BLOB NOT NULL)"
)
_UNDELETED = "spool %s: %d frames have their outcome but can't be deleted; the next run sends them again"
_JOURNAL_BYTES = 1 << 18
"""Size of the journal file; the deletion of a frame writes a few pages of 4 KiB there."""


@dataclass(frozen=True, slots=True, eq=False)
class SpooledFrame:
    """A frame from the store.

    Attributes:
        number: In the store, ascending.
        tensor: As it will be sent.
        capture: Where and when it was taken.
        bytes_raw: Size of its pixels before encoding.
    """

    number: int
    tensor: EncodedTensor
    capture: Capture
    bytes_raw: int


class Spool:
    """The store in one folder. Thread-safe; one process at a time."""

    def __init__(self, folder: Path, max_bytes: int = 4 << 30) -> None:
        """Open or create the store.

        Args:
            folder: Created if it does not exist.
            max_bytes: Bound of the encoded frames; a single frame is always stored.

        Raises:
            ConfigError: The folder cannot be used, or another process uses it.
        """
        self._path = folder / "spool.sqlite"
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._settled: set[int] = set()  # frames with an outcome that could not be deleted yet
        self.refusal = ""
        """Why the last frame was not stored; empty if it was."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._database = sqlite3.connect(self._path, check_same_thread=False, timeout=0.2)
            self._database.execute("PRAGMA locking_mode = EXCLUSIVE")
            self._database.execute("PRAGMA journal_mode = PERSIST")
            self._database.execute("BEGIN EXCLUSIVE")  # held until the end, so that a second process fails at once
            with self._database:
                self._database.execute(_TABLE)
            self._bytes, self._count = self._measure()
        except (OSError, sqlite3.Error) as error:
            raise ConfigError(
                f"spool {folder} can't be used: {error}; give another folder, or free this one"
            ) from error
        self._reserve()

    def __len__(self) -> int:
        """Return the number of frames."""
        return self._count

    def put(self, tensor: EncodedTensor, capture: Capture, bytes_raw: int) -> int | None:
        """Store a frame behind all others.

        Returns:
            Its number; None if it does not fit. `refusal` holds the reason: the bound, or a full disk.
        """
        data = bytes(tensor.data)
        described = {"name": tensor.name, "datatype": tensor.datatype, "shape": tensor.shape}
        head = {
            **described,
            "encoding": tensor.encoding,
            "parameters": dict(tensor.parameters),
            "capture": asdict(capture),
            "bytes_raw": bytes_raw,
        }
        with self._lock:
            if self._count and self._bytes + len(data) > self._max_bytes:
                self._refuse(f"its bound of {self._max_bytes / 1e6:.0f} MB is reached")
                return None
            try:
                with self._database as database:
                    row = database.execute("INSERT INTO frames (head, data) VALUES (?, ?)", (json.dumps(head), data))
            except sqlite3.Error as error:
                self._refuse(str(error))
                return None
            self.refusal = ""
            self._bytes += len(data)
            self._count += 1
            return row.lastrowid

    def _refuse(self, why: str) -> None:
        if not self.refusal:
            log.warning("spool %s stores no more frames: %s; the reader waits", self._path, why)
        self.refusal = why

    def after(self, number: int) -> SpooledFrame | None:
        """Return the oldest frame with a higher number; it stays in the store."""
        with self._lock, closing(self._database.cursor()) as cursor:
            found = cursor.execute(
                "SELECT id, head, data FROM frames WHERE id > ? ORDER BY id LIMIT 1", (number,)
            ).fetchone()
        return None if found is None else _read(*found)

    def remove(self, number: int) -> None:
        """Delete a frame that has its outcome; if that fails, try again with the next one."""
        with self._lock:
            self._settled.add(number)
            self._sweep()

    def close(self) -> None:
        """Close the file; frames stay, and an empty file is shrunk."""
        with self._lock:
            self._sweep()
            if self._settled:
                log.warning(_UNDELETED, self._path, len(self._settled))
            if waiting := self._count - len(self._settled):
                log.warning("spool %s: %d frames stay there for the next run", self._path, waiting)
            if not self._count:
                with suppress(sqlite3.Error):
                    self._database.execute("VACUUM")
            self._database.close()

    def _sweep(self) -> None:
        """Delete the frames that have their outcome; the caller holds the lock."""
        for number in sorted(self._settled):
            try:
                with self._database as database:
                    size = database.execute("SELECT length(data) FROM frames WHERE id = ?", (number,)).fetchone()
                    database.execute("DELETE FROM frames WHERE id = ?", (number,))
            except sqlite3.Error as error:
                log.debug("spool %s: frame %d can't be deleted: %s", self._path, number, error)
                return
            self._settled.discard(number)
            if size is not None:
                self._bytes -= size[0]
                self._count -= 1

    def _reserve(self) -> None:
        """Extend the journal file to the space that a deletion needs; SQLite ignores what follows its records."""
        try:
            with self._path.with_name(self._path.name + "-journal").open("ab") as journal:
                journal.write(bytes(max(0, _JOURNAL_BYTES - journal.tell())))
        except OSError as error:
            log.warning(
                "spool %s: no space for its journal (%s); the next run may send frames again", self._path, error
            )

    def _measure(self) -> tuple[int, int]:
        size, count = self._database.execute("SELECT coalesce(sum(length(data)), 0), count(*) FROM frames").fetchone()
        return int(size), int(count)


def _read(number: int, head: str, data: bytes) -> SpooledFrame:
    fields = json.loads(head)
    tensor = EncodedTensor(
        fields["name"],
        Datatype(fields["datatype"]),
        tuple(fields["shape"]),
        fields["encoding"],
        data,
        fields["parameters"],
    )
    return SpooledFrame(number, tensor, Capture(**fields["capture"]), fields["bytes_raw"])
