"""A process in bounded memory and with few descriptors: what it holds, and whether it and its own processes live."""

from __future__ import annotations

import asyncio
import resource
import socket
from contextlib import closing, suppress
from pathlib import Path

from tests.patience import wait_until

__all__ = ["DESCRIPTORS", "LEFT", "MEMORY", "MIB", "Confined", "attack", "confine"]

MIB = 1 << 20
MEMORY, DESCRIPTORS = 2048 * MIB, 60
LEFT = 256 * MIB
"""What a process may keep, some seconds after it was attacked, of what it has taken meanwhile."""


def confine(process: int, kind: int = resource.RLIMIT_DATA, memory: int = MEMORY) -> None:
    """Bound the memory and descriptors of a process, and of those that it starts later.

    Args:
        process: Its number.
        kind: How memory counts: what it may write to, or its whole address space.
        memory: In bytes.
    """
    resource.prlimit(process, kind, (memory, memory))
    resource.prlimit(process, resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))


class Confined:
    """A process within its bounds, with those below it, as of now."""

    def __init__(self, process: int, kind: int = resource.RLIMIT_DATA, memory: int = MEMORY) -> None:
        """Take note of them; arguments as of `confine`."""
        self._process = process
        self._before = self._resident()
        for each in self._before:
            assert resource.prlimit(each, kind)[0] == memory

    def check(self, attack: str) -> None:
        """Assert that none has ended."""
        assert self._resident().keys() == self._before.keys(), f"a process ended: {attack}"

    def wait_for_memory(self, least: int = LEFT) -> None:
        """Wait until each has returned what it took, but for `least` bytes."""

        def left() -> int:
            return max(bytes_now - self._before[process] for process, bytes_now in self._resident().items())

        wait_until(lambda: left() <= least)

    def _resident(self) -> dict[int, int]:
        """Return the resident bytes of each."""
        found, family = {}, {self._process}
        stats = sorted(Path("/proc").glob("[0-9]*/stat"), key=lambda path: int(path.parent.name))
        for path in stats:
            try:
                fields = path.read_text().rpartition(")")[2].split()
            except OSError:  # it has ended
                continue
            process = int(path.parent.name)
            if process in family or int(fields[1]) in family:
                family.add(process)
                found[process] = int(fields[21]) * resource.getpagesize()
        return {process: size for process, size in found.items() if size}


async def attack(port: int, octets: bytes, *, reads: bool) -> None:
    """Send octets on one connection, and read an answer, or never do; ends when its task is cancelled or it is cut."""
    loop = asyncio.get_running_loop()
    with closing(socket.socket()) as connection, suppress(OSError):
        connection.setblocking(False)
        await loop.sock_connect(connection, ("127.0.0.1", port))
        await loop.sock_sendall(connection, octets)
        if reads:
            await loop.sock_recv(connection, 1)
        else:
            await asyncio.Event().wait()
