"""The two sides that callers have of a watch, for threads and for asyncio, and the watches of one client."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import Generic, Self, TypedDict, TypeVar, cast

from mqinfer.broker.address import BrokerAddress
from mqinfer.broker.connect import make_link
from mqinfer.broker.link import ConnectionHandler, Link
from mqinfer.broker.presence import make_client_id
from mqinfer.client.closing import AsyncWithBlock, Members, WithBlock
from mqinfer.client.options import check_timeout
from mqinfer.client.watching.feed import WatchFeed, WatchSettings
from mqinfer.client.watching.seen import SeenPreview, SeenResult, WatchCounters
from mqinfer.protocol.limits import Limits
from mqinfer.protocol.topics import Topics

Seen = TypeVar("Seen", bound=SeenResult | SeenPreview)


class WatchOptions(TypedDict, total=False):
    """Further options of a watch, see `WatchSettings`."""

    client: str | None
    buffer: int
    buffer_bytes: int


class Watch(WithBlock, Generic[Seen]):
    """Results of other clients as they come. One thread iterates; `Client.watch` makes one.

    Iterating waits for the next one, and ends once the watch or its client is closed and what is buffered is taken.

    Example:
        >>> with client.watch("seg") as results:  # doctest: +SKIP
        ...     for each in results:
        ...         print(each.client, each.response.capture.sequence, each.decode().outputs)
    """

    def __init__(self, feed: WatchFeed) -> None:
        """Start with a feed that is open."""
        self._feed, self._maker = feed, feed.maker

    def next(self, timeout: float | None = None) -> Seen | None:
        """Wait for the next one.

        Args:
            timeout: In seconds; None to wait without end.

        Returns:
            None if nothing came in time, or the watch has ended: see `has_ended`.

        Raises:
            LinkError: The connection has ended for good, and everything is taken.
            RuntimeError: This is a callback, or this process is a fork of the one that made the client.
        """
        feed = self._feed
        self._maker.check()
        until = None if timeout is None else time.monotonic() + check_timeout(timeout)
        while True:
            left = None if until is None else until - time.monotonic()
            if not feed.wait(lambda: feed.is_ready, left, "next() of a watch"):
                return None
            seen = feed.take()
            if seen is not None:
                return cast("Seen", seen)
            if feed.has_ended:
                feed.check()
                return None

    @property
    def has_ended(self) -> bool:
        """Whether nothing more will come, and everything is taken."""
        return self._feed.has_ended

    def counters(self) -> WatchCounters:
        """Return what became of all messages that came."""
        return self._feed.counters()

    def close(self) -> None:
        """Receive nothing more, and disconnect; what is buffered can still be taken."""
        self._feed.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Seen:
        seen = self.next()
        if seen is None:
            raise StopIteration
        return seen

    _leave = close


class AsyncWatch(AsyncWithBlock, Generic[Seen]):
    """Results of other clients as they come, for an asyncio loop. `async with` or the first `next` connects.

    Iterating waits and ends as with `Watch`. Tensors of many megabytes are better decoded outside of the loop:
    `await asyncio.to_thread(each.decode)`.

    Example:
        >>> async with client.watch("seg") as results:  # doctest: +SKIP
        ...     async for each in results:
        ...         print(each.client, each.response.capture.sequence, each.decode().outputs)
    """

    def __init__(self, feed: WatchFeed, timeout: float) -> None:
        """Prepare; `AsyncClient.watch` makes one."""
        self._feed, self._maker, self._timeout = feed, feed.maker, timeout
        self._is_open = False

    async def open(self) -> None:
        """Connect, and receive from now on; errors as of `Client.watch`."""
        self._maker.check()
        await asyncio.to_thread(self._feed.open, self._timeout)
        self._is_open = True

    async def next(self, timeout: float | None = None) -> Seen | None:  # noqa: ASYNC109  as for `Watch.next`
        """Wait for the next one. Arguments, value and errors as of `Watch.next`."""
        self._maker.check()
        await self._enter()
        try:
            async with asyncio.timeout(timeout if timeout is None else check_timeout(timeout)):
                await asyncio.sleep(0)  # one that takes without a pause must not keep other tasks from running
                return await self._next()
        except TimeoutError:
            return None

    @property
    def has_ended(self) -> bool:
        """Whether nothing more will come, and everything is taken."""
        return self._feed.has_ended

    def counters(self) -> WatchCounters:
        """Return what became of all messages that came."""
        return self._feed.counters()

    async def close(self) -> None:
        """Receive nothing more, and disconnect; what is buffered can still be taken."""
        await asyncio.to_thread(self._feed.close)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Seen:
        seen = await self.next()
        if seen is None:
            raise StopAsyncIteration
        return seen

    async def _enter(self) -> None:
        if not self._is_open:
            await self.open()

    _leave = close

    async def _next(self) -> Seen | None:
        feed = self._feed
        while True:
            await feed.until(lambda: feed.is_ready)
            seen = feed.take()
            if seen is not None:
                return cast("Seen", seen)
            if feed.has_ended:
                feed.check()
                return None
            await asyncio.sleep(0)  # messages that are dropped must not keep other tasks from running


class Watches(Members[WatchFeed]):
    """The watches of one client, which end with it.

    Args:
        address: The broker.
        name: Of the client.
        topics: Below the root of the site.
        limits: Bounds of what a reply may contain.
    """

    def __init__(self, address: BrokerAddress, name: str, topics: Topics, limits: Limits) -> None:
        super().__init__(WatchFeed.close)
        self._address, self._name, self._topics, self._limits = address, name, topics, limits

    def make(self, settings: WatchSettings) -> WatchFeed:
        """Return a feed that is not open yet.

        Raises:
            BadTopic: The name of the model or of the client breaks the naming rules.
            Cancelled: The client is closed.
        """
        return self.add(WatchFeed(partial(_connect, self._address, self._name), self._topics, settings, self._limits))


def _connect(address: BrokerAddress, name: str, on_connection: ConnectionHandler) -> Link:
    return make_link(address, client_id=make_client_id(name), on_connection=on_connection)
