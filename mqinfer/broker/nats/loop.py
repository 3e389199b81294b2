"""The thread of a NATS link, and the loop on it, which keeps one connection after the other."""

from __future__ import annotations

import asyncio
import logging
import os
import selectors
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from mqinfer.broker.address import BrokerAddress
from mqinfer.broker.link import ConnectionHandler, Message
from mqinfer.broker.nats.session import NatsSession
from mqinfer.broker.paho.connecting import Backoff
from mqinfer.broker.process import abandon_in_children, end_thread_in_child
from mqinfer.broker.routes import Routes
from mqinfer.broker.threaded.link import Outbox, Outgoing, Question
from mqinfer.broker.threaded.outages import OUTAGES
from mqinfer.protocol.errors import BrokerUnreachable, LinkError, NotAuthorized, NotConnected

_log = logging.getLogger("mqinfer.broker")

_LOOK_S = 0.005
"""Interval in which a link that closes looks whether everything is acknowledged."""


class NatsLoop:
    """The thread of one link; attributes as of `LinkThread`.

    Args:
        address: The server, and those that stand by.
        client_id: Of the link.
        will: Of the link.
        routes: Its subscriptions.
        on_connection: Its handler.
        tls: Of its connections, made of the address's options.
    """

    def __init__(  # noqa: PLR0913 - what makes a link
        self,
        address: BrokerAddress,
        client_id: str,
        will: Message | None,
        routes: Routes,
        on_connection: ConnectionHandler | None,
        *,
        tls: ssl.SSLContext | None,
    ) -> None:
        self.connected = False
        self.close_by: float | None = None
        self.epoch = 0
        self.failure: LinkError | None = None
        self.max_packet_size: int | None = None
        self.opened: Future[None] = Future()
        self.outbox = Outbox()
        self.version5 = True
        self._address, self._will, self._on_connection = address, will, on_connection
        self._make_session: Callable[[], NatsSession] = lambda: NatsSession(
            client_id, routes, self.outbox, self._empty, tls
        )
        self._session: NatsSession | None = None
        self._places = deque(address.each)
        self._is_cluster = False
        self._is_awake = False
        self._abandoned = False
        self._selector = selectors.EpollSelector()
        self._closing = asyncio.Event()
        self._loop = asyncio.SelectorEventLoop(self._selector)
        self._thread = threading.Thread(target=self._run, name=f"mqinfer-nats-{client_id}", daemon=True)
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

    def start(self, timeout: float) -> None:
        """Start; attempts to connect go on until it is closed, so `timeout` is of no effect."""
        del timeout
        self._thread.start()

    def is_alive(self) -> bool:
        """Return whether the thread runs."""
        return self._thread.is_alive()

    def is_current(self) -> bool:
        """Return whether the caller runs on the thread."""
        return self._thread is threading.current_thread()

    def send(self, outgoing: Outgoing) -> None:
        """Have a message sent."""
        self.outbox.put(outgoing)
        self._wake()

    def ask(self, question: Question) -> Future[None]:
        """Ask the server for something; return where the answer will be."""
        answer = self.outbox.ask(question)
        self._wake()
        return answer

    def close(self, timeout: float) -> None:
        """Wait until all is acknowledged, at most `timeout` seconds, disconnect, and join the thread."""
        self.close_by = time.monotonic() + timeout
        self._call(self._closing.set)
        self._thread.join()

    def _wake(self) -> None:
        if not self._is_awake:
            self._is_awake = True
            self._call(self._empty)

    def _call(self, call: Callable[[], object]) -> None:
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(call)

    # What follows runs on the thread.

    def _run(self) -> None:
        self._loop.set_default_executor(ThreadPoolExecutor(1, thread_name_prefix="mqinfer-nats-names"))
        self._loop.set_exception_handler(lambda _, what: _log.debug("nats-py: %s", what))
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
        self.outbox.clear()
        OUTAGES.ended(str(self._address), self, connected=False)
        if self.close_by is None:
            self.failure = failure
        if not self.opened.done():
            self.opened.set_exception(failure)
        elif self.failure:
            self._report(connected=False)

    async def _keep_connected(self) -> LinkError | None:
        """Connect again and again until closed; return what makes another attempt useless."""
        backoff, closing = Backoff(), asyncio.ensure_future(self._closing.wait())
        while not closing.done():
            for address in tuple(self._places):
                epoch = self.epoch
                error = await self._serve(address, closing)
                if isinstance(error, NotAuthorized):
                    _log.log(logging.CRITICAL if self.opened.done() else logging.DEBUG, "giving up: %s", error)
                    return error
                if closing.done():
                    return None
                OUTAGES.failed(str(self._address), self, error)
                if self.epoch != epoch:
                    backoff = Backoff()
                    if self._is_cluster:  # all servers are as good: what has just failed may not answer for long
                        self._places.rotate(-1 - self._places.index(address))
                    break
            if not self.opened.done():
                return error
            await asyncio.wait((closing,), timeout=backoff.next())
        return None

    async def _serve(self, address: BrokerAddress, closing: asyncio.Future[Any]) -> LinkError:
        """Keep one connection from dialling to its end; return why it ended."""
        from nats.errors import Error

        session = self._make_session()

        def leave(_: object) -> None:
            if not session.accepted:
                session.give_up(NotConnected("the link was closed"))

        closing.add_done_callback(leave)
        try:
            await session.until_lost(session.open(address, self._will, is_return=self.epoch > 0))
            self._connected(session)
            await asyncio.wait((session.lost, closing), return_when=asyncio.FIRST_COMPLETED)
            if not session.lost.done():
                await self._finish(session)
                await session.until_lost(session.end())
        except LinkError as error:
            session.give_up(error)
        except (Error, OSError) as error:
            session.give_up(BrokerUnreachable(f"the connection to {address} failed: {error!r}"))
        finally:
            if not self._abandoned:
                await self._disconnected(session)
                for task in asyncio.all_tasks() - {asyncio.current_task(), closing}:  # nats-py forgets some
                    task.cancel()
        return session.lost.result() if session.lost.done() else NotConnected("the link was closed")

    def _connected(self, session: NatsSession) -> None:
        self.epoch += 1
        self.max_packet_size = session.max_payload
        self._is_cluster = session.is_cluster
        self._session = session
        self.connected = True
        OUTAGES.ended(str(self._address), self, connected=True)
        self._report(connected=True)
        if not self.opened.done():
            self.opened.set_result(None)

    async def _disconnected(self, session: NatsSession) -> None:
        was_connected, self.connected, self._session = self.connected, False, None
        await session.end()
        self.outbox.clear()
        if was_connected and self.close_by is None:
            self._report(connected=False)

    def _empty(self) -> None:
        self._is_awake = False  # before the look at the outbox
        if self._session is None:
            self.outbox.clear()
        else:
            self.outbox.empty_into(self._session, self.epoch)

    async def _finish(self, session: NatsSession) -> None:
        while (len(self.outbox) or not session.settled) and not session.lost.done():
            if time.monotonic() > (self.close_by or 0.0):
                break
            await asyncio.sleep(_LOOK_S)

    def _report(self, *, connected: bool) -> None:
        if self._on_connection is not None:
            try:
                self._on_connection(connected)
            except Exception:  # noqa: BLE001 - foreign code on the link's thread
                _log.exception("on_connection(%s) failed", connected)
