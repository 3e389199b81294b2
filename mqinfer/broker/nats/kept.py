"""What is kept below a filter, as one subscription learns of it: retained messages, and the wills of links.

A subscription reads all of it once, and hears each change from then on. A will is published when its link's sign of
life expires: the server says so without a content, which whoever listens has from before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, NamedTuple

from mqinfer.broker.nats.jetstream import OWNER
from mqinfer.broker.nats.subjects import ALIVE, HEARD, RETAINED, WILL, owned

if TYPE_CHECKING:
    from nats.aio.msg import Msg

Deliver = Callable[[str, bytes, bool], None]
"""Passes on a packet: where it was published, what it holds, and whether it is retained, not published just now."""

_MARKER = "Nats-Marker-Reason"
_MOST_WILLS = 65_536


class Held(NamedTuple):
    """What the stream held at some moment.

    Attributes:
        place: The subject without its first token.
        data: The content.
        sequence: Its number in the stream.
        owner: The client id of the link with which it ends; empty where it has none.
    """

    place: str
    data: bytes
    sequence: int
    owner: str = ""

    @classmethod
    def of(cls, msg: Msg) -> Held | None:
        """Return what a message of the stream holds; None where it only says that something has expired."""
        headers = msg.headers or {}
        if _MARKER in headers:
            return None
        place = msg.subject.partition(".")[2]
        return cls(place, msg.data, msg.metadata.sequence.stream, headers.get(OWNER, ""))


class KeptMessages:
    """What one subscription knows of what is kept.

    Args:
        deliver: Passes on what comes of it.
        reads: Whether `read` will be called.
    """

    def __init__(self, deliver: Deliver, *, reads: bool) -> None:
        self._deliver = deliver
        self._reads = reads
        self._wills: dict[str, bytes] = {}
        self._heard: dict[str, int] = {}  # while it reads: numbers of what came, by place
        self._lost: set[str] = set()  # likewise: places of signs of life that have expired

    def hear(self, msg: Msg) -> None:
        """Handle what is published from now on, and what the server stores or lets expire."""
        kind, _, place = msg.subject.partition(".")
        headers = msg.headers or {}
        what = _what(place) if kind == HEARD else ""
        if self._reads and (number := headers.get("Nats-Sequence", "")).isdecimal():
            self._heard[place] = int(number)
        if what == ALIVE:
            self._hear_life(place, is_lost=_MARKER in headers)
        elif what == WILL:
            self._keep_will(place, msg.data)
        elif _MARKER not in headers:
            self._deliver(msg.subject, msg.data, False)

    def _hear_life(self, place: str, *, is_lost: bool) -> None:
        if self._reads:
            (self._lost.add if is_lost else self._lost.discard)(place)
        will = _beside(place, WILL)
        if is_lost and (data := self._wills.pop(will, b"")):
            self._deliver(f"{HEARD}.{will}", data, False)

    def _keep_will(self, place: str, data: bytes) -> None:
        self._wills.pop(place, None)
        if data and len(self._wills) < _MOST_WILLS:
            self._wills[place] = data

    def read(self, messages: Iterable[Msg], *, deliver: bool) -> None:
        """Take up what the stream held after the first call of `hear` was possible.

        Args:
            messages: All of it, in its order.
            deliver: Whether it is passed on; else only later changes are.
        """
        held = {each.place: each for each in map(Held.of, messages) if each}
        alive = {place for place, each in held.items() if _is_alive(each)} - self._lost
        for place, each in held.items():
            if _what(place) == WILL and place not in self._heard and _beside(place, ALIVE) in alive:
                self._keep_will(place, each.data)
        for each in _stands(held, alive) if deliver else ():
            if self._heard.get(_beside(each.place, RETAINED), 0) < each.sequence:
                self._deliver(f"{HEARD}.{each.place}", each.data, True)
        self._reads = False
        self._heard, self._lost = {}, set()


def _stands(held: Mapping[str, Held], alive: AbstractSet[str]) -> Iterable[Held]:
    """Return what is retained on each topic: the later one of what was published, and the wills that came due."""
    newest: dict[str, Held] = {}
    for place, each in held.items():
        if _what(place) == RETAINED:
            stands = not each.owner or _has_owner(each, held, alive)
        else:
            stands = _is_retained_will(each) and _beside(place, ALIVE) not in alive
        if stands:
            newest[place.rpartition(".")[0]] = each
    return newest.values()


def _has_owner(message: Held, held: Mapping[str, Held], alive: AbstractSet[str]) -> bool:
    """Return whether the link that published a message is there, or has closed and took its will back."""
    stem = message.place.rpartition(".")[0]
    will = held.get(f"{stem}.{owned(WILL, message.owner)}")
    return f"{stem}.{owned(ALIVE, message.owner)}" in alive or (will is not None and not will.data)


def _is_retained_will(each: Held) -> bool:
    return _what(each.place) == WILL and bool(each.data) and bool(each.data[0] & 1)


def _is_alive(each: Held) -> bool:
    return _what(each.place) == ALIVE and not each.data  # what another login has the server store there has a content


def _what(place: str) -> str:
    return place.rpartition(".")[2].partition("~")[0]


def _beside(place: str, what: str) -> str:
    """Return the place of something else of the same topic, and where it has one of the same link."""
    stem, _, last = place.rpartition(".")
    _, tilde, client_id = last.partition("~")
    return f"{stem}.{what}" if what == RETAINED else f"{stem}.{what}{tilde}{client_id}"
