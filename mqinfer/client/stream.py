"""The two sides of a stream of live frames: for threads, and for tasks of an asyncio loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Self

from mqinfer.client.closing import AsyncWithBlock, WithBlock
from mqinfer.client.feed import Feed, StreamSettings
from mqinfer.client.request import Input
from mqinfer.client.result import InferResult
from mqinfer.client.window import Policy
from mqinfer.protocol.errors import Expired, Rejected
from mqinfer.protocol.types import Capture, Outcome


class Stream(WithBlock):
    """A stream of frames to one model. One thread puts frames in, another one iterates over the results.

    Iterating waits for the next frame's outcome; it ends once the stream is closed and every outcome is read.

    Example:
        >>> with client.stream("seg", policy="latest") as stream:  # doctest: +SKIP
        ...     threading.Thread(target=lambda: [stream.put({"input": frame}) for frame in camera]).start()
        ...     for result in stream:
        ...         print(result.outcome, result.capture.sequence)
    """

    def __init__(self, feed: Feed) -> None:
        """Start without frames; `Client.stream` makes one."""
        self._feed, self._maker = feed, feed.maker

    def put(self, inputs: Mapping[str, Input], *, capture: Capture | None = None) -> None:
        """Send a frame, or queue it. With `all` this waits while there is no room; with `latest` it never waits.

        Args:
            inputs: Arrays by input name, as for `Client.infer`; leave them unchanged until the result is there.
            capture: Where the frame came from; its result repeats it. Without a sequence number it gets that of the
                frame in the stream, from 0.

        Raises:
            MqinferError: The request can't be made (`BadTensor`, `BadEncoding`, ...), or the stream is closed
                (`Cancelled`).
            Expired: With `all`, there was no room within the stream's timeout.
            Rejected: With `latest`, nobody reads: 1,024 outcomes are unread.
        """
        feed, settings = self._feed, self._feed.settings
        self._maker.check()  # before the lock, which another thread may have held at the fork
        request = settings.request(inputs, capture)
        give_up_at = time.monotonic() + settings.timeout
        what = "put() of a stream with the policy 'all'"
        waits = settings.policy == Policy.ALL
        while True:
            if waits and not feed.wait(lambda: feed.has_room, give_up_at - time.monotonic(), what):
                raise _no_room(settings)
            try:
                feed.put(request)
            except Rejected:
                if not waits:
                    raise  # with `all` another thread was faster
            else:
                return

    def outcomes(self) -> dict[Outcome, int]:
        """Return how many frames ended with each outcome."""
        return self._feed.outcomes()

    def close(self) -> None:
        """Accept no more frames; iteration ends after the last one's result."""
        self._maker.check()
        self._feed.end()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> InferResult:
        feed = self._feed
        self._maker.check()
        feed.wait(lambda: feed.is_ready, None, "next() of a stream")
        result = feed.read()
        if result is None:
            raise StopIteration
        return result

    def _leave(self) -> None:
        self._feed.end(cancel=True)


class AsyncStream(AsyncWithBlock):
    """A stream of frames to one model, of an asyncio loop: one task puts frames in, another one iterates.

    Iterating waits and ends as with `Stream`.

    Example:
        >>> async with client.stream("seg", policy="latest") as stream:  # doctest: +SKIP
        ...     asyncio.create_task(read_camera(stream))
        ...     async for result in stream:
        ...         print(result.outcome, result.capture.sequence)
    """

    def __init__(self, feed: Feed) -> None:
        """Start without frames; `AsyncClient.stream` makes one."""
        self._feed, self._maker = feed, feed.maker

    async def put(self, inputs: Mapping[str, Input], *, capture: Capture | None = None) -> None:
        """Send a frame, or queue it. Arguments and errors as for `Stream.put`."""
        feed, settings = self._feed, self._feed.settings
        self._maker.check()  # before the lock, which another thread may have held at the fork
        request = settings.request(inputs, capture)
        await asyncio.sleep(0)  # a task that puts without a pause must not keep the one that reads from running
        if settings.policy == Policy.ALL and not await feed.until(lambda: feed.has_room, settings.timeout):
            raise _no_room(settings)
        feed.put(request)

    def outcomes(self) -> dict[Outcome, int]:
        """Return how many frames ended with each outcome."""
        return self._feed.outcomes()

    def close(self) -> None:
        """Accept no more frames; iteration ends after the last one's result."""
        self._maker.check()
        self._feed.end()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> InferResult:
        self._maker.check()
        await self._feed.until(lambda: self._feed.is_ready)
        result = self._feed.read()
        if result is None:
            raise StopAsyncIteration
        return result

    async def _leave(self) -> None:
        self._feed.end(cancel=True)


def _no_room(settings: StreamSettings) -> Expired:
    return Expired(
        f"the stream had no room within {settings.timeout:.3g} s: is anybody iterating over its results, in another "
        "thread or task?"
    )
