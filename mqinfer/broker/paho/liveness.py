"""Whether a connection is dead: the broker owes an answer, and nothing moves any more.

Packets may vanish without any error: after a change of address, behind a NAT that forgot the connection, in a tunnel.
The kernel would go on trying for a quarter of an hour. A link that is merely slow is told apart by the kernel's counts:
a message of 64 MiB may take minutes, but every second some of its bytes are received, or are acknowledged by the other
side's kernel. (TCP_USER_TIMEOUT would not do: it ends only what is not acknowledged on the level of TCP, and it takes a
broker that stops reading for a dead one.)
"""

from __future__ import annotations

import fcntl
import socket
import struct
import termios
from typing import NamedTuple

KEEPALIVE_S = 10
"""Longest silence before a PINGREQ, in seconds: who only listens finds its connection dead after that and `_LOOKS`, and
the broker publishes a will after 1.5 times this. An idle connection costs 27 packets a minute, 1.4 kB with the headers
of TCP and IP (measured), 0.2 % of a link of 100 kbit/s. A shorter one would cost more, and find no earlier what
whoever sends finds within `_LOOKS`."""
_LOOKS = 5  # looks without a sign of life, a second apart, after which a connection is dead
# A proxy or a modem on the way may acknowledge what it then needs time to pass on: assume 1 Mbit/s.
_SLOWEST = 125_000  # bytes a second
_MOST_LOOKS = 60
_INFO = struct.Struct("QQ")  # of tcp_info in linux/tcp.h: tcpi_bytes_acked, tcpi_bytes_received
_INFO_AT = 120


class Counts(NamedTuple):
    """Bytes of a connection so far, as the kernel counts them.

    Attributes:
        received: What came.
        acked: What was sent, and the other side's kernel has.
        waiting: What is to be sent, or is on its way.
    """

    received: int
    acked: int
    waiting: int


def count_bytes(descriptor: int, buffered: int) -> Counts:
    """Return the counts of a TCP connection.

    Args:
        descriptor: Of its socket.
        buffered: Bytes that the socket has not accepted yet.
    """
    with socket.socket(fileno=descriptor) as sock:
        try:
            info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_AT + _INFO.size)
        finally:
            sock.detach()
    acked, received = _INFO.unpack_from(info.ljust(_INFO_AT + _INFO.size, b"\0"), _INFO_AT)  # 0 before Linux 4.2
    (queued,) = struct.unpack("i", fcntl.ioctl(descriptor, termios.TIOCOUTQ, bytes(4)))
    return Counts(received, acked, queued + buffered)


class Liveness:
    """Judges one connection from a look about once a second: pure, without a clock.

    Looks are counted, not seconds: a process that was stopped for a minute has not listened for a minute.
    """

    def __init__(self) -> None:
        self._heard = (-1, 0.0)
        self._acked = 0  # when something was received last
        self._end: int | None = None  # of what the broker owes an answer to, as a count of bytes sent
        self._passed = 0  # how much of that the other side has
        self._looks = 0

    def look(self, counts: Counts, *, heard_at: float, is_owed: bool) -> bool:
        """Return whether the connection is dead.

        Args:
            counts: Of its bytes.
            heard_at: When some were read last.
            is_owed: Whether something is sent, or about to be, that the broker has to answer.
        """
        if self._heard != (counts.received, heard_at) or not is_owed:
            self._heard, self._acked = (counts.received, heard_at), counts.acked
            self._end = None
            self._looks = 0
        if self._end is None and is_owed:  # what is sent from now on proves nothing: whoever took it may be no broker
            self._end, self._passed = counts.acked + counts.waiting, counts.acked
            return False
        return is_owed and self._has_waited_enough(counts, self._end or 0)

    def _has_waited_enough(self, counts: Counts, end: int) -> bool:
        passed = min(counts.acked, end)
        self._looks = self._looks + 1 if passed == self._passed else 0
        self._passed = passed
        looks = _LOOKS
        if passed == end:
            looks = min(looks + (end - self._acked) // _SLOWEST, _MOST_LOOKS)
        return self._looks >= looks
