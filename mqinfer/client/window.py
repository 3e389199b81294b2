"""The window of one stream: how many of its frames are in flight, and which one enters next.

A frame leaves its stream's queue when `StreamWindow.take` finds room. Room is `DelayWindow.limit`, which follows the
queueing delay of the replies. No thread and no lock: the owner of the streams guards them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import StrEnum
from typing import Generic, TypeVar

from mqinfer.client.result import InferResult
from mqinfer.protocol.types import Outcome, Timings
from mqinfer.smoothing import WEIGHT

T = TypeVar("T")

NEWER_FRAME = "a newer frame of the stream came first"
"""Why a frame is superseded."""

_INCREASE = 0.2
"""Below the target the window grows by this each round trip, `window += _INCREASE / window` for each reply."""
_BETA = 0.8
"""Above the target `window *= 1 - _BETA * (delay - target) / delay`, once a round trip."""
_LEAST_FACTOR = 0.5
"""One decrease multiplies the window by no less than this."""
_LEAST_TARGET_S = 0.002
"""`target = max(_LEAST_TARGET_S, share * max(work, interval))`; a shorter delay is noise of the machine."""
_FRESH_SHARE = 0.5
"""With `latest` a frame may wait in queues for this share of the model's time."""
_DRIFT = 0.02
"""The shortest transit follows longer ones by `_DRIFT * (transit - shortest)` a reply, since routes change."""


class Policy(StrEnum):
    """What happens to a frame that arrives while the window is full."""

    LATEST = "latest"
    """It is queued in place of the one queued before, which ends as `superseded`: live streams stay fresh. One that was
    sent and that no worker works on is superseded, too."""
    ALL = "all"
    """It is queued behind the others, and the reader waits once enough are: nothing of a recording is lost."""


class DelayWindow:
    """The number of frames of one stream that may be in flight. Not thread-safe.

    The control is that of Swift (Kumar et al., "Swift: Delay is Simple and Effective for Congestion Control in the
    Datacenter", SIGCOMM 2020, section 3.1): additive increase while the delay is below a target, and a multiplicative
    decrease in proportion to the excess above it, at most once a round trip. The delay is the time that a request
    spent in queues: at the client, on the network beyond the shortest transit, at the worker. The target is a share of
    the model's time, because a request that waits for less keeps the worker busy and no more; over a thin link, which
    is then the bottleneck, it is a share of the time between two replies.

    The window starts at one and doubles each round trip (slow start) until the delay first exceeds the target or, where
    freshness counts, until one worker is busy. After a time-out it starts again from one.
    """

    def __init__(self, most: int, share: float = 1.0) -> None:
        """Start with one request.

        Args:
            most: Upper bound of the window.
            share: Share of the model's time that a request may wait: 1 for throughput, less for freshness.
        """
        self.limit = 1
        """Number of frames that may be in flight now."""
        self._most = most
        self._share = share
        self._window = 1.0
        self._slow_start = True
        self._shortest: float | None = None
        self._decreased_at = -1e9
        self._answered_at = -1e9
        self._interval = 0.0

    def on_reply(self, timings: Timings, now: float) -> None:
        """Adapt the window to a reply.

        Args:
            timings: Where the request's time went.
            now: In seconds.
        """
        transit = timings.transmission / 1e9
        if self._shortest is None or transit < self._shortest:
            self._shortest = transit
        delay = (timings.client_queue + timings.server_queue) / 1e9 + transit - self._shortest
        self._shortest += _DRIFT * (transit - self._shortest)
        server = timings.server
        total = (timings.client_queue + timings.transmission + server) / 1e9
        work = (server - timings.server_queue) / 1e9
        # A stream with few requests has long pauses between replies; a request's own time bounds the interval.
        interval = min(now - self._answered_at, total)
        self._interval += (interval - self._interval) * (WEIGHT if self._interval else 1.0)
        self._answered_at = now
        target = max(_LEAST_TARGET_S, self._share * max(work, self._interval))
        if delay <= target:
            # Little's law: one worker takes at most total / work requests at a time without one that waits.
            fills = self._window * work < total - delay
            doubles = self._slow_start and (fills or self._share >= 1)
            self._window += 1.0 if doubles else _INCREASE / self._window
            self._window = min(self._window, float(self._most))
        elif now - self._decreased_at >= total:
            self._slow_start = False
            self._decreased_at = now
            # Of three the third one waits; the other two keep a thin link busy, so one decrease leaves them.
            least = 2.0 if self._window >= 3.0 else 1.0
            self._window = max(least, self._window * max(1 - _BETA * (delay - target) / delay, _LEAST_FACTOR))
        self.limit = max(1, min(self._most, int(self._window)))

    def on_timeout(self) -> None:
        """Start again from one: a request expired or was rejected."""
        self._window, self._slow_start, self.limit = 1.0, True, 1


class StreamWindow(Generic[T]):
    """The frames of one stream that have no outcome yet: a queue, and the frames in flight. Not thread-safe."""

    def __init__(self, policy: Policy, most: int, priority: int = 0) -> None:
        """Start with an empty queue.

        Args:
            policy: What happens to a frame that finds the window full.
            most: Upper bound of the frames in flight.
            priority: Of its requests, 0 where they state none. A frame goes before others only where it is in line when
                a run ends, so it may wait for one run: with `latest` else no frame is there while one of the stream
                runs, and streams of all priorities take turns.
        """
        self.in_flight = 0
        """Frames that have left the queue, until their outcome."""
        self._keeps_newest = policy is Policy.LATEST
        self._window = DelayWindow(most, _FRESH_SHARE if self._keeps_newest and not priority else 1.0)
        self._queue: deque[T] = deque()  # one frame with the policy `latest`; bounded by the reader otherwise

    @property
    def wants_room(self) -> bool:
        """Whether a frame is queued that should take the place of an older one in flight."""
        return self._keeps_newest and bool(self._queue)

    @property
    def limit(self) -> int:
        """Number of frames that may be in flight now."""
        return self._window.limit

    @property
    def has_room(self) -> bool:
        """Whether the window admits another frame."""
        return self.in_flight < self._window.limit

    def put(self, frame: T) -> T | None:
        """Queue a frame; return the one that lost its place to it by the policy `latest`."""
        superseded = self._queue.popleft() if self._keeps_newest and self._queue else None
        self._queue.append(frame)
        return superseded

    def take(self) -> list[T]:
        """Remove and return the queued frames that the window has room for; they are in flight from now on."""
        entered = []
        while self._queue and self.in_flight < self._window.limit:
            self.in_flight += 1
            entered.append(self._queue.popleft())
        return entered

    def withdraw(self, is_wanted: Callable[[T], bool]) -> list[T]:
        """Remove and return the queued frames that are wanted elsewhere."""
        wanted = [each for each in self._queue if is_wanted(each)]
        self._queue = deque(each for each in self._queue if not is_wanted(each))
        return wanted

    def enter(self) -> None:
        """Count a frame in that was not queued here; its owner has waited for room."""
        self.in_flight += 1

    def leave(self) -> None:
        """Count a frame out that has no outcome yet."""
        self.in_flight -= 1

    def finish(self, result: InferResult, now: float) -> None:
        """Count a frame out, and adapt the window to its outcome."""
        self.leave()
        if result.outcome is Outcome.OK:
            self._window.on_reply(result.timings, now)
        elif result.outcome in {Outcome.EXPIRED, Outcome.REJECTED}:
            self._window.on_timeout()
