"""Runs of the frames' state machine: frames, outcomes, losses and reconnects in a random order, by a clock of theirs.

What a replay does around the table happens here as events of one heap: preparing, sending, replies, expiries. The
promises are checked after each event and at the end.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from random import Random

from mqinfer.bags.frame import Frame
from mqinfer.client.result import InferResult
from mqinfer.client.window import Policy
from mqinfer.edge_agent.frames.retries import Retries
from mqinfer.edge_agent.frames.table import FrameTable, PendingFrame, absence
from mqinfer.images.picture import RawImage
from mqinfer.protocol.errors import Cancelled, Expired, ReferenceLost, Rejected, Superseded
from mqinfer.protocol.types import ErrorInfo, Outcome, Timings

__all__ = ["FrameRun", "simulate_frames"]

_NO_PIXELS = RawImage("rgb8", 1, 1, 3, is_bigendian=False, data=b"")
_TIMEOUT_S, _PERIOD_S, _QUIET_S = 3.0, 0.1, 10.0


@dataclass(slots=True)
class FrameRun:
    """One run from a seed.

    Attributes:
        seed: Decides everything.
        violations: Promises that were broken, in words.
        ended: How each frame ended, by its number.
        counts: How often each thing happened.
    """

    seed: int
    violations: list[str] = field(default_factory=list)
    ended: dict[int, str] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)

    def violate(self, what: str) -> None:
        """Note a broken promise."""
        self.violations.append(f"seed {self.seed}: {what}")


class _World:
    """The frames of one run, and what happens to them."""

    def __init__(self, run: FrameRun) -> None:
        self.run, self.random, self.now = run, Random(run.seed), 0.0  # noqa: S311 - a seed, no secret
        random = self.random
        self.policy = random.choice(list(Policy))
        self.window = random.randint(1, 4)
        self.edge_answers = random.random() < 0.5  # a cascade stands there
        self.frames = random.randint(30, 80)
        self.cut = random.uniform(1.0, 4.0), random.uniform(0.2, 3.0)  # when, and for how long
        self.deaf_s = random.uniform(0.0, 2.5)  # after the cut: connected, and no reply yet
        self.lost_share = random.choice([0.0, 0.0, 0.05])
        self.has_spool = random.random() < 0.5
        # With `all` everything fits, or the reader would wait.
        self.disk = 1 << 30 if self.policy is Policy.ALL else random.randint(1, 20)
        self.table = FrameTable(self.policy, self.window, clock=lambda: self.now)
        self.retries = Retries(_TIMEOUT_S, lambda: False, clock=lambda: self.now)
        self.reach = self.table.reach
        self.spooled: list[PendingFrame] = []
        self.requests: dict[str, PendingFrame] = {}
        self.tries: Counter[int] = Counter()
        self._ids, self._order = count(1), count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []

    def at(self, delay: float, happens: Callable[[], None]) -> None:
        """Let something happen."""
        heapq.heappush(self._events, (self.now + delay, next(self._order), happens))

    def play(self) -> None:
        """Play all events, and check the promises."""
        began, length = self.cut
        self.at(began, partial(self._connection, is_connected=False))
        self.at(began + length, partial(self._connection, is_connected=True))
        late = max(sum(self.cut) + self.deaf_s, self.frames * _PERIOD_S) + _QUIET_S
        for number in range(self.frames):
            self.at(number * _PERIOD_S + self.random.uniform(0, 0.05), partial(self._read, number))
        for number in range(self.frames, self.frames + 5):  # in the quiet time
            self.at(late + 0.5 * min(number - self.frames, 3), partial(self._read, number))  # two at once at the end
        while self._events and self.run.counts["events"] < 20_000:
            self.now, _, happens = heapq.heappop(self._events)
            self.run.counts["events"] += 1
            happens()
            self._check()
        self._check_end()

    def _read(self, number: int) -> None:
        source = f"/{number % 2}"
        frame = PendingFrame(number, Frame(source, number, 0, 0, "", _NO_PIXELS), self.table.stream(source))
        frame.edge_answers = self.edge_answers
        self.table.read(frame)
        if self.has_spool and not self.edge_answers and (self.spooled or not self.reach.is_connected):
            self._store(frame)
            return
        if self.table.why_not(frame):
            self._end(frame, _result(Outcome.REJECTED))
            return
        lost = frame.stream.put(frame)
        if lost is not None:
            self._end(lost, _result(Outcome.SUPERSEDED))
        self._advance(frame)
        for request in self.table.replaceable(frame.stream):
            if request in self.requests and self._is_unheard:  # no worker works on it
                self._settle(self.requests.pop(request), Outcome.SUPERSEDED)

    @property
    def _is_unheard(self) -> bool:
        began, length = self.cut
        return began <= self.now < began + length + self.deaf_s

    def _store(self, frame: PendingFrame) -> None:
        """Put a frame on the disk, where the oldest one makes room for it."""
        if len(self.spooled) >= self.disk:
            self._end(self.spooled.pop(0), _result(Outcome.SUPERSEDED))
        self.table.keep(frame, frame.number + 1)
        self.spooled.append(frame)
        self.run.counts["stored"] += 1

    def _drain(self) -> None:
        """Send the oldest frames on the disk while there is a connection and room."""
        while self.spooled and self.reach.is_connected and self.spooled[0].stream.has_room:
            frame = self.spooled.pop(0)
            frame.stream.enter()
            self._prepared(frame)

    def _advance(self, frame: PendingFrame) -> None:
        for each in frame.stream.take():
            self.at(self.random.uniform(0.0, 0.02), partial(self._prepared, each))

    def _prepared(self, frame: PendingFrame) -> None:
        if self.table.why_not(frame):
            self._settle(frame, Outcome.REJECTED)
            return
        frame.request_id = request = str(next(self._ids))
        self.requests[request] = frame
        self.tries[frame.number] += 1
        self.run.counts["requests"] += 1
        if self.edge_answers and self.reach.silence is not None and len(self.requests) > 1:
            self.run.violate("two frames try a silent model at once")
        lost = self.random.random() < self.lost_share
        outcome = Outcome.ERROR if lost else Outcome.OK
        if not self._is_unheard:
            self.at(self.random.uniform(0.01, 0.3), partial(self._reply, request, outcome))
        self.at(_TIMEOUT_S, partial(self._reply, request, Outcome.EXPIRED))

    def _reply(self, request: str, outcome: Outcome) -> None:
        if outcome is not Outcome.EXPIRED and self._is_unheard:
            return
        frame = self.requests.pop(request, None)
        if frame is not None:
            self._settle(frame, outcome)

    def _settle(self, frame: PendingFrame, outcome: Outcome) -> None:
        result = _result(outcome)
        if self.retries.again(frame, result):
            self.at(0.0, partial(self._prepared, frame))
            return
        self.table.leave(frame, result)
        self._advance(frame)
        if outcome is Outcome.EXPIRED and self.has_spool and not self.edge_answers and not self.reach.is_connected:
            self._store(frame)  # it is sent again
            self.tries[frame.number] = 0
        else:
            self._end(frame, result)
        self._drain()

    def _end(self, frame: PendingFrame, result: InferResult) -> None:
        result = self.table.ended(frame, result)
        is_silent = absence(result) is not None and self.edge_answers
        how = "edge" if is_silent else result.outcome.value
        try:
            self.table.settle(frame)
        except KeyError:
            self.run.violate(f"frame {frame.number} ended twice")
        self.table.written(frame)
        self.run.ended[frame.number] = how
        self.run.counts[how] += 1
        if how == "superseded" and self.edge_answers and self._is_after_cut:
            self.run.violate(f"frame {frame.number} was superseded while the edge could answer it")
        if how == Outcome.ERROR.value and self.tries[frame.number] != 2:
            self.run.violate(f"frame {frame.number} was sent {self.tries[frame.number]} times before it failed")

    @property
    def _is_after_cut(self) -> bool:
        """Whether no reply can have come since the connection was lost."""
        began, length = self.cut
        return began + 0.05 < self.now < began + length + self.deaf_s

    def _connection(self, *, is_connected: bool) -> None:
        self.reach.on_connection(is_connected=is_connected)
        if not is_connected and self.edge_answers:  # what was sent is recalled
            for sent in self.table.sent():
                if (frame := self.requests.pop(sent.request_id, None)) is not None:
                    self._settle(frame, Outcome.CANCELLED)
        elif not is_connected and self.has_spool:
            for frame in self.table.withdraw():
                self._store(frame)
        self._drain()

    def _check(self) -> None:
        for source, stream in self.table.streams.items():
            if stream.in_flight > self.window:
                self.run.violate(f"{stream.in_flight} frames of {source} are in flight, and {self.window} may be")
            kept = [each for each in self.spooled if each.stream is stream]
            here = [each for each in self.table.frames.values() if each.stream is stream and each not in kept]
            queued = len(here) - stream.in_flight
            if queued and self.has_spool and not self.edge_answers and not self.reach.is_connected:
                self.run.violate(f"{queued} frames of {source} wait in memory without a connection")
            if self.policy is Policy.LATEST and queued > 1:
                self.run.violate(f"{queued} frames of {source} are queued beside the newest")

    def _check_end(self) -> None:
        run = self.run
        if self.table.held:
            run.violate(f"{self.table.held} frames are held in memory after the end")
        if self.table.frames:
            run.violate(f"{len(self.table.frames)} frames have no outcome")
        for source, stream in self.table.streams.items():
            if stream.in_flight:
                run.violate(f"{stream.in_flight} frames of {source} are in flight after the end")
        last = [run.ended.get(number) for number in range(self.frames + 1, self.frames + 5)]
        if self.edge_answers and "edge" in last[2:] and self.lost_share == 0.0:
            run.violate(f"the model answers again, and the edge goes on: {last}")
        most = max(self.tries.values(), default=0)
        if most > 2:
            run.violate(f"a frame was sent {most} times")
        if self.policy is Policy.ALL and "superseded" in run.ended.values() and self.disk > len(run.ended):
            run.violate("a frame of a recording was superseded")


_ERRORS = {
    Outcome.ERROR: ReferenceLost,
    Outcome.EXPIRED: Expired,
    Outcome.REJECTED: Rejected,
    Outcome.CANCELLED: Cancelled,
    Outcome.SUPERSEDED: Superseded,
}


def _result(outcome: Outcome) -> InferResult:
    error = ErrorInfo(_ERRORS[outcome].code, "") if outcome in _ERRORS else None
    timings = Timings(inference=20_000_000, transmission=10_000_000)
    return InferResult("", outcome, "model", error=error, timings=timings)


def simulate_frames(seed: int) -> FrameRun:
    """Run a seed."""
    run = FrameRun(seed)
    _World(run).play()
    return run
