"""Ports for the brokers of tests."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from itertools import count

_FIRST, _PORTS, _RANGES = 12_000, 400, 50
"""Ranges of ports; the kernel's own choice begins at 32,768."""
_turns = count()
_held: dict[int, socket.socket] = {}


def _first_port() -> int:
    """Return the first port of a range that is this process's own: it holds a socket there as long as it lives."""
    if os.getpid() not in _held:
        for turn in range(_RANGES):
            holder = socket.socket()
            with suppress(OSError):
                holder.bind(("127.0.0.1", _FIRST + (os.getpid() + turn) % _RANGES * _PORTS))
                _held[os.getpid()] = holder
                break
            holder.close()
        else:
            raise AssertionError(f"{_RANGES} other processes choose ports")
    first: int = _held[os.getpid()].getsockname()[1]
    return first + 1


def free_port(bind: str = "127.0.0.1") -> int:
    """Return a port that is free, and that nobody else takes while its broker is down or not yet started.

    The kernel would give a port of its own choice to another process meanwhile.
    """
    first = _first_port()
    for turn in _turns:
        port = first + turn % (_PORTS - 1)
        with socket.socket(socket.AF_INET6 if ":" in bind else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as Mosquitto does
            try:
                probe.bind((bind, port))
            except OSError:
                continue
        return port
    raise AssertionError("turns never end")
