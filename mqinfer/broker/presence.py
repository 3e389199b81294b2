"""A process's name on the broker: its retained state, its will, and what happens when a second process takes the name.

Two workers of one name would both run what comes over its lane; two edges would receive each other's results. So each
process publishes its state on the name's own state topic together with its incarnation (the number of its start) and
subscribes to that topic. A process that starts asks first whether another one has the name (`Presence.claim`), and then
leaves it alone. Where two have the name all the same, since they could not reach each other, the one that started later
gives it up for good; or the other one, if the later one was to take over, or if both are processes of one server, which
starts the later one in place of the earlier. Their client ids differ: with a common one the broker would disconnect the
first when the second connects, and both would reconnect for ever. The ids are random as well: whoever connects with
another's id ends that connection, and the name and the incarnation are public.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable

from mqinfer.broker.link import Ack, Link, Message, ReasonCode, ignore_ack
from mqinfer.protocol.errors import LinkError, MqinferError, NameTaken, NotAuthorized, NotConnected
from mqinfer.protocol.states import AnyState, read_any_state

_log = logging.getLogger("mqinfer.broker")
_PATIENCE_S = 2.0
"""How long to wait for the broker's answer to a first state, and for a message that a client sent to itself."""
_ANSWER_S = 5.0
"""How long a process that is retained as `ready` may take to answer a claim: a radio link is often gone for seconds."""
_CLAIMING, _READY = "claiming", "ready"
_ENDED = frozenset({"lost", "stopped", "crashed"})
"""States of a process that says nothing more on this connection."""


def new_incarnation() -> int:
    """Return the number of a process's start: microseconds since 1970, so a later start has a larger one."""
    return time.time_ns() // 1000


def make_client_id(name: str) -> str:
    """Return a new MQTT client id: the name, for those who read the broker's log, and 64 bits that nobody can guess.

    A process keeps its id, so that its reconnect ends its own broken connection.
    """
    return f"{name}~{secrets.token_hex(8)}"


class _Claim:
    """What a process that claims a name has received so far.

    Attributes:
        holder: Incarnation of the retained `ready` of another process, which may be gone; None for none.
        rival: Whether another process has answered, or claims the name too and started earlier.
        asked: Set once everything has arrived that was published before the question.
        answered: Set once nothing more is to be waited for.
    """

    def __init__(self) -> None:
        self.holder: int | None = None
        self.rival = False
        self.asked = threading.Event()
        self.answered = threading.Event()


class Presence:
    """One process's claim to a name.

    Args:
        name: The name.
        topic: The name's state topic.
        encode: Encodes the state from a status and the incarnation.
        incarnation: The number of this process's start; None for a new one.
        on_ack: Called with the reason code of each state's PUBACK, on the link's thread.
    """

    def __init__(
        self,
        name: str,
        topic: str,
        encode: Callable[[str, int], bytes],
        *,
        incarnation: int | None = None,
        on_ack: Ack = ignore_ack,
    ) -> None:
        self.incarnation = new_incarnation() if incarnation is None else incarnation
        self.client_id = make_client_id(name)
        """MQTT client id of the process's connection."""
        self.failure: NameTaken | None = None
        """Set once another process has the name; nothing is published from then on."""
        self.take_over = False
        """Whether it takes the name from a process that started earlier; part of its state."""
        self._name = name
        self._topic = topic
        self._encode = encode
        self._status: str | None = None
        self._claim: _Claim | None = None
        self._later_wins = False
        self._advice = "give each its own (--name)"
        self._on_ack = on_ack
        self._on_taken: Callable[[NameTaken], None] | None = None
        self._link: Link | None = None
        self._acked = threading.Event()
        self._refused = False

    @property
    def will(self) -> Message:
        """The state `lost`, which the broker publishes when the connection is lost."""
        return self._state("lost")

    def attach(self, link: Link, on_taken: Callable[[NameTaken], None] | None = None) -> None:
        """Publish over this link from now on.

        Args:
            link: Made with this presence's `client_id` and `will`; its owner calls `publish` at each connection.
            on_taken: Called once, on the link's thread, when this process has to give the name up.
        """
        self._link, self._on_taken = link, on_taken

    def watch(self) -> None:
        """Watch the name without a claim: of all processes that watch it so the one that started last has it."""
        self._later_wins = True
        if self._link is not None:
            self._subscribe(self._link, retained=False)

    def _subscribe(self, link: Link, *, retained: bool) -> bool:
        """Subscribe to the state topic; without the right to read it a second process is not noticed."""
        try:
            link.subscribe(self._topic, self.receive, retained=retained)
        except NotAuthorized as error:
            _log.info("%s; a second process named %s will not be noticed", error, self._name)
            return False
        return True

    def claim(self, advice: str, *, take_over: bool = False) -> None:
        """Find out whether another process has the name, before anything is taken from it; watch the name from then on.

        A retained `ready` may be of a process that is gone: the broker has not noticed yet, or was away when it ended.
        So a message that is not retained asks, with the status `claiming`: whoever has the name publishes its state
        again. Of two that ask at the same time the one that started later leaves the name to the other.

        Args:
            advice: What to do about a name that is taken, for the error.
            take_over: Whether the other process must give the name up, as it does once this one publishes `ready`.

        Raises:
            NameTaken: Another process has the name.
            NotConnected: The connection was lost before that was known.
        """
        link, self._advice, self.take_over = self._link, advice, take_over
        if link is None:
            return
        claim = _Claim()
        self._claim = None if take_over else claim  # before the retained state comes
        try:
            if not self._subscribe(link, retained=True) or take_over:
                return
            self.publish(_CLAIMING)
            claim.asked.wait(_PATIENCE_S)
            if claim.holder is not None and not claim.rival:
                _log.info("%s was in use; waiting at most %g s for the process that had it", self._name, _ANSWER_S)
                claim.answered.wait(_ANSWER_S)
        finally:
            self._claim = self._status = None
        if claim.rival:
            self.failure = NameTaken(f"another process has the name {self._name!r}; {advice}")
            raise self.failure
        if not claim.asked.is_set() and not link.connected:
            raise NotConnected(
                f"the connection was lost before it was known who has the name {self._name!r}; try again"
            )

    def publish(self, status: str | None = None, *, qos: int = 1) -> None:
        """Publish the state, retained, so that later subscribers receive it.

        Args:
            status: From now on; None for the one that there is.
            qos: 0 for a state that differs from the one before in its figures alone, and may be lost.
        """
        self._status = status = status or self._status
        if status is not None:
            self._send(self._state(status, qos))

    def publish_and_wait(self) -> None:
        """Publish the state again, and wait up to two seconds until the broker has passed it on."""
        self._acked.clear()
        self.publish()
        if self._link is not None and self._link.connected:
            self._acked.wait(_PATIENCE_S)

    def end(self) -> None:
        """Publish `stopped`, remove the retained state, and publish nothing more; nothing if there was no state."""
        if self._status is not None:
            self.publish("stopped")
            self._status = None
            self._send(Message(self._topic, b"", retain=True))

    def _send(self, message: Message) -> None:
        if self._link is None or self.failure:
            return
        try:
            self._link.publish(message, self._receive_ack)
        except NotConnected:
            _log.debug("not connected; the state of %s is published with the next connection", self._name)
        except LinkError as error:
            _log.warning("the state of %s was not published: %s", self._name, error)

    def withdraw(self) -> None:
        """Publish nothing more until `publish` is called with a status."""
        self._status = None

    def is_refused(self) -> bool:
        """Wait up to two seconds for the PUBACK of a first state; return whether access rules refused it."""
        return self._acked.wait(_PATIENCE_S) and self._refused

    def receive(self, message: Message) -> None:
        """Handle a state that some process published under the name; a retained one may be of a process long gone."""
        claim = self._claim
        if self.failure is not None or (message.retain and claim is None):
            return
        if not len(message.payload):  # another process of the name has ended, and removed its state and this one's
            if claim is None and message.correlation_data is None:  # with one it is a client's marker to itself
                self.publish()
            return
        try:
            state = read_any_state(message.payload)
        except MqinferError as error:
            _log.warning("ignored a state of %s on %s: %s", self._name, message.topic, error)
            return
        if claim is not None:
            self._judge(claim, state.incarnation, state.status, retained=message.retain)
        elif state.incarnation != self.incarnation:
            self._meet(state)

    def _meet(self, other: AnyState) -> None:
        """Yield the name to another process, or state who has it."""
        if other.status == _READY and self._loses_to(other):
            self.failure = self._taken(is_later=other.incarnation > self.incarnation)
            if self._on_taken is not None:
                self._on_taken(self.failure)
        elif other.incarnation < self.incarnation or other.status in {*_ENDED, _CLAIMING, _READY}:
            # The will or last state of another process, one that gives the name up once it receives this, or one that
            # asks. A later one that drains is not answered: it would answer in turn, and both without end.
            self.publish()

    def _loses_to(self, other: AnyState) -> bool:
        """Return whether this process has to give the name up to another one that has it too.

        Both decide alike: of several one that takes over and started after all others of that kind keeps the name;
        where there is none, the one that started first.
        """
        is_later = other.incarnation > self.incarnation
        later_takes_over = other.take_over if is_later else self.take_over
        return is_later == (self._later_wins or later_takes_over)

    def _taken(self, *, is_later: bool) -> NameTaken:
        what = "has started and took the name over" if is_later else "has had the name for longer, and is back"
        return NameTaken(f"another process named {self._name!r} {what}; {self._advice}")

    def _judge(self, claim: _Claim, incarnation: int, status: str, *, retained: bool) -> None:
        """Take up a state that came while this process asks who has the name."""
        if incarnation == self.incarnation:
            if not retained:
                claim.asked.set()
        elif retained:
            claim.holder = incarnation if status == _READY else None
        elif status == _READY or (status == _CLAIMING and incarnation < self.incarnation):
            claim.rival = True
            claim.answered.set()
        elif incarnation == claim.holder and status in _ENDED:  # its will
            claim.answered.set()

    def _receive_ack(self, code: int) -> None:
        self._refused = code == ReasonCode.NOT_AUTHORIZED
        if self._refused and self._claim is not None:  # without the right to ask there is no answer
            self._claim.asked.set()
        self._acked.set()
        self._on_ack(code)

    def _state(self, status: str, qos: int = 1) -> Message:
        return Message(self._topic, self._encode(status, self.incarnation), retain=status != _CLAIMING, qos=qos)


def reads_back(link: Link, topic: str) -> bool:
    """Publish an empty message on a topic and return whether it comes back, within two seconds.

    Mosquitto 2.0 grants every subscription and then drops what its access rules deny. A member of a share group that
    may not read still takes its turn, so its part of the requests would be lost (measured: 50 of 100).

    Args:
        link: Open, without a subscription to the topic.
        topic: On which the client of the link may publish; others that read it receive the empty message too.

    Returns:
        False only if the broker accepted the message and did not deliver it.

    Raises:
        NotConnected: The link is down.
        NotAuthorized: The broker refused the subscription.
    """
    came, codes = threading.Event(), list[int]()

    def receive_ack(code: int) -> None:
        codes.append(code)
        if code >= ReasonCode.UNSPECIFIED:  # the message was refused, so whether it could be read stays unknown
            came.set()

    link.subscribe(topic, lambda _: came.set(), retained=False)
    try:
        link.publish(Message(topic, b""), receive_ack)
        return came.wait(_PATIENCE_S) or not codes
    finally:
        link.unsubscribe(topic)
