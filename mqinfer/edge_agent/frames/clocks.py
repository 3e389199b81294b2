"""The clocks of workers against the edge's, estimated from requests and their replies; nothing depends on them. Pure.

Each exchange has four timestamps as in NTP (RFC 5905, section 8): sent and received by the edge's clock, received and
sent by the worker's. Neither way takes less than no time, so the worker's clock is ahead by at least `T3 - T4` and at
most `T2 - T1`. The middle of these bounds is NTP's offset, half their distance its uncertainty: half the round trip.
What is kept are the closest bounds so far. They widen with time, since clocks drift apart, and an exchange that
contradicts them shows that a clock was set: it replaces them.

The clocks are those of the day, so that the offset means something to people. Requests are timed by the monotonic
one; where both are read one after the other, each stamp errs to the side that only widens the bounds.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from mqinfer.client.result import InferResult
from mqinfer.protocol.header import RECEIVED_TIME, SENT_TIME

__all__ = ["Clocks", "Exchange", "Offset"]

_DRIFT = 100e-6
"""Two clocks drift apart by at most this: 50 ppm is usual for a quartz without correction."""
_MOST_WORKERS = 256


@dataclass(frozen=True, slots=True)
class Offset:
    """How far a worker's clock is ahead of the edge's, in nanoseconds; the truth is within the uncertainty."""

    offset: int
    uncertainty: int


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request and its reply, in nanoseconds.

    Attributes:
        sent: T1, when the request was published, by the edge's clock.
        arrived: T2, when the worker received it, by the worker's clock.
        replied: T3, when the worker replied, by the worker's clock.
        received: T4, when the reply came, by the edge's clock.
    """

    sent: int
    arrived: int
    replied: int
    received: int

    @property
    def inside(self) -> int:
        """How long the worker had the request."""
        return self.replied - self.arrived

    def up(self, offset: Offset) -> int:
        """Return how long the request travelled."""
        return self.arrived - self.sent - offset.offset


@dataclass(slots=True)
class _Bounds:
    low: float
    high: float
    at: int


class Clocks:
    """The clocks of the workers that replied. Thread-safe.

    Args:
        monotonic: Nanoseconds, by which requests are timed.
        wall: Nanoseconds since the epoch.
    """

    def __init__(
        self, monotonic: Callable[[], int] = time.monotonic_ns, wall: Callable[[], int] = time.time_ns
    ) -> None:
        self._monotonic, self._wall = monotonic, wall
        self._lock = threading.Lock()
        self._bounds: OrderedDict[str, _Bounds] = OrderedDict()

    def exchange(self, result: InferResult, sent: int, received: int) -> Exchange | None:
        """Return the exchange of a result; None where its worker states no times, or an earlier attempt may have run.

        Args:
            result: The outcome of a request.
            sent: When it was published, by the monotonic clock.
            received: When the reply came, by the monotonic clock.
        """
        arrived, replied = (result.parameters.get(name) for name in (RECEIVED_TIME, SENT_TIME))
        if type(arrived) is not int or type(replied) is not int or result.attempts != 1:
            return None
        if not 0 <= replied - arrived <= received - sent:
            return None
        before, wall, after = self._monotonic(), self._wall(), self._monotonic()
        return Exchange(sent + wall - after, arrived, replied, received + wall - before)

    def add(self, worker: str, exchange: Exchange) -> Offset:
        """Learn from an exchange, and return what is known of the worker's clock now."""
        low, high, at = exchange.replied - exchange.received, exchange.arrived - exchange.sent, exchange.received
        with self._lock:
            known = self._bounds.pop(worker, None)
            if known is not None:
                drift = _DRIFT * max(0.0, at - known.at)
                closer = _Bounds(max(low, known.low - drift), min(high, known.high + drift), at)
            elif len(self._bounds) >= _MOST_WORKERS:
                self._bounds.popitem(last=False)
            found = closer if known is not None and closer.low <= closer.high else _Bounds(low, high, at)
            self._bounds[worker] = found
        return _offset(found)

    def offsets(self) -> dict[str, Offset]:
        """Return what is known, by worker."""
        with self._lock:
            return {worker: _offset(bounds) for worker, bounds in sorted(self._bounds.items())}


def _offset(bounds: _Bounds) -> Offset:
    return Offset(round((bounds.low + bounds.high) / 2), round((bounds.high - bounds.low) / 2))
