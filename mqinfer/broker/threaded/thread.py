"""The thread of one link: what it shares with all others, and what becomes of whatever ends it."""

from __future__ import annotations

import logging
import threading
import time
from asyncio import AbstractEventLoop
from asyncio import _get_running_loop as running_loop  # None outside of one, and no exception
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Protocol

from mqinfer.broker.address import BrokerAddress
from mqinfer.broker.link import ConnectionHandler
from mqinfer.broker.process import abandon_in_children, end_thread_in_child
from mqinfer.broker.threaded.outages import OUTAGES
from mqinfer.protocol.errors import BrokerUnreachable, LinkError, NotConnected

if TYPE_CHECKING:
    from mqinfer.broker.threaded.link import Outbox

_log = logging.getLogger("mqinfer.broker")


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
        host: AbstractEventLoop | None = None,
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
