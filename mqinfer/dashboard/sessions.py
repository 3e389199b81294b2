"""Logins by key: who may try, and for how long a login lasts. No transport; used by one thread."""

from __future__ import annotations

import secrets
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from ipaddress import IPv6Address

from mqinfer.web.keys import KeyFile

_WATCH = "watch"
GRANTED: Mapping[str, frozenset[str]] = {
    _WATCH: frozenset({_WATCH}),
    "infer": frozenset(),
    "metadata": frozenset(),
    "admin": frozenset(),
}
"""What the rights of a key file allow: those of a gateway nothing here, so that both may have one file."""

_MOST_SESSIONS = 1024
"""Logins at a time; one more ends the oldest of the key that has most of them, so that no key ends another's."""
_MOST_ADDRESSES = 1024
"""Addresses whose failures are counted; one more forgets the one that failed least recently."""
_NETWORK = 64
"""Bits of an address of IPv6 that count: whoever has one has all that differ behind them."""


@dataclass(frozen=True, slots=True)
class _Session:
    key: bytes
    until: float


class Sessions:
    """The logins that hold: each until its time is over, or its key is removed from the file.

    Args:
        keys: Who may log in.
        lasts: How long a login holds, in seconds.
        clock: In seconds.
    """

    def __init__(self, keys: KeyFile, lasts: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._keys, self._lasts, self._clock = keys, lasts, clock
        self._sessions: OrderedDict[bytes, _Session] = OrderedDict()

    def log_in(self, key: str) -> str | None:
        """Return the token of a new login; None where the key is not one that may watch."""
        digest = KeyFile.digest(key)
        if not self._may_watch(digest):
            return None
        token = secrets.token_urlsafe(32)
        self._sessions[_name(token)] = _Session(digest, self._clock() + self._lasts)
        if len(self._sessions) > _MOST_SESSIONS:
            ((most, _),) = Counter(each.key for each in self._sessions.values()).most_common(1)
            del self._sessions[next(name for name, each in self._sessions.items() if each.key == most)]
        return token

    def is_valid(self, token: str) -> bool:
        """Return whether a token is that of a login that holds; it is looked up by its SHA-256."""
        name = _name(token)
        found = self._sessions.get(name)
        if found is None:
            return False
        if self._clock() < found.until and self._may_watch(found.key):
            return True
        del self._sessions[name]
        return False

    def _may_watch(self, digest: bytes) -> bool:
        found = self._keys.of_digest(digest)
        return found is not None and _WATCH in found.rights


class Attempts:
    """Bounds how often a wrong key may be tried.

    When many addresses fail, each has one attempt, but none is held up that has not failed itself: strangers could
    lock everybody out otherwise. A key is too long to be found by one attempt of each address.

    Args:
        most_of_one: Failures of an address within the window.
        most: Failures of all, from which on an address has one.
        window: In seconds.
        clock: In seconds.
    """

    def __init__(
        self,
        most_of_one: int = 5,
        most: int = 100,
        window: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most_of_one, self._most, self._window, self._clock = most_of_one, most, window, clock
        self._failures: OrderedDict[str, tuple[float, int]] = OrderedDict()
        self._all = (clock(), 0)

    def wait_s(self, address: str) -> float:
        """Return how long an address has to wait for its next attempt; 0 for not at all."""
        now = self._clock()
        since, count = self._failures.get(_network(address), (now, 0))
        is_crowded = self._all[1] >= self._most and now < self._all[0] + self._window
        return max(0.0, since + self._window - now) if count >= (1 if is_crowded else self._most_of_one) else 0.0

    def failed(self, address: str) -> None:
        """Count a wrong key."""
        network = _network(address)
        self._all = self._more(self._all)
        self._failures[network] = self._more(self._failures.get(network, (self._clock(), 0)))
        self._failures.move_to_end(network)
        if len(self._failures) > _MOST_ADDRESSES:
            self._failures.popitem(last=False)

    def _more(self, counted: tuple[float, int]) -> tuple[float, int]:
        now = self._clock()
        since, count = counted
        return (since, count + 1) if now < since + self._window else (now, 1)


def _network(address: str) -> str:
    """Return what an address counts as: all of an IPv4 address, the network of an IPv6 one."""
    try:
        found = IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    return str(found.ipv4_mapped or int(found) >> 128 - _NETWORK)


def _name(token: str) -> bytes:
    return sha256(token.encode(errors="replace")).digest()
