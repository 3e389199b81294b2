"""Ports for the brokers of tests."""

from __future__ import annotations

import os
import socket
from itertools import count

_FIRST, _PORTS, _RANGES = 12_000, 400, 50
"""A process has the range of ports that its number chooses; the kernel's own choice begins at 32,768."""
_turns = count()


def free_port(bind: str = "127.0.0.1") -> int:
    """Return a port that is free, and that nobody else takes while its broker is down or not yet started.

    The kernel would give a port of its own choice to another process meanwhile.
    """
    first = _FIRST + os.getpid() % _RANGES * _PORTS
    for turn in _turns:
        port = first + turn % _PORTS
        with socket.socket(socket.AF_INET6 if ":" in bind else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as Mosquitto does
            try:
                probe.bind((bind, port))
            except OSError:
                continue
        return port
    raise AssertionError("turns never end")
