"""Try what mqinfer needs of a broker: `mqinfer broker check`. It uses the state topic of the login's own name.

What an earlier process of that name has left there, such as its will, is set aside meanwhile.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import NamedTuple

from mqinfer.broker.address import BrokerAddress
from mqinfer.broker.connect import make_link
from mqinfer.broker.link import Message, ReasonCode
from mqinfer.broker.threaded.link import ThreadedLink
from mqinfer.protocol.errors import ConfigError, LinkError, MessageTooLarge, MqinferError, NotAuthorized
from mqinfer.protocol.states import ClientState, ProcessStatus
from mqinfer.protocol.topics import Topics

_PATIENCE_S = 5.0
"""How long to wait for a message that may not come."""
_FRAME = 1 << 20
_FRAMES = 8
_SHARED = 16
_ORDERED = 64
_EXPIRY_S = 1
_WILL_S = 0.3
"""How long the will of a connection that has ended may take."""


class Ability(NamedTuple):
    """What a broker has to do.

    Attributes:
        what: In a few words.
        holds: Whether it does; None where that could not be found out.
        words: What was seen.
        lost: What does not work without it.
    """

    what: str
    holds: bool | None
    words: str
    lost: str


class _Inbox:
    """Keeps the messages that arrive."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._changed = threading.Condition()

    def __call__(self, message: Message) -> None:
        """Keep one."""
        with self._changed:
            self.messages.append(message)
            self._changed.notify_all()

    def wait(self, count: int) -> list[Message]:
        """Return what there is, once that is so many, or nothing has come for long enough."""
        with self._changed:
            while len(self.messages) < count:
                if not self._changed.wait(_PATIENCE_S):
                    break
            return list(self.messages)

    def until(self, payload: bytes) -> list[bytes]:
        """Return the payloads of what there is, once that one is among them, or nothing has come for long enough."""
        count = 0
        while payload not in (found := [bytes(message.payload) for message in self.wait(count + 1)]):
            if len(found) <= count:
                break
            count = len(found)
        return found


class Abilities:
    """Tries what a broker does, one after the other.

    Args:
        address: With a login that may ask models.
        topics: The site's.
        name: The login's name in topics, which no process may use meanwhile.
    """

    def __init__(self, address: BrokerAddress, topics: Topics, name: str) -> None:
        self._address, self._name, self._topics = address, name, topics
        self._topic = topics.client_state(name)
        self._link = self._make()

    def run(self) -> list[Ability]:
        """Try everything.

        Raises:
            LinkError: The broker can't be reached, or refuses the login.
        """
        tries: list[tuple[str, Callable[[], tuple[bool | None, str]], str]] = [
            ("MQTT 5", self._version, "fast notice of a worker that is gone, expiry of requests, bounds of sizes"),
            ("round trip", self._round_trip, "everything"),
            ("no matching subscribers (0x10)", self._unmatched, "requests to absent workers wait for their deadline"),
            ("retained, by wildcard", self._retained, "cards and states: late clients find no model and no worker"),
            ("message expiry", self._expires, "requests whose deadline has passed are served for nobody"),
            ("order", self._ordered, "the last state of a process may not be the one that counts"),
            ("shared group", self._shared, "requests reach no worker, or several work on each"),
            ("will", self._will, "a worker that is gone is noticed only by its silence"),
            ("retained will", self._will_stays, "late clients take a worker that is gone for one that serves"),
        ]
        # The last one: the guard of `mqinfer broker` takes a login's rights away for so large a state.
        large = ("large packets", self._frames, "frames above the size that passes in time")
        if self._address.transport == "nats":  # a link keeps its will there, and takes it back when it returns
            tries = [each for each in tries if each[0] != "retained will"]
        self._link.open()
        with closing(self._link):
            states = self._retained_below(self._topic)
            if not all(map(self._has_ended, states)):
                taken = f"not known: a process has the name {self._name}; give another with --name"
                return [Ability(what, None, taken, lost) for what, _, lost in (*tries, large)]
            with self._set_aside(states):
                found = [self._attempt(*each) for each in tries]
            return [*found, self._attempt(*large)]

    @staticmethod
    def _attempt(what: str, attempt: Callable[[], tuple[bool | None, str]], lost: str) -> Ability:
        try:
            return Ability(what, *attempt(), lost)
        except NotAuthorized as error:
            return Ability(what, None, f"not known: {error}", lost)
        except LinkError as error:
            return Ability(what, False, str(error), lost)

    def _has_ended(self, payload: bytes) -> bool:
        """Return whether a retained state is of a process that has ended, such as a will."""
        try:
            _, state = ClientState.read(self._topics, self._topic, payload)
        except MqinferError:
            return False
        return state is not None and state.status in {ProcessStatus.STOPPED, ProcessStatus.LOST}

    @contextmanager
    def _set_aside(self, states: list[bytes]) -> Iterator[None]:
        """Remove the retained states of the login's own name, and retain them again at the end."""
        if states:
            self._publish(Message(self._topic, b"", retain=True))
        try:
            yield
        finally:
            for payload in states:
                self._publish(Message(self._topic, payload, retain=True))

    def _retained_below(self, topic_filter: str) -> list[bytes]:
        """Return what is retained; a message that is not comes behind it."""
        with self._listening(topic_filter) as inbox:
            self._link.publish(Message(self._topic, b""))
            inbox.until(b"")
            return [payload for message in inbox.messages if message.retain and (payload := bytes(message.payload))]

    def _make(self, will: Message | None = None) -> ThreadedLink:
        link = make_link(self._address, client_id=f"check~{secrets.token_hex(8)}", will=will)
        if not isinstance(link, ThreadedLink):
            raise ConfigError(f"{self._address}: a broker within a process can't be checked by another")
        return link

    @contextmanager
    def _listening(
        self, topic_filter: str, link: ThreadedLink | None = None, share: str | None = None
    ) -> Iterator[_Inbox]:
        link, inbox = link or self._link, _Inbox()
        link.subscribe(topic_filter, inbox, share=share)
        try:
            yield inbox
        finally:
            link.unsubscribe(topic_filter, share=share)

    def _version(self) -> tuple[bool, str]:
        is_version5 = self._link.max_packet_size is not None
        return is_version5, "spoken" if is_version5 else "not spoken, only 3.1.1"

    def _round_trip(self) -> tuple[bool, str]:
        sent = Message(
            self._topic,
            b"x",
            content_type="c",
            response_topic="r",
            correlation_data=b"id",
            user_properties=(("a", "b"),),
        )
        with self._listening(self._topic) as inbox:
            start = time.monotonic()
            self._link.publish(sent)
            got = inbox.wait(1)
            took = time.monotonic() - start
        if not got:
            return False, "the message did not arrive"
        names = ("content_type", "response_topic", "correlation_data", "user_properties")
        lacking = [name for name in names if getattr(got[0], name) != getattr(sent, name)]
        return not lacking, f"{', '.join(lacking)} did not arrive" if lacking else f"{1000 * took:.1f} ms"

    def _frames(self) -> tuple[bool, str]:
        """Send frames to another link, which need not read what is still on its way when it leaves."""
        with closing(self._make()) as reader:
            reader.open()
            inbox = _Inbox()
            reader.subscribe(self._topic, inbox)
            start = time.monotonic()
            try:
                for _ in range(_FRAMES):
                    self._link.publish(Message(self._topic, bytes(_FRAME)))
            except MessageTooLarge as error:
                return False, str(error)
            self._link.publish(Message(self._topic, b"last"))
            got = inbox.until(b"last")
            took = time.monotonic() - start
        count = sum(len(each) == _FRAME for each in got)
        came = f"{count} of {_FRAMES} messages of 1 MiB arrived"
        if b"last" not in got:
            return False, f"too slow: {came} in {took:.0f} s, and then nothing for {_PATIENCE_S:g} s"
        if count < _FRAMES:
            return False, f"{came}, and the broker did not say that it drops"
        size = self._link.max_packet_size
        return True, f"{_FRAMES / took:.0f} MiB/s there and back, Maximum Packet Size {size or 'not stated'}"

    def _unmatched(self) -> tuple[bool, str]:
        nobody = f"check-{secrets.token_hex(6)}"
        code = self._publish(Message(self._topics.infer(nobody, self._name), b"", expiry_s=1))
        return code == ReasonCode.NO_MATCHING_SUBSCRIBERS, f"PUBACK {'missing' if code is None else hex(code)}"

    def _publish(self, message: Message) -> int | None:
        """Publish and return the PUBACK's reason code; None where none came."""
        codes, acked = list[int](), threading.Event()

        def receive(code: int) -> None:
            codes.append(code)
            acked.set()

        self._link.publish(message, receive)
        acked.wait(_PATIENCE_S)
        return codes[0] if codes else None

    def _kept(self, topic_filter: str, expiry_s: int | None, wait_s: float) -> int:
        """Retain a message, and return how many come to a filter after a time."""
        self._publish(Message(self._topic, b"kept", retain=True, expiry_s=expiry_s))
        threading.Event().wait(wait_s)
        try:
            return len(self._retained_below(topic_filter))
        finally:
            self._publish(Message(self._topic, b"", retain=True))

    def _retained(self) -> tuple[bool, str]:
        count = self._kept(f"{self._topic.rpartition('/')[0]}/+", None, 0.0)
        if count != 1:
            return False, "arrives more than once" if count else "did not arrive"
        is_left = bool(self._retained_below(self._topic))  # `_kept` has cleared it
        return not is_left, "an empty message did not clear it" if is_left else "arrives, and is cleared"

    def _expires(self) -> tuple[bool, str]:
        count = self._kept(self._topic, _EXPIRY_S, _EXPIRY_S + 1.5)
        return count == 0, f"a message of {_EXPIRY_S} s is {'gone' if count == 0 else 'still sent'} after it"

    def _shared(self) -> tuple[bool, str]:
        share, second = f"check-{secrets.token_hex(4)}", self._make()
        second.open()
        with (
            closing(second),
            self._listening(self._topic, share=share) as one,
            self._listening(self._topic, second, share) as other,
        ):
            for number in range(_SHARED):
                self._link.publish(Message(self._topic, b"%d" % number))
            one.wait(_SHARED // 2)
            other.wait(_SHARED // 2)
            got = [bytes(message.payload) for inbox in (one, other) for message in inbox.messages]
            parts = f"{len(one.messages)} and {len(other.messages)}"
        holds = sorted(got) == sorted(b"%d" % number for number in range(_SHARED))
        return holds, f"two members got {parts} of {_SHARED}"

    def _ordered(self) -> tuple[bool, str]:
        sent = [b"o%d" % number for number in range(_ORDERED)]
        with self._listening(self._topic) as inbox:
            for each in sent:
                self._link.publish(Message(self._topic, each))
            got = [each for each in inbox.until(sent[-1]) if each in sent]
        return got == sent, f"{len(got)} of {_ORDERED} messages came{'' if got == sent else ', and not in their order'}"

    def _will(self) -> tuple[bool, str]:
        start = time.monotonic()
        came = self._comes(Message(self._topic, b"will"))
        words = f"after {1000 * (time.monotonic() - start):.0f} ms"
        if not came or not self._leaves_quietly():
            return False, "published for a link that has disconnected, too" if came else "did not arrive"
        return True, words

    def _will_stays(self) -> tuple[bool, str]:
        try:
            if not self._comes(Message(self._topic, b"stays", retain=True)):
                return False, "did not arrive"
            stays = b"stays" in self._retained_below(self._topic)
        finally:
            self._publish(Message(self._topic, b"", retain=True))
        return stays, "late subscribers get it" if stays else "late subscribers do not get it"

    def _comes(self, will: Message) -> bool:
        """Return whether a will comes when its link loses the connection."""
        with closing(self._make(will)) as leaving, self._listening(self._topic) as inbox:
            leaving.open()
            leaving.cut()
            return bytes(will.payload) in inbox.until(bytes(will.payload))

    def _leaves_quietly(self) -> bool:
        """Return whether no will comes of a link that disconnects."""
        with self._listening(self._topic) as inbox:
            with closing(self._make(Message(self._topic, b"has left"))) as leaving:
                leaving.open()
            threading.Event().wait(_WILL_S)
            self._link.publish(Message(self._topic, b"last"))
            return b"has left" not in inbox.until(b"last")
