"""The thread of a NATS link, and the loop on it, which keeps one connection after the other."""

from __future__ import annotations

import asyncio
import logging
import os
import selectors
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from mqinfer.broker.address import BrokerAddress
from mqinfer.broker.link import ConnectionHandler, Message
from mqinfer.broker.nats.session import NatsSession
from mqinfer.broker.outages import OUTAGES
from mqinfer.broker.paho.connecting import Backoff
from mqinfer.broker.paho.loop import Outgoing
from mqinfer.broker.process import abandon_in_children, end_thread_in_child
from mqinfer.broker.routes import Routes
from mqinfer.protocol.errors import BrokerUnreachable, LinkError, NotAuthorized, NotConnected

_log = logging.getLogger("mqinfer.broker")

_LOOK_S = 0.005
"""Interval in which a link that closes looks whether everything is acknowledged."""
Work = Callable[[NatsSession], Coroutine[Any, Any, None]]


class NatsLoop:
    """From one `open` of a link to its `close`.

    Args:
        address: The server, and those that stand by.
        client_id: Of the link.
        will: Of the link.
        routes: Its subscriptions.
        on_connection: Its handler.

    Attributes:
        connected: Whether a publication would be sent now.
        epoch: Number of the connection.
        failure: Why it has ended for good, before it was closed.
        max_packet_size: The server's `max_payload`.
        reason: Why the last attempt to connect failed.
        opened: Done with the first connection, or with what makes one impossible.
        outbox: What is to be sent.
    """

    def __init__(
        self,
        address: BrokerAddress,
        client_id: str,
        will: Message | None,
        routes: Routes,
        on_connection: ConnectionHandler | None,
    ) -> None:
        self.connected = False
        self.epoch = 0
        self.failure: LinkError | None = None
        self.max_packet_size: int | None = None
        self.reason: LinkError | None = None
        self.opened: Future[None] = Future()
        self.outbox: deque[Outgoing] = deque()
        self._dropped = 0
        self._address, self._client_id, self._will, self._routes = address, client_id, will, routes
        self._on_connection = on_connection
        self._session: NatsSession | None = None
        self._is_awake = False
        self._close_by: float | None = None
        self._abandoned = False
        self._selector = selectors.EpollSelector()
        self._changed, self._closing = asyncio.Event(), asyncio.Event()
        self._thread = threading.Thread(target=self._run, name=f"mqinfer-nats-{client_id}", daemon=True)
        self._loop = asyncio.SelectorEventLoop(self._selector)
        abandon_in_children(self)

    def abandon(self) -> None:
        """Give up this copy, in a child that was forked off: its descriptors lead nowhere from now on."""
        self.connected, self._abandoned = False, True
        if self._loop.is_closed():
            return
        nowhere = os.open(os.devnull, os.O_RDWR)
        for descriptor in (*(key.fd for key in self._selector.get_map().values()), self._selector.fileno()):
            os.dup2(nowhere, descriptor)
        os.close(nowhere)

    @property
    def dropped(self) -> int:
        """Count what was dropped."""
        session = self._session
        return self._dropped + (session.dropped if session else 0)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def is_alive(self) -> bool:
        """Return whether the thread runs."""
        return self._thread.is_alive()

    def is_current(self) -> bool:
        """Return whether the caller runs on the thread."""
        return self._thread is threading.current_thread()

    def send(self, outgoing: Outgoing) -> None:
        """Have a message sent."""
        self.outbox.append(outgoing)
        if not self._is_awake:
            self._is_awake = True
            self._call(self._changed.set)

    def ask(self, work: Work) -> Future[None]:
        """Have something done with the connection; without one it is done at once."""
        return asyncio.run_coroutine_threadsafe(self._answer(work), self._loop)

    def close(self, timeout: float) -> None:
        """Wait until all is acknowledged, at most `timeout` seconds, disconnect, and join the thread."""
        self._close_by = time.monotonic() + timeout
        self.connected = False
        self._call(self._closing.set)
        self._thread.join()

    def cut(self) -> None:
        """Break the connection."""

        def lose() -> None:
            if self._session is not None:
                self._session.give_up(NotConnected("the connection was cut"))

        self._call(lose)

    def _call(self, call: Callable[[], None]) -> None:
        if self._thread.is_alive():
            try:
                self._loop.call_soon_threadsafe(call)
            except RuntimeError:  # it has ended meanwhile
                _log.debug("link %s: its loop has ended", self._client_id)

    # What follows runs on the thread.

    def _run(self) -> None:
        self._loop.set_default_executor(ThreadPoolExecutor(1, thread_name_prefix="mqinfer-nats-names"))
        failure: LinkError = NotConnected("the link was closed")
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                failure = runner.run(self._keep_connected()) or failure
        except BaseException as error:  # noqa: BLE001 - the root of the thread; `failure` and `on_connection` report it
            if self._abandoned:
                end_thread_in_child()
            _log.critical("the thread of the link to %s failed", self._address, exc_info=True)
            failure = BrokerUnreachable(f"the link to {self._address} failed: {error!r}")
        self.connected = False
        OUTAGES.ended(str(self._address), self, connected=False)
        if self._close_by is None:
            self.failure = failure
        if not self.opened.done():
            self.opened.set_exception(failure)
        elif self.failure:
            self._report(connected=False)

    async def _keep_connected(self) -> LinkError | None:
        """Connect again and again until closed; return what makes another attempt useless."""
        backoff, closing = Backoff(), asyncio.ensure_future(self._closing.wait())
        while not self._closing.is_set():
            for address in self._address.each:
                epoch = self.epoch
                error = await self._serve(address, closing)
                if self._closing.is_set():
                    break
                if isinstance(error, NotAuthorized):
                    _log.log(logging.CRITICAL if self.opened.done() else logging.DEBUG, "giving up: %s", error)
                    return error
                self.reason = error
                OUTAGES.failed(str(self._address), self, error)
                if self.epoch != epoch:
                    backoff = Backoff()
                    break
            await asyncio.wait((closing,), timeout=backoff.next())
        return None

    async def _serve(self, address: BrokerAddress, closing: asyncio.Future[Any]) -> LinkError:
        """Keep one connection from dialling to its end; return why it ended."""
        from nats.errors import Error

        session = NatsSession(self._client_id, self._routes)
        try:
            await session.until_lost(session.open(address, self._will, is_return=self.epoch > 0))
            self._connected(session)
            session.spawn(self._send(session))
            await asyncio.wait((session.lost, closing), return_when=asyncio.FIRST_COMPLETED)
            if not session.lost.done():
                await self._finish(session)
            return session.lost.result() if session.lost.done() else NotConnected("the link was closed")
        except LinkError as error:
            return error
        except (Error, OSError) as error:
            return BrokerUnreachable(f"the connection to {address} failed: {error!r}")
        finally:
            if not self._abandoned:
                await self._disconnected(session)

    def _connected(self, session: NatsSession) -> None:
        self.epoch += 1
        self.max_packet_size = session.max_payload
        self._session = session
        self.connected = self._close_by is None
        OUTAGES.ended(str(self._address), self, connected=True)
        self._report(connected=True)
        if not self.opened.done():
            self.opened.set_result(None)

    async def _disconnected(self, session: NatsSession) -> None:
        was_connected, self._session = self._session is not None, None
        self.connected = False
        self._dropped += len(self.outbox) + session.dropped
        self.outbox.clear()
        await session.end()
        if was_connected and self._close_by is None:
            self._report(connected=False)

    async def _send(self, session: NatsSession) -> None:
        while True:
            self._changed.clear()
            self._is_awake = False  # before the look at the outbox
            while self.outbox:
                outgoing = self.outbox.popleft()
                if outgoing.epoch == self.epoch:
                    await session.send(outgoing)
                else:
                    self._dropped += 1
            await self._changed.wait()

    async def _finish(self, session: NatsSession) -> None:
        while (self.outbox or not session.settled) and not session.lost.done():
            if time.monotonic() > (self._close_by or 0.0):
                break
            await asyncio.sleep(_LOOK_S)
        await session.until_lost(session.close())

    async def _answer(self, work: Work) -> None:
        session = self._session
        if session is None:
            return
        try:
            await session.until_lost(work(session))
        except NotAuthorized:
            raise
        except LinkError as error:  # the next connection goes by the table of routes
            _log.debug("link %s: %s", self._client_id, error)

    def _report(self, *, connected: bool) -> None:
        if self._on_connection is not None:
            try:
                self._on_connection(connected)
            except Exception:  # noqa: BLE001 - foreign code on the link's thread
                _log.exception("link %s: the handler of connections failed", self._client_id)
