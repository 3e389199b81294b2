"""A link whose connection a thread of its own keeps, to which all other threads pass their messages."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from asyncio import _get_running_loop as running_loop  # None outside of one, and no exception
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from typing import Protocol

from msgspec import Struct

from mqinfer.broker.address import BrokerAddress
from mqinfer.broker.link import Ack, ConnectionHandler, Message, MessageHandler, Withdraw, ignore_ack
from mqinfer.broker.malloc import keep_freed_memory
from mqinfer.broker.packets import Head, encode_head
from mqinfer.broker.process import Maker, abandon_in_children, end_thread_in_child
from mqinfer.broker.routes import Route, Routes, subscription_name
from mqinfer.broker.threaded.outages import OUTAGES
from mqinfer.protocol.errors import (
    BrokerUnreachable,
    ConfigError,
    LinkError,
    MessageTooLarge,
    NotAuthorized,
    NotConnected,
)
from mqinfer.protocol.limits import DEFAULT_LIMITS

_log = logging.getLogger("mqinfer.broker")

_ANSWER_S = 60.0
"""How long a SUBACK may take: large messages may be in front of it on a thin link. The session finds a dead connection
itself, long before."""
MOST_QUEUED = 65_535
"""Messages that may be queued for the link's thread: a backstop, since the sender's window is far smaller."""


class LinkSession(Protocol):
    """As much of a connection as its outbox sees."""

    @property
    def accepted(self) -> bool:
        """Whether the broker has accepted the connection."""

    @property
    def alive(self) -> bool:
        """Whether the connection has not ended."""

    @property
    def has_room(self) -> bool:
        """Whether one more message may be sent now."""

    def send(self, message: Message, head: Head, on_ack: Ack) -> None:
        """Send a message."""

    def subscribe(self, route: Route, answer: Future[None]) -> None:
        """Make a subscription; the broker's answer goes into the future."""

    def unsubscribe(self, name: str, answer: Future[None]) -> None:
        """Remove a subscription; likewise."""

    def cut(self, answer: Future[None]) -> None:
        """Break the connection, as a cut cable would."""


Question = Callable[[LinkSession, Future[None]], None]
"""Asks the broker for something; its answer goes into the future."""


class Outgoing(Struct, eq=False):
    """A message for the link's thread; dropped if its connection is gone by then.

    Attributes:
        epoch: Number of its connection.
        message: The message; None once it is withdrawn.
        head: Its packet but for the payload.
        on_ack: Called with the PUBACK's reason code.
    """

    epoch: int
    message: Message | None
    head: Head
    on_ack: Ack

    def withdraw(self) -> None:
        """Give up the message, unless the link's thread has passed it on."""
        self.message = None


@dataclass(frozen=True, slots=True)
class _Command:
    """A subscription to make or to remove, and where the broker's answer goes."""

    question: Question
    answer: Future[None]

    def put_to(self, session: LinkSession) -> None:
        """Ask the broker, or leave it to the next connection, which goes by the table of routes."""
        if not (session.accepted and session.alive):
            self.answer.set_result(None)
            return
        try:
            self.question(session, self.answer)
        except Exception as error:  # noqa: BLE001 - what paho refuses to send is the asker's fault, not the link's
            self.answer.set_exception(error)


class Outbox:
    """The queue between all threads, which put in, and the link's thread, which takes out."""

    def __init__(self) -> None:
        self._messages: deque[Outgoing] = deque()
        self._commands: deque[_Command] = deque()
        self.dropped = 0
        """Messages whose connection was lost before they could leave, and those that changed meanwhile."""

    def __len__(self) -> int:
        """Count the queued messages."""
        return len(self._messages)

    def put(self, outgoing: Outgoing) -> None:
        """Queue a message."""
        self._messages.append(outgoing)

    def ask(self, question: Question) -> Future[None]:
        """Queue a question; return where its answer will be."""
        command = _Command(question, Future())
        self._commands.append(command)
        return command.answer

    def can_empty(self, session: LinkSession) -> bool:
        """Return whether the link's thread could pass something to the session now."""
        return bool(self._commands) or (bool(self._messages) and session.has_room)

    def empty_into(self, session: LinkSession, epoch: int) -> None:
        """Pass on all questions, and the messages of this connection as far as its window allows."""
        while self._commands:
            self._commands.popleft().put_to(session)
        while self._messages and session.has_room:
            outgoing = self._messages.popleft()
            message = outgoing.message  # another thread may withdraw it now
            if message is None:
                continue
            if outgoing.epoch != epoch or not _send(session, message, outgoing):
                self.dropped += 1

    def clear(self) -> None:
        """Drop the messages and leave the questions to the next connection: this one is lost."""
        self.dropped += len(self._messages)
        self._messages.clear()
        while self._commands:
            self._commands.popleft().answer.set_result(None)


def _send(session: LinkSession, message: Message, outgoing: Outgoing) -> bool:
    """Send a message; return False where its payload can no longer be read, since its owner released the memory."""
    try:
        session.send(message, outgoing.head, outgoing.on_ack)
    except Exception:  # noqa: BLE001 - one message's fault must not end the link
        _log.exception("topic %s: the message can't be sent and is lost", message.topic)
        return False
    return True


class EngineLoop(Protocol):
    """What an engine does on a link's thread."""

    def keep_connected(self, timeout: float) -> LinkError | None:
        """Connect again and again until `close_by` is set; return what makes another attempt useless.

        Args:
            timeout: In seconds, for the first connection.
        """

    def wake(self) -> None:
        """Have the thread look at its outbox and at `close_by`; any thread may call it."""


class LinkThread:
    """The thread of one link, from `start` to `close`. Any thread may call these and `is_current`.

    Args:
        outbox: What waits for the thread.
        address: The broker.
        client_id: Of the link.
        on_connection: Called at each connection, each loss, and the end with `failure` set.
        host: Whose thread may serve a connection in place of this one; None for none.

    Attributes:
        connected: Whether messages are sent now.
        close_by: When a connection that is being closed ends at the latest, in monotonic seconds; None until `close`.
        epoch: Number of the connection; a message of an earlier one is dropped.
        failure: Why the thread gave up for good before it was closed.
        max_packet_size: In bytes, or None while unknown.
        opened: Done with the first connection, or fails with what made it impossible.
        outbox: As passed.
        version5: Whether the connection speaks MQTT 5.
        abandoned: Whether this is the copy in a child that was forked off.
        host: As passed.
        wake: Has the thread look at its outbox; an attribute, since a call more for each message would cost.
    """

    def __init__(
        self,
        outbox: Outbox,
        address: BrokerAddress,
        client_id: str,
        on_connection: ConnectionHandler | None,
        *,
        host: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self.connected = self.abandoned = False
        self.close_by: float | None = None
        self.epoch = 0
        self.failure: LinkError | None = None
        self.max_packet_size: int | None = None
        self.opened: Future[None] = Future()
        self.outbox = outbox
        self.version5 = True
        self.host = host
        self.wake: Callable[[], None] = lambda: None
        self._address, self._client_id, self._on_connection = str(address), client_id, on_connection
        self._thread = threading.Thread()
        abandon_in_children(self)

    def abandon(self) -> None:
        """Give up this copy, in a child that was forked off."""
        self.connected, self.abandoned = False, True

    def start(self, loop: EngineLoop, timeout: float) -> None:
        """Start; the first connection may take `timeout` seconds."""
        self.wake = loop.wake
        name = f"mqinfer-link-{self._client_id}"
        self._thread = threading.Thread(target=self._run, args=(loop, timeout), name=name, daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether it runs."""
        return self._thread.is_alive()

    @property
    def is_current(self) -> bool:
        """Whether the caller runs on it, or on that of the host."""
        is_hosts = self.host is not None and running_loop() is self.host
        return is_hosts or self._thread is threading.current_thread()

    def close(self, timeout: float) -> None:
        """Wait until all is acknowledged, at most `timeout` seconds, disconnect, and join the thread."""
        self.close_by = time.monotonic() + timeout
        self.wake()
        if self._thread.ident is not None:
            self._thread.join()

    # What follows runs on the thread.

    def _run(self, loop: EngineLoop, timeout: float) -> None:
        failure: LinkError = NotConnected("the link was closed")
        try:
            if final := loop.keep_connected(timeout):
                failure = final
                _log.log(logging.CRITICAL if self.opened.done() else logging.DEBUG, "giving up: %s", final)
        except BaseException as error:  # noqa: BLE001 - the root of the thread; `failure` and `on_connection` report it
            if self.abandoned:
                end_thread_in_child()
            _log.critical("the thread of the link to %s failed", self._address, exc_info=True)
            failure = BrokerUnreachable(f"the link to {self._address} failed: {error!r}")
        self.connected = False
        self.outbox.clear()
        OUTAGES.ended(self._address, self, connected=False)
        if self.close_by is None:
            self.failure = failure
        if not self.opened.done():
            self.opened.set_exception(failure)
        elif self.failure:
            self.report(connected=False)

    def connect(self, max_packet_size: int | None) -> None:
        """Pass messages on from now on, and report so: the broker has accepted, and answered all subscriptions."""
        self.epoch += 1
        self.max_packet_size = max_packet_size
        self.connected = True
        OUTAGES.ended(self._address, self, connected=True)
        self.report(connected=True)
        if not self.opened.done():
            self.opened.set_result(None)

    def disconnect(self) -> bool:
        """Drop what is queued; return whether a connection is lost, which is to be reported."""
        was_connected, self.connected = self.connected, False
        self.outbox.clear()
        return was_connected and self.close_by is None

    def failed(self, why: LinkError) -> None:
        """Record that a connection is lost or could not be made."""
        OUTAGES.failed(self._address, self, why)

    def report(self, *, connected: bool) -> None:
        """Call the link's handler of connections."""
        if self._on_connection is None:
            return
        try:
            self._on_connection(connected)
        except Exception:  # noqa: BLE001 - foreign code on the link's thread
            _log.exception("on_connection(%s) failed", connected)
        if self.abandoned:  # it forked, and this is the child
            raise SystemExit


class ThreadedLink:
    """What `PahoLink` and `NatsLink` have in common.

    Args:
        address: The broker.
        client_id: Unique among all connections to the broker.
        will: What the thread will leave with the broker; it must be one that can be published.
        on_connection: Of the link.
        make_loop: Returns what a thread does for the subscriptions.
        limit: How the broker states the largest packet, and what to raise where it is too small.
        host: As of `LinkThread`.
    """

    def __init__(  # noqa: PLR0913 - what makes a link
        self,
        address: BrokerAddress,
        client_id: str,
        will: Message | None,
        on_connection: ConnectionHandler | None,
        *,
        make_loop: Callable[[LinkThread, Routes], EngineLoop],
        limit: tuple[str, str],
        host: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        if will is not None:
            encode_head(will)  # refused here, not on the link's thread
        self._address, self._client_id, self._on_connection, self._host = address, client_id, on_connection, host
        self._maker = Maker(f"the link {client_id!r} to {address}")
        self._make_loop = make_loop
        self._limit = limit
        self._routes = Routes()
        self._dropped = 0
        self._thread = self._make_thread()

    @property
    def connected(self) -> bool:
        """Whether a publication would be sent now."""
        return self._thread.connected

    @property
    def failure(self) -> LinkError | None:
        """Why the link gave up for good, before it was closed: refused, taken over, or a defect on its thread."""
        return self._thread.failure

    @property
    def max_packet_size(self) -> int | None:
        """The broker's Maximum Packet Size in bytes, or this side's if smaller; None while unknown."""
        return self._thread.max_packet_size

    @property
    def dropped(self) -> int:
        """Count the messages that were queued when the connection was lost, and were dropped."""
        return self._dropped + self._thread.outbox.dropped

    def _make_thread(self) -> LinkThread:
        return LinkThread(Outbox(), self._address, self._client_id, self._on_connection, host=self._host)

    def open(self, timeout: float = 10.0) -> None:
        """Connect, and wait until the broker has accepted; errors as of `Link`."""
        self._maker.check()
        if self._thread.is_alive:
            return
        self.close(0.0)  # joins a thread that gave up
        keep_freed_memory()
        self._dropped += self._thread.outbox.dropped
        self._thread = thread = self._make_thread()
        thread.start(self._make_loop(thread, self._routes), timeout)
        try:
            thread.opened.result(timeout)
        except FutureTimeoutError as error:
            self.close(0.0)
            raise BrokerUnreachable(f"no broker answers at {self._address} within {timeout:g} s") from error
        except LinkError:
            self.close(0.0)
            raise

    def publish(self, message: Message, on_ack: Ack = ignore_ack) -> Withdraw:
        """Send a message, as of `Link`; it is `NotConnected` too where 65,535 messages are queued already."""
        thread = self._thread
        epoch = thread.epoch  # before the look at `connected`
        if not thread.connected or thread.close_by is not None:
            self._maker.check()
            raise NotConnected(f"the link to {self._address} is down; nothing was sent")
        if len(thread.outbox) >= MOST_QUEUED:
            raise NotConnected(f"the link to {self._address} is behind by {MOST_QUEUED} messages")
        head = encode_head(message, version5=thread.version5)
        limit = thread.max_packet_size
        if limit is not None and head.size > limit:
            raise MessageTooLarge(
                f"topic {message.topic!r}: a packet of {head.size} bytes, and the {self._limit[0]} is {limit}; "
                f"encode it smaller, or raise {self._limit[1]}, to {DEFAULT_LIMITS.packet_bytes} at most"
            )
        outgoing = Outgoing(epoch, message, head, on_ack)
        thread.outbox.put(outgoing)
        thread.wake()
        return outgoing.withdraw

    def subscribe(
        self, topic_filter: str, handler: MessageHandler, *, share: str | None = None, retained: bool = True
    ) -> None:
        """Receive the messages of a filter, as of `Link`; `BadTopic` where it has a wildcard out of place."""
        self._maker.check()
        route = Route.make(topic_filter, share, handler, retained=retained)
        self._routes.put(route)
        try:
            self._ask(lambda session, answer: session.subscribe(route, answer))
        except NotAuthorized:
            self._routes.remove(route.subscription)
            raise

    def unsubscribe(self, topic_filter: str, *, share: str | None = None) -> None:
        """Stop receiving; messages that the broker has already sent may still come until this returns."""
        self._maker.check()
        name = subscription_name(topic_filter, share)
        self._ask(lambda session, answer: session.unsubscribe(name, answer))
        self._routes.remove(name)

    def close(self, timeout: float = 5.0) -> None:
        """Wait until all that was published is acknowledged, at most `timeout` seconds, then disconnect cleanly."""
        self._maker.check()
        if self._thread.is_current:
            raise ConfigError("a handler can't close its own link")
        self._thread.close(timeout)

    def cut(self) -> None:
        """Break the connection as a cut cable would; the link reconnects by itself. For fault injection."""
        self._maker.check()
        self._thread.outbox.ask(lambda session, answer: session.cut(answer))
        self._thread.wake()

    def _ask(self, question: Question) -> None:
        """Ask the broker on the link's thread, and wait for the answer while there is a connection.

        Without one there is nothing to ask: the next connection goes by the table of routes.
        """
        thread = self._thread
        answer = thread.outbox.ask(question)
        thread.wake()
        if not thread.connected or thread.is_current:
            return
        try:
            answer.result(_ANSWER_S)
        except FutureTimeoutError as error:
            if thread.connected:
                raise BrokerUnreachable(f"{self._address} has not answered within {_ANSWER_S:g} s") from error
