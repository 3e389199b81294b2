"""What browsers may send where the relay has the login: one CONNECT, and what only watches."""

from __future__ import annotations

import secrets

from mqinfer.broker.packets import decode_variable_integer
from mqinfer.dashboard.connect_packet import CONNECT, with_login
from mqinfer.dashboard.relay import Refused
from mqinfer.protocol.errors import BadEnvelope

_MOST_PACKET = 1 << 16
"""Bytes of a packet: a browser that watches sends small ones."""
_MOST_HEAD = 5
"""Bytes of a fixed header."""
_PUBACK, _PUBREC, _PUBCOMP, _SUBSCRIBE, _UNSUBSCRIBE, _PINGREQ, _DISCONNECT = 4, 5, 7, 8, 10, 12, 14
_WATCHING = frozenset({_PUBACK, _PUBREC, _PUBCOMP, _SUBSCRIBE, _UNSUBSCRIBE, _PINGREQ, _DISCONNECT})


class WallGate:
    """Puts the login into a browser's CONNECT, and lets no packet through that publishes, whatever the broker allows.

    Args:
        username: Of the relay's login; None where its certificate is the login.
        password: Of the login.
    """

    def __init__(self, username: str | None, password: str | None) -> None:
        self._login = username, password
        self._connect = bytearray()
        self._is_connected = False
        self._head = b""  # of a packet whose length has not come yet
        self._left = 0  # bytes of the current packet that have not come yet

    def feed(self, data: bytes) -> bytes:
        """Return what goes on: nothing before the CONNECT has come as a whole.

        Raises:
            Refused: A packet is malformed, too large, or one that watching does not need.
        """
        if self._is_connected:
            self._follow(data)
            return data
        self._connect += data
        size = _packet_size(bytes(self._connect[:_MOST_HEAD]))
        if self._connect[:1] and self._connect[0] != CONNECT:
            raise Refused("no_connect")
        if size is None or len(self._connect) < sum(size):
            return b""
        head, length = size
        body, rest = bytes(self._connect[head : head + length]), bytes(self._connect[head + length :])
        self._is_connected, self._connect = True, bytearray()
        self._follow(rest)
        try:
            return with_login(body, f"dashboard-{secrets.token_hex(8)}", *self._login) + rest
        except BadEnvelope as error:
            raise Refused("bad_connect") from error

    def _follow(self, data: bytes) -> None:
        """Check the type of each packet that begins in these bytes."""
        data, at = self._head + data, self._left
        while at < len(data):
            if data[at] >> 4 not in _WATCHING:
                raise Refused("read_only")
            if (size := _packet_size(data[at : at + _MOST_HEAD])) is None:
                break
            at += sum(size)
        self._head, self._left = data[at:], max(0, at - len(data))


def _packet_size(start: bytes) -> tuple[int, int] | None:
    """Return the bytes of a packet's fixed header and of the rest; None where its length has not come yet.

    Raises:
        Refused: The length is malformed, or more than a browser needs.
    """
    try:
        length, head = decode_variable_integer(start, 1)
    except IndexError:
        return None
    except BadEnvelope:
        raise Refused("bad_packet") from None
    if length > _MOST_PACKET:
        raise Refused("large_packet")
    return head, length
