"""What is tried again at the edge, and how long: frames whose request has ended without a result, and a busy machine.

The client sends each request again as often as its retry budget allows. Here are the outcomes that it can't better.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum, auto

from mqinfer.client.registry import Registry
from mqinfer.client.result import InferResult
from mqinfer.edge_agent.frames.table import PendingFrame
from mqinfer.protocol.errors import NoWorker, ReferenceLost
from mqinfer.protocol.types import Outcome

PAUSE_S = 0.2
"""How long to wait before another try."""
_LEAST_TIMEOUT_S = 0.001
"""A frame that is sent again after its time is over expires in the regular way."""


class Again(Enum):
    """How a frame is sent once more."""

    WHOLE = auto()
    """Prepared anew, so that any worker can decode it on its own: the one that had the frames before has started anew,
    or has forgotten them."""
    AS_IT_IS = auto()
    """No worker took it; there may be one soon."""


@dataclass(slots=True, eq=False)
class Retries:
    """Decides which frames of one model are sent once more. Thread-safe, as far as each is at one thread at a time.

    - `reference_lost`: once, prepared anew.
    - No worker of a model that was there: until the frame's time is over, where frames wait for one; a spool keeps the
      frame instead.
    - Expired while there was no connection: where a spool can keep the frame.

    A frame has the time of one request for all its requests, and its outcome counts the attempts and bytes of all.

    Attributes:
        timeout: Of each request, in seconds.
        was_there: Returns whether there has been a worker of the model.
        waits: Whether frames wait for a worker.
        clock: In seconds.
        unserved: How often a frame was sent again for want of a worker.
    """

    timeout: float
    was_there: Callable[[], bool]
    waits: bool = False
    clock: Callable[[], float] = time.monotonic
    unserved: int = 0

    def again(self, frame: PendingFrame, result: InferResult, *, is_prepared: bool = True) -> Again | None:
        """Return how a frame is sent once more, and note this outcome in it; None where the outcome is the frame's.

        Args:
            frame: Whose request has ended.
            result: The outcome of the request.
            is_prepared: Whether it became a request.
        """
        found = self._decide(frame, result) if is_prepared else None
        if found is None:
            return None
        frame.is_whole = frame.is_whole or found is Again.WHOLE
        self.unserved += found is Again.AS_IT_IS
        if not frame.ends_at:
            frame.ends_at = self.clock() + self.timeout - result.timings.total / 1e9
        frame.earlier = result if frame.earlier is None else with_earlier(frame.earlier, result)
        return found

    def _decide(self, frame: PendingFrame, result: InferResult) -> Again | None:
        if result.error is not None and result.error.code == ReferenceLost.code:
            return None if frame.is_whole else Again.WHOLE
        if self.waits and not frame.edge_answers and self.is_unserved(result) and self._has_time(frame):
            return Again.AS_IT_IS
        return None

    def _has_time(self, frame: PendingFrame) -> bool:
        return not frame.ends_at or self.clock() < frame.ends_at

    def time_left(self, frame: PendingFrame) -> float:
        """Return how long the next request of a frame that was sent before may take, in seconds."""
        return max(_LEAST_TIMEOUT_S, frame.ends_at - self.clock())

    def is_unserved(self, result: InferResult) -> bool:
        """Return whether a request found no worker of a model that was there."""
        return result.error is not None and result.error.code == NoWorker.code and self.was_there()

    def is_for_later(self, result: InferResult, up_since: float) -> bool:
        """Return whether a frame that a spool can keep is sent from there once more.

        Args:
            result: The outcome of its request.
            up_since: When the connection was made, by the clock; infinite while there is none.
        """
        is_cut_off = result.outcome is Outcome.EXPIRED and up_since > self.clock() - self.timeout
        return is_cut_off or self.is_unserved(result)


def with_earlier(earlier: InferResult, result: InferResult) -> InferResult:
    """Return the outcome of a frame's last request with the attempts and bytes of those before it."""
    attempts, sent = earlier.attempts + result.attempts, earlier.bytes_sent + result.bytes_sent
    return replace(result, attempts=attempts, bytes_sent=sent)


def was_there(registry: Registry, model: str, version: str | None) -> bool:
    """Return whether there has been a worker of a model or, where one is given, of its version or label."""
    card, known = registry.card(model), set(registry.models.versions(model))
    if card is not None:
        known.update(card.versions, card.parameters.labels)
    return registry.models.was_known(model) or (bool(known) if version is None else version in known)


class Patience:
    """Lasts so many seconds from the first failure after a success."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._until = math.inf

    def is_over(self) -> bool:
        """Return whether the time has run out; it starts to run with the first failure."""
        if self._until == math.inf:
            self._until = time.monotonic() + self._seconds
        return time.monotonic() >= self._until

    def pause(self) -> bool:
        """Wait before another try; return False where the time has run out."""
        if self.is_over():
            return False
        time.sleep(PAUSE_S)
        return True

    def renew(self) -> None:
        """Start anew with the next failure."""
        self._until = math.inf
