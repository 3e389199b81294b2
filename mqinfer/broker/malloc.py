"""Makes the C library keep the memory of freed payloads while there is work, and return it to the system after that."""

from __future__ import annotations

import contextlib
import ctypes
import os

KEEP_FREED = {"MALLOC_MMAP_THRESHOLD_": 32 << 20, "MALLOC_TRIM_THRESHOLD_": 128 << 20}
"""Settings of glibc, in bytes: blocks below the first come from the heap, whose free end is returned above the second.

By default the memory of each large payload is returned to the system and taken, page by page, again for the next one.
Frames of 1.8 MB to an echo and back: 12 to 17 % less CPU at the client and 18 % at the worker (272 page faults a
request in place of 432, and 90 in place of 250), the same resident memory; at the broker a third of the time.
"""

_PARAMETERS = {"MALLOC_MMAP_THRESHOLD_": -3, "MALLOC_TRIM_THRESHOLD_": -1}  # M_MMAP_THRESHOLD, M_TRIM_THRESHOLD


def keep_freed_memory() -> None:
    """Apply `KEEP_FREED` to this process, where the environment sets nothing else; does nothing without glibc."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another system or C library
        return
    for name, size in KEEP_FREED.items():
        if name not in os.environ:
            mallopt(_PARAMETERS[name], size)


def return_freed_memory() -> None:
    """Return to the system what has been freed, also between blocks in use; does nothing without glibc."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
