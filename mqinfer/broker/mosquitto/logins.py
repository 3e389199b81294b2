"""Who is connected, from Mosquitto's log: which client ids belong to which login, and which of them are too many.

A client chooses its id, so whatever the log shows of it may be meant to look like something else: a line is believed
only where Mosquitto's own words stand before and behind the id, and never when it may have been cut off.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from mqinfer.logs import is_logged

_log = logging.getLogger("mqinfer.broker")

_CUT_AT = 999  # Mosquitto logs no more bytes of a line
_CAME = re.compile(
    r"(?:[0-9T:+-]+: )?New (?:client|bridge) connected from \S+ as (?P<id>.*)"
    r" \(p[0-9]+, c[01], k[0-9]+(?:, u'(?P<user>[^']*)')?\)\."
)
_CAME_AT_ALL = re.compile(r"(?:[0-9T:+-]+: )?New (?:client|bridge) connected from (?P<address>\S+) as ")
_LEFT = re.compile(
    r"(?:[0-9T:+-]+: )?(?:Client (?P<id>.*) (?:disconnected(?:| due to [a-zA-Z ]+|, not authorised|: [a-zA-Z ()]+)"
    r"|closed its connection|has exceeded timeout, disconnecting|been disconnected by administrative action)\."
    r"|Bad socket read/write on client (?P<broken>.*): [a-zA-Z ()]+\.?)"
)
_NEW = re.compile(r"(?:[0-9T:+-]+: )?New connection from (?P<address>\S+):[0-9]+ on port [0-9]+\.")
_REFUSED = re.compile(
    r"(?:[0-9T:+-]+: )?(?:Client <unknown> disconnected, not authorised\."
    r"|OpenSSL Error\[0\]: error:[0-9A-F]+:.*:(?P<tls>[a-zA-Z ]*certificate[a-zA-Z ]*))"
)
_MOST_GONE = 1000


@dataclass(frozen=True, slots=True)
class Came:
    """A client has connected.

    Attributes:
        client_id: Chosen by the client.
        user: Its login, or None without one.
    """

    client_id: str
    user: str | None


@dataclass(frozen=True, slots=True)
class Left:
    """A client's connection has ended; its session may remain."""

    client_id: str


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A client has connected whose id is too long for the log, so its login is unknown."""

    address: str


def read_line(line: str) -> Came | Left | Unreadable | None:
    """Return what a line of Mosquitto's log reports, or None for anything else."""
    line = line.rstrip("\n")
    if len(line.encode(errors="surrogateescape")) >= _CUT_AT:
        cut = _CAME_AT_ALL.match(line)
        return Unreadable(cut["address"]) if cut else None
    if came := _CAME.fullmatch(line):
        return Came(came["id"], came["user"])
    if left := _LEFT.fullmatch(line):
        return Left(left["id"] if left["broken"] is None else left["broken"])
    return None


class Refusals:
    """Reports the logins that Mosquitto has refused: the 1st, 2nd, 4th, 8th, … for each reason."""

    def __init__(self) -> None:
        self._address = "an unknown address"
        self._counts: Counter[str] = Counter()

    def observe(self, line: str) -> None:
        """Take notice of a line of Mosquitto's log, which doesn't tell where a refused client came from or its name."""
        if new := _NEW.match(line):
            self._address = new["address"]
        elif found := _REFUSED.fullmatch(line.rstrip("\n")):
            reason = found["tls"] or "unknown name or wrong password"
            self._counts[reason] += 1
            if is_logged(number := self._counts[reason]):
                _log.warning(
                    "refused a login (%s: %d); the last to connect came from %s", reason, number, self._address
                )


class Logins:
    """The client ids of each login, those that have gone first, each group in the order of its last event.

    An id that has gone may have left a session behind, so it counts until it is looked at or forgotten.
    """

    def __init__(self) -> None:
        self._here: dict[str, dict[str, None]] = {}
        self._gone: dict[str, dict[str, None]] = {}
        self._owner: dict[str, str] = {}

    def came(self, client_id: str, user: str) -> None:
        """Record that a login has connected under an id, which ends whatever had it before."""
        self.forget(client_id)
        self._owner[client_id] = user
        self._here.setdefault(user, {})[client_id] = None

    def left(self, client_id: str) -> None:
        """Record that the connection of an id has ended."""
        user = self._owner.get(client_id)
        if user is None or client_id not in self._here.get(user, {}):
            return
        del self._here[user][client_id]
        gone = self._gone.setdefault(user, {})
        gone[client_id] = None
        if len(gone) > _MOST_GONE:
            self.forget(next(iter(gone)))

    def forget(self, client_id: str) -> None:
        """Record that neither a connection nor a session has this id."""
        user = self._owner.pop(client_id, None)
        if user is None:
            return
        for ids in (self._here, self._gone):
            held = ids.get(user, {})
            held.pop(client_id, None)
            if not held:
                ids.pop(user, None)

    def surplus(self, limit: Callable[[str], int]) -> Iterator[tuple[str, str]]:
        """List the login and id of all that is above a login's limit: first what has gone, then the latest to come.

        Args:
            limit: How many ids a login may have.
        """
        for user in {*self._here, *self._gone}:
            gone, here = list(self._gone.get(user, {})), list(self._here.get(user, {}))
            surplus = max(0, len(gone) + len(here) - limit(user))
            yield from ((user, each) for each in [*gone, *reversed(here)][:surplus])

    def is_here(self, client_id: str) -> bool:
        """Return whether an id is connected."""
        return client_id in self._here.get(self._owner.get(client_id, ""), {})

    def ids(self, user: str) -> list[str]:
        """List the ids of a login."""
        return [*self._gone.get(user, {}), *self._here.get(user, {})]
