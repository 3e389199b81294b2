"""The requests that a worker's threads work on, in memory that its server reads after the process has ended."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

_ID_BYTES = 16
"""Correlation Data of mqinfer's clients: the id of the request. Others are not named."""
_MOST = 254
"""Requests of a batch, at most, that are named."""
_UNNAMED = 255
_MOST_REPORTED = 512
"""Above that nobody is named: a state must stay small."""


class RunningRequests:
    """One slot a thread: how many requests it works on, and their ids. No lock: a slot has one writer."""

    SLOTS = 32
    SLOT_BYTES = 1 + _MOST * _ID_BYTES
    SIZE = SLOTS * SLOT_BYTES

    def __init__(self, memory: ctypes.Array[ctypes.c_ubyte] | bytearray | None = None) -> None:
        """Use a block of `SIZE` bytes, all 0 at first; private memory where none is given."""
        self._bytes = memoryview(bytearray(self.SIZE) if memory is None else memory).cast("B")

    def write(self, slot: int, ids: Sequence[bytes | None]) -> None:
        """Record what a thread begins.

        Args:
            slot: The thread's.
            ids: Correlation Data of its requests; empty where it has finished them.
        """
        at = slot * self.SLOT_BYTES
        self._bytes[at] = 0  # the ids count once their number is written
        if not ids:
            return
        joined = (ids[0] or b"") if len(ids) == 1 else b"".join([each or b"" for each in ids])
        if len(joined) == len(ids) * _ID_BYTES <= _MOST * _ID_BYTES:
            self._bytes[at + 1 : at + 1 + len(joined)] = joined
            self._bytes[at] = len(ids)
        else:
            self._bytes[at] = _UNNAMED

    def read(self) -> tuple[str, ...]:
        """Return the ids of all requests that are worked on; nothing where one of them can't be named."""
        found: dict[str, None] = {}
        for at in range(0, self.SIZE, self.SLOT_BYTES):
            count = self._bytes[at]
            if count == _UNNAMED:
                return ()
            ids = self._bytes[at + 1 : at + 1 + count * _ID_BYTES].hex()
            found |= dict.fromkeys(ids[start : start + 2 * _ID_BYTES] for start in range(0, len(ids), 2 * _ID_BYTES))
        return tuple(found) if len(found) <= _MOST_REPORTED else ()
