"""Read the spool as the first versions kept it: one SQLite file, without checksums."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

__all__ = ["OLD_NAME", "old_rows"]

OLD_NAME = "spool.sqlite"
_NOT_DAMAGE = (
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_READONLY,
)
"""Errors of the disk or of another process, after which the file may still be whole."""


def old_rows(path: Path) -> Iterator[tuple[int, str, bytes]]:
    """Yield number, JSON head and data of each frame; the head is empty for one that can't be read.

    Args:
        path: The file; its journal, if a process was killed, is applied first.

    Raises:
        OSError: Another process uses the file, or it can't be opened.
    """
    with closing(sqlite3.connect(path, timeout=0.2)) as database:
        try:
            numbers = [int(number) for (number,) in database.execute("SELECT id FROM frames ORDER BY id")]
        except (sqlite3.Error, TypeError, ValueError) as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF in _NOT_DAMAGE:  # the rest of the code is a detail
                raise OSError(f"{path.name} of an earlier version: {error}") from error
            yield 0, "", b""
            return
        for number in numbers:
            try:
                head, data = database.execute("SELECT head, data FROM frames WHERE id = ?", (number,)).fetchone()
                yield number, str(head), bytes(data)
            except (sqlite3.Error, TypeError, ValueError):
                yield number, "", b""
