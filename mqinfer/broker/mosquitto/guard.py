"""The guard of a broker: removes what nobody may retain, and ends connections and sessions that are too many.

Mosquitto has no limits for one login. Without the guard a vehicle could fill the broker's memory within its own rights:
by requests that it publishes with RETAIN to ever new topics, by states of 64 MiB, or by sessions that outlive it.

The guard subscribes to requests for one moment a time, since a subscription that stays would hide from senders that no
worker is there (PUBACK 0x10). It can't ask the broker to end a connection, but can connect under its client id: that
ends the connection and its session. What a client that has left may have left behind, Mosquitto's log does not tell; of
ids above a login's limit the guard finds out by taking over the session, which then ends.

A broker whose memory is full to its limit has none for the copy of a message that the guard reads, and ends the guard's
connection. It gets memory beyond the limit then, until nothing is left that has to go.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple, Protocol, Self

from mqinfer.broker.mosquitto.access import GUARD, GuardedFilters, guarded_filters
from mqinfer.broker.mosquitto.connection import (
    Connection,
    Door,
    Kept,
    clearing,
    connecting,
    subscribing,
    taking_over,
    unsubscribing,
)
from mqinfer.broker.mosquitto.logins import Came, Left, Logins, Refusals, Unreadable, read_line
from mqinfer.protocol.card import MAX_CARD_BYTES
from mqinfer.protocol.decoding import MAX_STATE_BYTES
from mqinfer.protocol.errors import MqinferError

_log = logging.getLogger("mqinfer.broker")

_SWEEP_S = 0.25
_EXTRA_BYTES = 128 << 20
"""Memory beyond the broker's limit: `max_inflight_bytes` and one message of `max_packet_size` above it."""
_SUSPENDED_S = 60.0  # the first time, and twice as long each further time
_MOST_SUSPENDED_S = 86400.0
_MOST_ROUNDS = 1000
_MOST_LINES = 10_000
_MOST_ANSWERS = 64
_MOST_PRESENCES, _PRESENCE_BYTES = 2048, 64
_ENDED_AT_A_TIME = 50  # then it sweeps again


class GuardedBroker(NamedTuple):
    """What the guard has to know of a broker; a broker without logins has no `most_connections`.

    Attributes:
        filters: What it looks at.
        most_connections: How many connections and sessions each login may have; all others none.
    """

    filters: GuardedFilters
    most_connections: dict[str, int] | None = None


class GuardedSite(Protocol):
    """Where the guard learns what holds, and takes rights away."""

    def read(self) -> GuardedBroker:
        """Return what holds now."""

    def suspend(self, users: frozenset[str]) -> None:
        """Take the rights of these users away, and give all others theirs."""


class OpenSite:
    """A broker without logins."""

    def read(self) -> GuardedBroker:
        """Return the filters below the usual root."""
        return _OPEN

    def suspend(self, users: frozenset[str]) -> None:
        """Do nothing: nobody has a login here."""


_OPEN = GuardedBroker(guarded_filters(""))


class Offence(NamedTuple):
    """A retained message that has to go.

    Attributes:
        name: Of the client that the topic vouches for, or None.
        what: What it is, for the log.
    """

    name: str | None
    what: str


def offence(path: str, message: Kept) -> Offence | None:
    """Return why a message must not stay in the broker, or None if it may.

    Args:
        path: Its topic below the root.
        message: The message.
    """
    match path.split("/"):
        case ["clients" | "workers" | "control", name, "state"]:
            found, allowed = Offence(name, "a state above 64 KiB"), MAX_STATE_BYTES
        case ["models", _, "card"]:
            found, allowed = Offence(None, "a card above 1 MiB"), MAX_CARD_BYTES
        case ["models", _, "infer" | "cancel", name] | ["models", _, "versions", _, "infer", name]:
            found, allowed = Offence(name, "a request"), 0
        case ["workers", _, "infer", _, name] | ["control", _, name, *_]:
            found, allowed = Offence(name, "a request or an order"), 0
        case ["clients", name, "preview", _] | ["overlays", _, name, _]:
            found, allowed = Offence(name, "a preview or an overlay"), 0
        case _:
            found, allowed = Offence(None, "a message"), 0
    return found if message.size > allowed and (message.retained or allowed) else None


def _of_answers(path: str, message: Kept, kept: Counter[str]) -> Offence | None:
    """Return why an answer in words must not stay in the broker: its client may keep those of `_MOST_ANSWERS` streams.

    Args:
        path: Its topic below the root.
        message: The message.
        kept: How many of each client have been found, and are allowed to stay so far.
    """
    if not message.retained:
        return None
    name = path.split("/")[2]
    kept[name] += 1
    if kept[name] > _MOST_ANSWERS:
        return Offence(name, f"answers of more than {_MOST_ANSWERS} streams")
    return Offence(name, "an answer above 64 KiB") if message.size > MAX_STATE_BYTES else None


class Guard:
    """A guard on a thread of its own.

    Args:
        door: Returns where it connects; a listener of its own stays open to it when others are full.
        site: Where it learns what holds, and takes rights away.
        extend_memory: Lets the broker use so many bytes more than its limit.
    """

    def __init__(self, door: Callable[[], Door], site: GuardedSite, extend_memory: Callable[[int], object]) -> None:
        self._door = door
        self._site = site
        self._extend_memory = extend_memory
        self._extra_bytes = 0
        self._lines: deque[Came | Left | Unreadable] = deque()
        self._logins = Logins()
        self._refusals = Refusals()
        self._suspended: dict[str, float] = {}
        self._offences: Counter[str] = Counter()
        self._counters: Counter[str] = Counter()
        self._presences: dict[str, set[str]] = {}
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._failed = False
        self._client_id = f"{GUARD}~{secrets.token_hex(8)}"
        self._thread = threading.Thread(target=self._run, name="mqinfer-broker-guard", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._wake.set()
        self._thread.join()
        if self._counters:
            _log.warning(
                "the broker's guard in all: %s", ", ".join(f"{n} {what}" for what, n in self._counters.items())
            )

    def observe(self, line: str) -> None:
        """Take notice of a line of Mosquitto's log; called by the thread that reads it."""
        self._refusals.observe(line)
        found = read_line(line)
        if found is None:
            return
        if len(self._lines) >= _MOST_LINES:
            self._counters["lines of the log passed over"] += 1
            return
        self._lines.append(found)
        if not isinstance(found, Left):
            self._wake.set()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                with Connection(self._door(), self._client_id) as connection:
                    self._keep(connection)
            except (OSError, MqinferError) as error:
                self._report(error)
                with suppress(OSError, MqinferError):  # that broker may have ended
                    self._extend(_EXTRA_BYTES)
                self._stopping.wait(_SWEEP_S)
            except Exception:  # noqa: BLE001 - the broker goes on without it, whatever it was
                _log.exception("the broker's guard has ended, the broker goes on without it; start mqinfer broker anew")
                return

    def _extend(self, extra_bytes: int) -> None:
        if extra_bytes != self._extra_bytes:
            self._extend_memory(extra_bytes)
            self._extra_bytes = extra_bytes

    def _report(self, error: Exception) -> None:
        if not self._failed and not self._stopping.is_set():
            self._failed = True
            _log.warning("the broker's guard has no connection, and tries again: %s", error)

    def _keep(self, connection: Connection) -> None:
        watched: tuple[str, ...] = ()
        self._presences.clear()
        while not self._stopping.is_set():
            site = self._site.read()
            self._forgive()
            if site.filters.watched != watched:
                watched = site.filters.watched
                connection.send(subscribing(watched))
            self._end_surplus(site)
            self._sweep(connection, site)
            self._extend(0)
            self._failed = False
            self._wake.wait(_SWEEP_S)
            self._wake.clear()

    # Retained messages -------------------------------------------------------------------------------------------

    def _sweep(self, connection: Connection, site: GuardedBroker) -> None:
        connection.send(subscribing(site.filters.swept), unsubscribing(site.filters.swept))
        removed: Counter[Offence] = Counter()
        answers: Counter[str] = Counter()
        for _ in range(_MOST_ROUNDS):
            nothing = True
            for message in connection.until_pong():
                nothing = False
                path = _path(message.topic, site.filters)
                found = self._judge(path, message, answers)
                if found is not None:
                    connection.send(clearing(message.topic))
                    self._counters["messages removed"] += 1
                    self._counters["bytes removed"] += message.size
                    removed[found] += 1
                    if removed[found] == 1:
                        self._suspend(found.name, found.what, site)
                if self._wake.is_set():  # whoever fills the broker must not go on meanwhile
                    self._wake.clear()
                    self._end_surplus(site)
            if nothing:
                break
        for (name, what), count in removed.items():
            _log.warning("removed from the broker what %s had retained: %d times %s", name or "a worker", count, what)

    def _judge(self, path: str, message: Kept, answers: Counter[str]) -> Offence | None:
        """Return why a message must not stay; states of presence come once and are counted, others at each sweep."""
        match path.split("/"):
            case ["answers", *_]:
                return _of_answers(path, message, answers)
            case ["presence", _, name, *_]:
                kept = self._presences.setdefault(name, set())
                (kept.add if 0 < message.size <= _PRESENCE_BYTES else kept.discard)(path)
                if message.size > _PRESENCE_BYTES or len(kept) > _MOST_PRESENCES:
                    return Offence(name, f"more than {_MOST_PRESENCES} states of presence, or one above 64 bytes")
                return None
        return offence(path, message)

    def _suspend(self, name: str | None, what: str, site: GuardedBroker) -> None:
        allowed = site.most_connections
        if allowed is None or name is None:
            return
        user = name if name in allowed else name.rpartition(".")[0]  # a worker's process
        if user not in allowed or user in self._suspended:
            return
        seconds = min(_SUSPENDED_S * 2 ** self._offences[user], _MOST_SUSPENDED_S)
        _log.warning("%s has retained %s: its connections end, and it has no rights for %g s", user, what, seconds)
        self._offences[user] += 1
        self._suspended[user] = time.monotonic() + seconds
        self._site.suspend(frozenset(self._suspended))
        self._end([(user, each) for each in self._logins.ids(user)])

    def _forgive(self) -> None:
        now = time.monotonic()
        over = {user for user, until in self._suspended.items() if until <= now}
        if over:
            self._suspended = {user: until for user, until in self._suspended.items() if user not in over}
            self._site.suspend(frozenset(self._suspended))

    # Connections and sessions -----------------------------------------------------------------------------------

    def _end_surplus(self, site: GuardedBroker) -> None:
        for _ in range(len(self._lines)):
            self._learn(self._lines.popleft())
        if site.most_connections is None:
            return
        allowed = site.most_connections
        surplus = list(self._logins.surplus(lambda user: allowed.get(user, 0)))
        for user, count in self._end(surplus[:_ENDED_AT_A_TIME]).items():
            most = allowed.get(user, 0)
            _log.warning("%s may have %d connections and sessions: %d are too many, and end", user, most, count)
        if len(surplus) > _ENDED_AT_A_TIME:
            self._wake.set()

    def _end(self, ids: list[tuple[str, str]]) -> Counter[str]:
        """End what these ids have; returns for each login how many had something."""
        ended: Counter[str] = Counter()
        for user, client_id in ids:
            is_here = self._logins.is_here(client_id)
            try:
                with Connection(self._door(), client_id, connecting if is_here else taking_over) as connection:
                    ended[user] += is_here or connection.found_session
            except OSError as error:
                self._report(error)  # one that can't be ended must not keep the others' messages from being looked at
                continue
            self._logins.forget(client_id)
        if total := ended.total():
            self._counters["connections and sessions ended"] += total
        return +ended

    def _learn(self, line: Came | Left | Unreadable) -> None:
        match line:
            case Came(client_id, user) if user not in {None, GUARD}:
                self._logins.came(client_id, user or "")
            case Came(client_id):
                self._logins.forget(client_id)
            case Left(client_id):
                self._logins.left(client_id)
            case Unreadable(address):
                self._counters["client ids too long to be read"] += 1
                _log.warning("a client id from %s is too long to be read; see docs/reference/security.md", address)


def _path(topic: str, filters: GuardedFilters) -> str:
    """Return a topic without its root."""
    for each in filters.swept:
        root = each.partition("/models/")[0]
        if topic.startswith(f"{root}/"):
            return topic[len(root) + 1 :]
    return topic
