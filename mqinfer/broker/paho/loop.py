"""The thread that owns a connection, and the queue to it: it connects, sends, receives, until the link is closed.

- Only it calls paho. A publisher appends to a bounded queue and wakes it.
- Nothing is kept over a loss of the connection: what was queued or unacknowledged is dropped and counted, and the owner
  of a request sends it again when `on_connection` reports the new connection.
- A first connection that is closed before the broker has answered is made again within the time that `start` was given:
  brokers that start or end do that, and Mosquitto 2.0.21 may (broker/mosquitto/mosquitto.conf).
- Where the address has standbys, they are tried in turn; `standby` decides which is next, and when to leave one.
- A login that the first address refuses ends it: trying again would never stop. A connection that another one took
  over by its client id is made again like any lost one, with growing waits where that happens again and again: the ids
  are random, so it is either an attack, which must not end the link, or a client id that a program chose for two links.
- In a child that was forked off, it belongs to the parent: the child's copy sends and connects nothing.
"""

from __future__ import annotations

import asyncio
import logging
import selectors
import time
from asyncio import _get_running_loop as running_loop  # None outside of one, and no exception
from collections.abc import Sequence
from functools import partial
from multiprocessing.connection import wait

from mqinfer.broker.paho.connecting import Backoff, ConnectionClosed, Identity
from mqinfer.broker.paho.hosting import Hosting
from mqinfer.broker.paho.session import Session
from mqinfer.broker.paho.standby import Lookout, Returning, Turns
from mqinfer.broker.routes import Routes
from mqinfer.broker.threaded.link import LinkThread
from mqinfer.broker.waker import Waker
from mqinfer.logs import is_logged
from mqinfer.protocol.errors import BrokerUnreachable, LinkError, NotAuthorized, NotConnected

_log = logging.getLogger("mqinfer.broker")

_TICK_S = 1.0  # how often the connection is looked at
_HOLD_S = 0.001  # how long PUBACKs wait for a message that they can travel with
_LEAVE_S = 1.0  # how long a DISCONNECT may take to leave
_HANDSHAKE_S = 5.0  # how long a broker may take to accept, on a reconnect


class Loop:
    """What the thread of one link does, from its start to its end; `wake` alone may be called by others.

    Args:
        thread: The thread.
        identity: Who connects where.
        routes: What to subscribe to, and who receives the messages.
    """

    def __init__(self, thread: LinkThread, identity: Identity, routes: Routes) -> None:
        self._thread = thread
        self._identity = identity
        self._turns = Turns(identity)
        self._lookout: Lookout | None = None
        self._routes = routes
        self._waker = Waker().open()
        self._hosting: Hosting | None = None
        self._backoff = Backoff()
        self._looped = 0  # losses that came so fast that they were a loop

    def wake(self) -> None:
        """Have the thread, or that of the host, look at the outbox and at `close_by`."""
        hosting = self._hosting
        if hosting is not None and running_loop() is self._thread.host:
            hosting.soon()
        else:
            self._waker.wake()

    def keep_connected(self, timeout: float) -> LinkError | None:
        """Connect again and again until closed; return what makes another attempt useless."""
        try:
            return self._keep_connected(timeout)
        finally:
            if self._lookout:
                self._lookout.close()
            self._waker.close()

    def _keep_connected(self, timeout: float) -> LinkError | None:
        thread, open_by = self._thread, time.monotonic() + timeout
        timeout /= self._turns.left
        while thread.close_by is None:
            epoch = thread.epoch
            error = self._run_session(timeout)
            if error is None:
                _log.info("%s does not speak MQTT 5; trying 3.1.1", self._turns.current.address)
                thread.version5 = False
                continue
            seconds = 0.0 if isinstance(error, Returning) else self._backoff.next()
            if self._turns.has_standbys:
                thread.version5 = True  # the next broker may speak it
            if thread.epoch != epoch:
                self._turns.restart()
            elif final := self._final(error, open_by - time.monotonic() - seconds):
                return final
            self._pause(error, seconds)
            left = max(open_by - time.monotonic(), _HOLD_S) / self._turns.left
            timeout = _HANDSHAKE_S if thread.opened.done() else left
        return None

    def _final(self, error: LinkError, left_s: float) -> LinkError | None:
        """Pass on to the next address; return the error where that is useless or, for a first connection, too late."""
        if not self._turns.earlier and isinstance(error, NotAuthorized):
            return error
        error = self._turns.failed(error)
        if self._thread.opened.done():
            return None
        is_over = not self._turns.earlier and not isinstance(error, ConnectionClosed)
        return error if is_over or left_s <= 0 else None

    def _pause(self, error: LinkError, seconds: float) -> None:
        self._waker.drain()  # arms, before the look at `close_by`
        if self._thread.close_by is None:
            self._thread.failed(error)
            wait([self._waker.fileno()], seconds)

    def _run_session(self, timeout: float) -> LinkError | None:
        """Run one connection from dialling to its end; return why it ended, or None if MQTT 5 was refused."""
        session = Session(self._turns.current, self._routes, version5=self._thread.version5)
        try:
            session.dial(timeout)
            if session.alive:
                self._serve(session, time.monotonic() + timeout)
        except LinkError as error:
            return error
        except (OSError, MemoryError) as error:  # no descriptor is free, say: later there may be one
            return BrokerUnreachable(f"the connection to {self._turns.current.address} failed: {error!r}")
        finally:
            if not self._thread.abandoned:
                self._disconnected(session)
        if session.version_refused and self._thread.version5:
            return None
        return session.error or NotConnected("the link was closed")

    def _serve(self, session: Session, ready_by: float) -> None:
        host = self._thread.host
        if host is not None and self._serve_hosted(host, session, ready_by):
            return
        with selectors.DefaultSelector() as selector:
            selector.register(self._waker, selectors.EVENT_READ)
            selector.register(session, selectors.EVENT_READ)
            watched = selectors.EVENT_READ
            while session.alive:
                events = selector.select(self._time_to_sleep(session))
                self._take_turn(session, ready_by, [key.fileobj for key, _ in events])
                watched = _watch(selector, session, watched)

    def _serve_hosted(self, host: asyncio.AbstractEventLoop, session: Session, ready_by: float) -> bool:
        """Wait while the host's thread serves a connection; return False where it was closed before the end."""
        turn = partial(self._take_turn, session, ready_by)
        self._hosting = hosting = Hosting(host, session, self._waker, turn, partial(self._time_to_sleep, session))
        try:
            return hosting.run()
        finally:
            self._hosting = None

    def _take_turn(self, session: Session, ready_by: float, ready: Sequence[object]) -> None:
        self._turn(session, ready)
        if not ready and session.client.holds_acks:  # they have waited long enough
            session.client.loop_write()
        if not self._thread.connected:
            self._await_readiness(session, ready_by)
        elif self._lookout:
            self._return_if_found(self._lookout)
        if self._thread.close_by is not None:
            self._try_to_leave(session, self._thread.close_by)

    def _time_to_sleep(self, session: Session) -> float:
        self._waker.armed = True
        if self._thread.outbox.can_empty(session):
            return 0.0
        if session.client.holds_acks:
            return _HOLD_S
        close_by = self._thread.close_by
        if close_by is None:
            return _TICK_S
        now = time.monotonic()
        deadline = close_by if now < close_by else close_by + _LEAVE_S
        return max(0.0, min(_TICK_S, deadline - now))

    def _turn(self, session: Session, ready: Sequence[object]) -> None:
        """Read, then send what the handlers and the other threads have queued, all of it in one go."""
        if self._waker in ready:
            self._waker.drain()
        self._waker.armed = False
        if session in ready:
            session.client.read()
        if self._thread.abandoned:  # a handler forked, and this is the child
            raise SystemExit
        self._thread.outbox.empty_into(session, self._thread.epoch)
        session.write()
        session.tick()

    def _await_readiness(self, session: Session, ready_by: float) -> None:
        if session.ready:
            self._thread.connect(session.max_packet_size)
            self._look_for_earlier(self._turns.earlier)
        elif session.alive and time.monotonic() > ready_by:
            raise BrokerUnreachable(
                f"{self._turns.current.address} accepted the connection but has not answered; is it an MQTT broker?"
            )

    def _look_for_earlier(self, earlier: Sequence[Identity]) -> None:
        """Look at the addresses before that of this connection, if there are any."""
        if self._lookout:
            self._lookout.close()
            self._lookout = None
        if earlier:
            first, standby = earlier[0].address, self._turns.current.address
            _log.warning("connected to the standby %s; going back when %s answers", standby, first)
            self._lookout = Lookout(earlier, self._waker.wake)

    def _return_if_found(self, lookout: Lookout) -> None:
        """End the connection to a standby, without a DISCONNECT: who stays there receives this link's will."""
        if lookout.found and self._thread.close_by is None:
            raise Returning(f"{lookout.found} answers again, so {self._turns.current.address} was left")

    def _try_to_leave(self, session: Session, close_by: float) -> None:
        now = time.monotonic()
        if now > close_by + _LEAVE_S:
            session.end()
        elif now >= close_by or not (session.acks or session.client.want_write() or self._thread.outbox):
            session.leave()

    def _disconnected(self, session: Session) -> None:
        is_loss = self._thread.disconnect()
        session.end()
        if self._lookout:
            self._lookout.stop()
        if not is_loss:
            return
        is_loop = self._backoff.lost(time.monotonic())  # Mosquitto 2.0 reports no takeover to the client
        self._looped += is_loop
        if is_loop and is_logged(self._looped):
            _log.warning(
                "%s ends one connection after the other; does another program use the client id %s?",
                self._turns.current.address,
                self._identity.client_id,
            )
        self._thread.report(connected=False)


def _watch(selector: selectors.BaseSelector, session: Session, watched: int) -> int:
    """Make `select` report a socket that accepts bytes again, while some wait; seldom, since it is a system call."""
    wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if session.client.want_write() else 0)
    if wanted != watched and session.alive:
        selector.modify(session, wanted)
    return wanted
