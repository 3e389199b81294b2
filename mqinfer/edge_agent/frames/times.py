"""Where the time of one frame went, from the beginning of its reading to its outcome.

Every moment belongs to exactly one stage, so the stages sum to the total. The edge's own come first, then those of the
request as the client and the worker measure them, then what follows the reply. T_n, T_c.q, T_s.q and T_s.c are those of
the latency formula of Distributed NoScope (section 4.3).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum

from msgspec.structs import fields

from mqinfer.client.result import InferResult
from mqinfer.edge_agent.frames.clocks import Clocks, Offset
from mqinfer.edge_agent.frames.stages import EdgeStage, LinkStage
from mqinfer.protocol.types import Timings

__all__ = ["NO_TIMES", "FrameTimes", "Laps"]


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
    """Measures one frame: at each moment one stage runs. Times are monotonic nanoseconds. Not thread-safe."""

    def __init__(self, now: int, read: int = 0) -> None:
        """Start with a frame that was just read, and waits for its preparation.

        Args:
            now: The time.
            read: How long reading took.
        """
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
        """Return the split of a frame that has its outcome.

        Args:
            result: The outcome.
            now: The time.
            clocks: Receives the exchange, and knows the worker's clock.
        """
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
        timings = result.timings
        if timings.total > max(0, now - submitted):  # no worker can have worked for longer than the exchange took
            self._stage = "transmission"
            return None
        self._stage = LinkStage.SETTLE
        sent = submitted + timings.client_queue
        exchange = clocks.exchange(result, sent, submitted + timings.total)
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
        self._since += timings.total
        return offset


_SERVER = tuple(each.name for each in fields(Timings) if each.name not in {"client_queue", "transmission"})
