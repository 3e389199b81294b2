"""The thread of a NATS link, and the loop on it, which keeps one connection after the other."""

from __future__ import annotations

import asyncio
import logging
import os
import selectors
import ssl
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from mqinfer.broker.address import BrokerAddress
from mqinfer.broker.link import Message
from mqinfer.broker.nats.session import NatsSession
from mqinfer.broker.paho.connecting import Backoff
from mqinfer.broker.process import abandon_in_children
from mqinfer.broker.routes import Routes
from mqinfer.broker.threaded.link import LinkThread
from mqinfer.protocol.errors import BrokerUnreachable, LinkError, NotAuthorized, NotConnected

_log = logging.getLogger("mqinfer.broker")

_LOOK_S = 0.005
"""Interval in which a link that closes looks whether everything is acknowledged."""


class NatsLoop:
    """What the thread of one link does, from its start to its end; `wake` alone may be called by others.

    Args:
        thread: The thread.
        address: The server, and those that stand by.
        client_id: Of the link.
        will: Of the link.
        routes: Its subscriptions.
        tls: Of its connections, made of the address's options.
    """

    def __init__(  # noqa: PLR0913 - what makes a link
        self,
        thread: LinkThread,
        address: BrokerAddress,
        client_id: str,
        will: Message | None,
        routes: Routes,
        *,
        tls: ssl.SSLContext | None,
    ) -> None:
        self._thread, self._will = thread, will
        self._make_session: Callable[[], NatsSession] = lambda: NatsSession(
            client_id, routes, thread.outbox, self._empty, tls
        )
        self._session: NatsSession | None = None
        self._places = deque(address.each)
        self._is_cluster = False
        self._is_awake = False
        self._selector = selectors.EpollSelector()
        self._closing = asyncio.Event()
        self._loop = asyncio.SelectorEventLoop(self._selector)
        abandon_in_children(self)

    def abandon(self) -> None:
        """Give up this copy, in a child that was forked off: its descriptors lead nowhere from now on."""
        if self._loop.is_closed():
            return
        nowhere = os.open(os.devnull, os.O_RDWR)
        for descriptor in (*(key.fd for key in self._selector.get_map().values()), self._selector.fileno()):
            os.dup2(nowhere, descriptor)
        os.close(nowhere)

    def wake(self) -> None:
        """Have the thread look at the outbox and at `close_by`."""
        if not self._is_awake:
            self._is_awake = True
            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._empty)

    def keep_connected(self, timeout: float) -> LinkError | None:
        """Connect again and again until closed, however long that takes; return what makes another attempt useless."""
        del timeout
        self._loop.set_default_executor(ThreadPoolExecutor(1, thread_name_prefix="mqinfer-nats-names"))
        self._loop.set_exception_handler(lambda _, what: _log.debug("nats-py: %s", what))
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            return runner.run(self._keep_connected())

    async def _keep_connected(self) -> LinkError | None:
        thread, backoff, closing = self._thread, Backoff(), asyncio.ensure_future(self._closing.wait())
        while not closing.done():
            for address in tuple(self._places):
                epoch = thread.epoch
                error = await self._serve(address, closing)
                if isinstance(error, NotAuthorized):
                    return error
                if closing.done():
                    return None
                thread.failed(error)
                if thread.epoch != epoch:
                    backoff = Backoff()
                    if self._is_cluster:  # all servers are as good: what has just failed may not answer for long
                        self._places.rotate(-1 - self._places.index(address))
                    break
            if not thread.opened.done():
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
            await session.until_lost(session.open(address, self._will, is_return=self._thread.epoch > 0))
            self._is_cluster, self._session = session.is_cluster, session
            self._thread.connect(session.max_payload)
            await asyncio.wait((session.lost, closing), return_when=asyncio.FIRST_COMPLETED)
            if not session.lost.done():
                await self._finish(session)
                await session.until_lost(session.end())
        except LinkError as error:
            session.give_up(error)
        except (Error, OSError) as error:
            session.give_up(BrokerUnreachable(f"the connection to {address} failed: {error!r}"))
        finally:
            if not self._thread.abandoned:
                is_loss, self._session = self._thread.disconnect(), None
                await session.end()
                if is_loss:
                    self._thread.report(connected=False)
                for task in asyncio.all_tasks() - {asyncio.current_task(), closing}:  # nats-py forgets some
                    task.cancel()
        return session.lost.result() if session.lost.done() else NotConnected("the link was closed")

    def _empty(self) -> None:
        thread, self._is_awake = self._thread, False  # before the look at the outbox
        if thread.close_by is not None:
            self._closing.set()
        if self._session is None:
            thread.outbox.clear()
        else:
            thread.outbox.empty_into(self._session, thread.epoch)

    async def _finish(self, session: NatsSession) -> None:
        while (len(self._thread.outbox) or not session.settled) and not session.lost.done():
            if time.monotonic() > (self._thread.close_by or 0.0):
                break
            await asyncio.sleep(_LOOK_S)
