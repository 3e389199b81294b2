"""Where the time of one frame went, from the beginning of its reading to its outcome.

Every moment belongs to exactly one stage, so the stages sum to the total. The edge's own come first, then those of the
request as the client and the worker measure them, then what follows the reply. T_n, T_c.q, T_s.q and T_s.c are those of
the latency formula of Distributed NoScope (section 4.3).
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum

from msgspec.structs import fields

from mqinfer.client.result import InferResult
from mqinfer.protocol.header import RECEIVED_TIME, SENT_TIME
from mqinfer.protocol.types import Timings

REQUEST_STAGES = tuple(stage.name for stage in fields(Timings))


class EdgeStage(StrEnum):
    """The stages of a frame before it becomes a request; `Timings` names the later ones."""

    READ = "edge_read"
    QUEUE = "edge_queue"
    """Read, and waits for room in its stream's window."""
    COMPARE = "edge_compare"
    """Made small, and compared with an earlier frame, by a cascade."""
    SMALL = "edge_small"
    """At the small model of a cascade, wherever that runs."""
    DEMOSAIC = "edge_demosaic"
    RESIZE = "edge_resize"
    ENCODE = "edge_encode"
    OTHER = "edge_other"
    """Rest of preparing: what the stages before do not name."""
    SPOOL = "edge_spool"
    """Prepared, and handed to the client at once, or when the spool has sent it."""


class LinkStage(StrEnum):
    """The stages of a request that `Timings` does not name."""

    UP = "transmission_up"
    DOWN = "transmission_down"
    SERVER_OTHER = "server_other"
    """Rest of the worker's time: what its stages do not name."""
    UNANSWERED = "unanswered"
    """From its submission to an outcome without a reply."""
    SETTLE = "settle"
    """From the reply to the outcome: its outputs are decoded."""


STAGES: tuple[str, ...] = (*EdgeStage, *REQUEST_STAGES, *LinkStage)
"""Every stage: those of the edge and of `Timings` in the order in which a frame passes through them."""


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
    """The clocks of the workers against the edge's, estimated from requests and their replies. Thread-safe.

    Each exchange has four timestamps as in NTP (RFC 5905, section 8): sent and received by the edge's clock, received
    and sent by the worker's. Neither way takes less than no time, so the worker's clock is ahead by at least `T3 - T4`
    and at most `T2 - T1`. The middle of these bounds is NTP's offset, half their distance its uncertainty: half the
    round trip. What is kept are the closest bounds so far. They widen with time, since clocks drift apart, and an
    exchange that contradicts them shows that a clock was set: it replaces them.

    The clocks are those of the day, so that the offset means something to people. Requests are timed by the monotonic
    one; where both are read one after the other, each stamp errs to the side that only widens the bounds.

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
        arrived, replied = result.parameters.get(RECEIVED_TIME), result.parameters.get(SENT_TIME)
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


@dataclass(frozen=True, slots=True)
class FrameTimes:
    """The time split of one frame, in nanoseconds.

    Attributes:
        total: From the beginning of the frame's reading to its outcome.
        stages: By stage, in the order in which the frame passed through them; only those that it met.
        offset: The worker's clock against the edge's when the reply came; None where it is not known.
    """

    total: int = 0
    stages: Mapping[str, int] = field(default_factory=dict)
    offset: Offset | None = None

    def describe(self) -> dict[str, object]:
        """Return it as one JSON object, in nanoseconds."""
        clock = {} if self.offset is None else {"clock": asdict(self.offset)}
        return {"total": self.total, "stages": dict(self.stages), **clock}


NO_TIMES = FrameTimes()


class Laps:
    """Measures one frame, from its reading on: at each moment one stage runs. Not thread-safe.

    Times are monotonic nanoseconds.

    Args:
        now: The time.
        read: How long reading took.
    """

    def __init__(self, now: int, read: int = 0) -> None:
        self._stages: dict[str, int] = {EdgeStage.READ: read}
        self._stage: str = EdgeStage.QUEUE
        self._since = now
        self._began = now - read

    def begin(self, stage: StrEnum, now: int) -> None:
        """End the stage that runs, and begin another."""
        length = max(0, now - self._since)
        self._stages[self._stage] = self._stages.get(self._stage, 0) + length
        self._since += length
        self._stage = stage

    def measured(self, stage: str, nanoseconds: int) -> None:
        """Count a part of the time since the last call to a stage of its own."""
        self._stages[stage] = self._stages.get(stage, 0) + nanoseconds
        self._since += nanoseconds

    def end(self, result: InferResult, now: int, clocks: Clocks) -> FrameTimes:
        """Return the split of a frame that has its outcome; the clocks learn from its exchange."""
        offset = None
        if result.submitted:
            submitted = round(result.submitted * 1e9)
            self.begin(LinkStage.UNANSWERED, submitted)
            if result.worker:
                offset = self._add_request(result, submitted, now, clocks)
        self.begin(LinkStage.UNANSWERED, now)
        stages = {stage: length for stage, length in self._stages.items() if length}
        return FrameTimes(now - self._began, stages, offset)

    def _add_request(self, result: InferResult, submitted: int, now: int, clocks: Clocks) -> Offset | None:
        timings, total = result.timings, result.timings.total
        if total > max(0, now - submitted):  # no worker can have worked for longer than the exchange took
            self._stage = "transmission"
            return None
        self._stage = LinkStage.SETTLE
        sent = submitted + timings.client_queue
        exchange = clocks.exchange(result, sent, submitted + total)
        offset = None if exchange is None else clocks.add(result.worker, exchange)
        network = timings.transmission
        parts: dict[str, int] = {"client_queue": timings.client_queue}
        if exchange is None or offset is None:
            parts["transmission"] = network
        else:
            other = min(max(0, exchange.inside - timings.server), network)
            parts[LinkStage.UP] = up = min(max(0, exchange.up(offset)), network - other)
        for stage in _SERVER:
            parts[stage] = getattr(timings, stage)
        if offset is not None:
            parts |= {LinkStage.SERVER_OTHER: other, LinkStage.DOWN: network - other - up}
        self._stages |= parts
        self._since += total
        return offset


_SERVER = tuple(each.name for each in fields(Timings) if each.name not in {"client_queue", "transmission"})
