"""A link over MQTT, with paho-mqtt: one thread owns the connection, all others hand their messages to it.

The rules of the thread:

- Only it calls paho. A publisher appends to a bounded queue; and while the link's thread sleeps, the publisher writes
  to the socket itself, which saves a switch of threads. The lock around writing is never held while a handler runs.
- Nothing is kept over a loss of the connection: what was queued or unacknowledged is dropped and counted, and whoever
  owns a request sends it again when `on_connection` tells of the new connection.
- A refused login or a name that another connection has taken over ends it: trying again would never stop.
"""

from __future__ import annotations

import logging
import selectors
import threading
import time
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from multiprocessing.connection import wait

from mqinfer.broker.address import BrokerAddress
from mqinfer.broker.backoff import Backoff
from mqinfer.broker.link import Ack, ConnectionHandler, Message, MessageHandler, ignore_ack
from mqinfer.broker.malloc import keep_freed_memory
from mqinfer.broker.packets import encode_head, packet_size
from mqinfer.broker.paho.client import Identity, PlainClient, make_tls_context
from mqinfer.broker.paho.outbox import MOST_WAITING, Outbox, Outgoing, Question
from mqinfer.broker.paho.session import Session
from mqinfer.broker.paho.sockets import FastClient
from mqinfer.broker.routes import Route, Routes, subscription_name
from mqinfer.broker.waker import Waker
from mqinfer.protocol.errors import (
    BrokerUnreachable,
    ConfigError,
    LinkError,
    MessageTooLarge,
    NotAuthorized,
    NotConnected,
)
from mqinfer.protocol.limits import DEFAULT_LIMITS

__all__ = ["PahoLink"]

_log = logging.getLogger("mqinfer.broker")

_TICK_S = 1.0  # how often the keep-alive is looked at
_ANSWER_S = 10.0  # how long a SUBACK may take
_HOLD_S = 0.001  # how long PUBACKs wait for a message that they can travel with
_LEAVE_S = 1.0  # how long a DISCONNECT may take to leave
_HANDSHAKE_S = 5.0  # how long a broker may take to accept, on a reconnect


class PahoLink:
    """A `Link` to an MQTT broker: MQTT 5, or 3.1.1 where the broker refuses it.

    A payload is not copied: whoever publishes a `bytearray` must leave it alone until it is acknowledged.

    Args:
        address: The broker.
        client_id: Unique among all connections to the broker.
        will: Published by the broker when the link is lost without `close`.
        on_connection: Told of each connection, once all subscriptions stand again, of each loss, and of the end, with
            `failure` set.
        client: The paho client to use; None for the one that fits.
    """

    def __init__(
        self,
        address: BrokerAddress,
        *,
        client_id: str,
        will: Message | None = None,
        on_connection: ConnectionHandler | None = None,
        client: type[PlainClient | FastClient] | None = None,
    ) -> None:
        if will is not None:
            encode_head(will)  # a will that can't be published is refused here, not on the link's thread
        tls = None if address.tls is None else make_tls_context(address.tls)
        self._identity = Identity(address, client_id, will, tls=tls)
        self._on_connection = on_connection
        self._client = client
        self._routes = Routes()
        self._outbox = Outbox()
        self._session: Session | None = None
        self._writing = threading.Lock()
        self._waker = Waker()
        self._backoff = Backoff()
        self._thread: threading.Thread | None = None
        self._opened: Future[None] = Future()
        self._close_by: float | None = None
        self._connected = False
        self._epoch = 0
        self._version5 = True
        self._max_packet_size: int | None = None
        self._failure: LinkError | None = None

    @property
    def connected(self) -> bool:
        """Whether a publication would be sent now."""
        return self._connected

    @property
    def failure(self) -> LinkError | None:
        """Why the link has given up for good, before it was closed: refused, taken over, or its thread died."""
        return self._failure

    @property
    def max_packet_size(self) -> int | None:
        """The broker's Maximum Packet Size in bytes, or this side's where that is smaller; None while unknown."""
        return self._max_packet_size

    @property
    def dropped(self) -> int:
        """Messages that were queued when the connection was lost, and were dropped."""
        return self._outbox.dropped

    def open(self, timeout: float = 10.0) -> None:
        """Connect, and wait until the broker has accepted.

        Args:
            timeout: In seconds.

        Raises:
            BrokerUnreachable: Nobody answered in time, or nobody listens there.
            NotAuthorized: The broker refused the credentials.
        """
        if self._thread is not None and self._thread.is_alive():
            return
        self.close(0.0)  # what is left of a thread that gave up
        keep_freed_memory()
        self._opened, self._close_by, self._failure = Future(), None, None
        self._backoff.reset()
        thread = threading.Thread(
            target=self._run, args=(timeout,), name=f"mqinfer-link-{self._identity.client_id}", daemon=True
        )
        self._thread = thread
        self._waker.open()
        thread.start()
        try:
            self._opened.result(timeout)
        except FutureTimeoutError as error:
            self.close(0.0)
            raise BrokerUnreachable(f"no broker answers at {self._identity.address} within {timeout:g} s") from error
        except LinkError:
            self.close(0.0)
            raise

    def publish(self, message: Message, on_ack: Ack = ignore_ack) -> None:
        """Send a message; returns before it has left.

        Args:
            message: What to send.
            on_ack: Gets the PUBACK's reason code, on the link's thread.

        Raises:
            NotConnected: The link is down, or 65,535 messages wait already; the message is not kept.
            MessageTooLarge: The message is above `max_packet_size`; it is not sent.
        """
        epoch = self._epoch
        if not self._connected or self._close_by is not None:
            raise NotConnected(f"the link to {self._identity.address} is down; nothing was sent")
        if len(self._outbox) >= MOST_WAITING:
            raise NotConnected(f"the link to {self._identity.address} is behind by {MOST_WAITING} messages")
        head = encode_head(message, version5=self._version5)
        limit = self._max_packet_size
        if limit is not None and (size := packet_size(message, head)) > limit:
            raise MessageTooLarge(
                f"topic {message.topic!r}: a packet of {size} bytes, and the Maximum Packet Size is {limit}; encode it "
                f"smaller, or raise max_packet_size in mosquitto.conf, to {DEFAULT_LIMITS.packet_bytes} at most"
            )
        outgoing = Outgoing(epoch, message, head, on_ack)
        if not self._send_at_once(outgoing):
            self._outbox.put(outgoing)
            self._waker.wake()

    def subscribe(self, topic_filter: str, handler: MessageHandler, *, share: str | None = None) -> None:
        """Receive the messages of a filter, again after each reconnect; waits for the broker's word while connected.

        Args:
            topic_filter: With `+` and `#` if need be.
            handler: Gets each message, on the link's thread.
            share: Name of the group whose members compete for the messages.

        Raises:
            BadTopic: The filter has a wildcard out of place.
            NotAuthorized: The broker refused the subscription.
        """
        route = Route.make(topic_filter, share, handler)
        self._routes.put(route)
        try:
            self._ask(lambda session: session.subscribe(route.subscription))
        except NotAuthorized:
            self._routes.remove(route.subscription)
            raise

    def unsubscribe(self, topic_filter: str, *, share: str | None = None) -> None:
        """Stop receiving; messages that the broker has already sent may still come until this returns."""
        name = subscription_name(topic_filter, share)
        self._ask(lambda session: session.unsubscribe(name))
        self._routes.remove(name)

    def close(self, timeout: float = 5.0) -> None:
        """Wait until all that was published is acknowledged, at most `timeout` seconds, then disconnect cleanly."""
        thread = self._thread
        if thread is None:
            return
        if thread is threading.current_thread():
            raise ConfigError("a handler may not close its own link")
        self._close_by = time.monotonic() + timeout
        self._waker.wake()
        thread.join()
        self._thread = None
        self._waker.close()

    def cut(self) -> None:
        """Break the connection as a cut cable would; the link heals by itself. For fault injection."""
        self._outbox.ask(Session.cut)
        self._waker.wake()

    def _ask(self, question: Question) -> None:
        """Let the link's thread ask the broker, and wait for the answer where there is a connection to wait on.

        Without one there is nothing to ask: the next connection goes by the table of routes.
        """
        thread = self._thread
        if thread is None:
            return
        answer = self._outbox.ask(question)
        if not self._connected or thread is threading.current_thread():
            return
        self._waker.wake()
        try:
            answer.result(_ANSWER_S)
        except FutureTimeoutError as error:
            if self._connected:
                raise BrokerUnreachable(f"{self._identity.address} has not answered within {_ANSWER_S:g} s") from error

    def _send_at_once(self, outgoing: Outgoing) -> bool:
        """Write to the socket on the publisher's thread, if the link's sleeps and nothing is in front."""
        if self._outbox or not self._waker.is_armed or not self._writing.acquire(blocking=False):
            return False
        try:
            session = self._session
            if session is None or outgoing.epoch != self._epoch or self._outbox:
                return False
            if not (session.can_write_at_once and session.has_room):
                return False
            session.send(outgoing.message, outgoing.head, outgoing.on_ack)
            session.write_at_once()
            if session.wants_write:
                self._waker.wake()
            return True
        finally:
            self._writing.release()

    # What follows runs on the link's thread.

    def _run(self, timeout: float) -> None:
        failure: LinkError = NotConnected("the link was closed")
        try:
            failure = self._keep_connected(timeout) or failure
        except Exception as error:  # noqa: BLE001 - the root of the thread; `connected` and `on_connection` tell
            _log.critical("the thread of the link to %s died", self._identity.address, exc_info=True)
            failure = BrokerUnreachable(f"the link to {self._identity.address} failed: {error}")
        finally:
            self._connected = False
            if self._close_by is None:
                self._failure = failure
            if not self._opened.done():
                self._opened.set_exception(failure)
            elif self._failure:
                self._tell(connected=False)

    def _keep_connected(self, timeout: float) -> LinkError | None:
        """Connect again and again until closed; returns what makes another attempt useless."""
        while self._close_by is None:
            session = Session(self._identity, self._routes, version5=self._version5, client=self._client)
            error = self._live(session, timeout)
            if session.version_refused and self._version5:
                _log.info("%s does not speak MQTT 5; trying 3.1.1", self._identity.address)
                self._version5 = False
                continue
            if not self._opened.done() or isinstance(error, NotAuthorized):
                _log.log(logging.CRITICAL if self._opened.done() else logging.DEBUG, "giving up: %s", error)
                return error
            self._pause(error)
            timeout = _HANDSHAKE_S
        return None

    def _pause(self, error: LinkError) -> None:
        self._waker.drain()  # arms, before the look at `_close_by`
        if self._close_by is None:
            seconds = self._backoff.next()
            _log.warning("%s; next attempt in %.1f s", error, seconds)
            wait([self._waker.fileno()], seconds)

    def _live(self, session: Session, timeout: float) -> LinkError:
        """Serve one connection from dialling to its end; returns why it ended."""
        try:
            session.dial(timeout)
            if session.alive:
                self._serve(session, time.monotonic() + timeout)
        except LinkError as error:
            return error
        finally:
            self._fall(session)
        return session.error or NotConnected("the link was closed")

    def _serve(self, session: Session, ready_by: float) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._waker, selectors.EVENT_READ)
            selector.register(session, selectors.EVENT_READ)
            watched = selectors.EVENT_READ
            while session.alive:
                events = selector.select(self._time_to_sleep(session))
                self._turn(session, [key.fileobj for key, _ in events])
                if not events:
                    with self._writing:
                        session.flush()
                if not self._connected:
                    self._await_readiness(session, ready_by)
                if self._close_by is not None:
                    self._try_to_leave(session, self._close_by)
                watched = _watch(selector, session, watched)

    def _time_to_sleep(self, session: Session) -> float:
        self._waker.arm()
        if self._outbox.can_empty(session):
            return 0.0
        if session.holds_acks:
            return _HOLD_S
        if self._close_by is None:
            return _TICK_S
        now = time.monotonic()
        deadline = self._close_by if now < self._close_by else self._close_by + _LEAVE_S
        return max(0.0, min(_TICK_S, deadline - now))

    def _turn(self, session: Session, ready: list[object]) -> None:
        """Read, then send what the handlers and the other threads have queued, all of it in one go."""
        if self._waker in ready:
            self._waker.drain()
        self._waker.disarm()
        if session in ready:
            session.read()
        with self._writing:
            self._outbox.empty_into(session, self._epoch)
            session.write()
            session.tick()

    def _await_readiness(self, session: Session, ready_by: float) -> None:
        if session.ready:
            self._rise(session)
        elif session.alive and time.monotonic() > ready_by:
            raise BrokerUnreachable(
                f"{self._identity.address} took the connection but has not answered; is it an MQTT broker?"
            )

    def _try_to_leave(self, session: Session, close_by: float) -> None:
        now = time.monotonic()
        if now > close_by + _LEAVE_S:
            session.end()
        elif now >= close_by or (session.is_drained and not self._outbox):
            session.leave()

    def _rise(self, session: Session) -> None:
        self._epoch += 1
        self._max_packet_size = session.max_packet_size
        self._session = session
        self._connected = True
        self._tell(connected=True)
        if not self._opened.done():
            self._opened.set_result(None)

    def _fall(self, session: Session) -> None:
        was_connected, self._connected = self._connected, False
        with self._writing:
            self._session = None
        session.end()
        self._outbox.clear()
        if not was_connected or self._close_by is not None:
            return
        if self._backoff.lost(time.monotonic()):  # Mosquitto 2.0 does not tell a client that it was taken over
            _log.warning(
                "%s ends one connection after the other; does another program use the client id %s?",
                self._identity.address,
                self._identity.client_id,
            )
        self._tell(connected=False)

    def _tell(self, *, connected: bool) -> None:
        if self._on_connection is None:
            return
        try:
            self._on_connection(connected)
        except Exception:  # noqa: BLE001 - foreign code on the link's thread
            _log.exception("on_connection(%s) failed", connected)


def _watch(selector: selectors.BaseSelector, session: Session, watched: int) -> int:
    """Let `select` tell of a socket that takes bytes again, while some wait; seldom changed, it is a system call."""
    wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if session.wants_write else 0)
    if wanted != watched and session.alive:
        selector.modify(session, wanted)
    return wanted
