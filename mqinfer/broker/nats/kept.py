"""What is kept below a filter, as one subscription learns of it: retained messages, and the wills of links.

A subscription reads all of it once, and hears each change from then on. A will counts as published once its link's sign
of life has expired. Nobody says so: whoever has heard none for as long as the last one was good reads the topic again.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from mqinfer.broker.nats.jetstream import LOOK_S, LOST_S, MOST_LOST_S, OWNER
from mqinfer.broker.nats.subjects import ALIVE, HEARD, RETAINED, WILL, owned
from mqinfer.protocol.decoding import MAX_STATE_BYTES

if TYPE_CHECKING:
    from nats.aio.msg import Msg

Deliver = Callable[[str, bytes, bool], None]
"""Passes on a packet: where it was published, what it holds, and whether it is retained, not published just now."""

_TIME_TO_LIVE = re.compile(r"([0-9]{1,3})s")
_MOST_TOPICS, _MOST_WILLS, _MOST_BYTES = 65_536, 8, 64 << 20
"""Wills that a subscription remembers: of so many topics, for each so many, the latest, and of so many bytes."""
_LARGEST = MAX_STATE_BYTES + 1024


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
    def of(cls, msg: Msg) -> Held:
        """Return what a message of the stream holds."""
        place = msg.subject.partition(".")[2]
        return cls(place, msg.data, msg.metadata.sequence.stream, (msg.headers or {}).get(OWNER, ""))


@dataclass(slots=True)
class _Waiting:
    """A will whose link is there: what it holds, when the link has given a sign of life, and until when it need not."""

    data: bytes
    heard: float
    until: float


class KeptMessages:
    """What one subscription knows of what is kept.

    Args:
        deliver: Passes on what comes of it.
        reads: Whether `read` will be called; without it wills are not remembered.
        clock: In seconds.
    """

    def __init__(self, deliver: Deliver, *, reads: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._deliver, self._remembers, self._clock = deliver, reads, clock
        self._reads = reads
        self._wills: dict[str, dict[str, _Waiting]] = {}  # by topic and client id
        self._size = 0
        self._heard: dict[str, int] = {}  # while it reads: numbers of what came, by place

    def hear(self, msg: Msg) -> None:
        """Handle what is published from now on, and what the server stores."""
        kind, _, place = msg.subject.partition(".")
        headers = msg.headers or {}
        what = _what(place) if kind == HEARD else ""
        if self._reads and (number := headers.get("Nats-Sequence", "")).isdecimal():
            self._heard[place] = int(number)
        if what == WILL:
            self._keep_will(place, msg.data)
        elif what != ALIVE:
            self._deliver(msg.subject, msg.data, False)
        elif not msg.data:  # what another login has the server store there has a content
            self._hear_life(place, headers.get("Nats-TTL", ""))

    def _hear_life(self, place: str, time_to_live: str) -> None:
        stem, client_id = _owner_of(place)
        found = _TIME_TO_LIVE.fullmatch(time_to_live)
        if will := self._wills.get(stem, {}).get(client_id):
            will.heard = self._clock()
            will.until = will.heard + min(float(found[1]) if found else LOST_S, MOST_LOST_S)

    def _keep_will(self, place: str, data: bytes) -> None:
        stem, client_id = _owner_of(place)
        self._forget(stem, client_id)
        is_small = len(data) <= _LARGEST and self._size + len(data) <= _MOST_BYTES
        if not (self._remembers and data and is_small and len(self._wills) < _MOST_TOPICS):
            return
        wills, now = self._wills.setdefault(stem, {}), self._clock()
        wills[client_id] = _Waiting(data, now, now + LOST_S)
        self._size += len(data)
        if len(wills) > _MOST_WILLS:
            self._forget(stem, next(iter(wills)))

    def _forget(self, stem: str, client_id: str) -> None:
        wills = self._wills.get(stem, {})
        if will := wills.pop(client_id, None):
            self._size -= len(will.data)
            if not wills:
                del self._wills[stem]

    def silent(self) -> list[str]:
        """Return the topics, as places without a last token, of links that have given no sign of life for too long."""
        now = self._clock()
        return [stem for stem, wills in self._wills.items() if any(each.until <= now for each in wills.values())]

    def read_again(self, stems: Iterable[str], messages: Iterable[Msg]) -> None:
        """Pass on the wills of silent topics whose links are gone.

        Args:
            stems: The topics, as `silent` has returned them.
            messages: All that is kept there.
        """
        now, held = self._clock(), {each.place: each for each in map(Held.of, messages)}
        wills = [(stem, *each) for stem in stems for each in self._wills.get(stem, {}).items()]
        for stem, client_id, will in wills:
            sign = held.get(f"{stem}.{ALIVE}~{client_id}")
            if will.until > now:
                continue
            if sign and _is_alive(sign) and now < will.heard + MOST_LOST_S:  # one may be made to stay for ever
                will.until = now + LOOK_S
            else:
                self._forget(stem, client_id)
                self._deliver(f"{HEARD}.{stem}.{WILL}~{client_id}", will.data, False)

    def read(self, messages: Iterable[Msg], *, deliver: bool) -> None:
        """Take up what the stream held after the first call of `hear` was possible.

        Args:
            messages: All of it, in its order.
            deliver: Whether it is passed on; else only later changes are.
        """
        held = {each.place: each for each in map(Held.of, messages)}
        alive = {place for place, each in held.items() if _is_alive(each)}
        for place, each in held.items():
            if _what(place) == WILL and place not in self._heard and _beside(place, ALIVE) in alive:
                self._keep_will(place, each.data)
        for each in _stands(held, alive) if deliver else ():
            if self._heard.get(_beside(each.place, RETAINED), 0) < each.sequence:
                self._deliver(f"{HEARD}.{each.place}", each.data, True)
        self._reads = False
        self._heard = {}


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


def _owner_of(place: str) -> tuple[str, str]:
    """Return the place of a will or a sign of life without its last token, and the client id in that."""
    stem, _, last = place.rpartition(".")
    return stem, last.partition("~")[2]


def _beside(place: str, what: str) -> str:
    """Return the place of something else of the same topic, and where it has one of the same link."""
    stem, _, last = place.rpartition(".")
    _, tilde, client_id = last.partition("~")
    return f"{stem}.{what}" if what == RETAINED else f"{stem}.{what}{tilde}{client_id}"
