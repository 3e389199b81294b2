"""Keep frames on the disk while the model's card is not there: before the first connection, or the first worker.

How a model takes its frames is not known yet, so they are stored at their recorded size, demosaiced and encoded. Once
the card is there they are prepared for the model and sent like any frame that the spool holds (`backlog`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import chain

from mqinfer.bags.frame import Frame
from mqinfer.client.result import InferResult
from mqinfer.edge_agent.preparing.preparer import Preparer
from mqinfer.edge_agent.reporting.statistics import ReplayStatistics
from mqinfer.edge_agent.spooling.backlog import KEPT
from mqinfer.edge_agent.spooling.spool import FULL_CHECK_S, Spool, SpooledFrame
from mqinfer.protocol.errors import Cancelled, LinkError, MqinferError, SourceError
from mqinfer.protocol.types import Capture, ErrorInfo

log = logging.getLogger("mqinfer.edge_agent")
_CHECK_S = 0.2
"""How often a stop is looked for while nothing but the card can come."""


@dataclass(slots=True, eq=False)
class BeforeCard:
    """Stores frames until the model's card is there.

    Attributes:
        model: Name of the model.
        preparer: Encodes frames at their recorded size.
        spool: Stores the frames.
        statistics: Counts them.
        find: Waits for the card this long, in seconds, and returns whether it is there.
        stop: Ends the waiting.
        is_read: Whether the source was read to its end.
        error: Why the source broke off.
        stored: Frames of this run, by source.
    """

    model: str
    preparer: Preparer
    spool: Spool
    statistics: ReplayStatistics
    find: Callable[[float], bool]
    stop: threading.Event
    is_read: bool = False
    error: SourceError | None = None
    stored: Counter[str] = field(default_factory=Counter)

    def keep(self, frames: Iterator[Frame], patience: float) -> Iterator[Frame] | None:
        """Store frames until the card is there.

        Args:
            frames: Of the source.
            patience: How long to wait for the card after the end of the source, in seconds.

        Returns:
            The frames that are left to be sent; None if the card has not come by the end of the source, or a stop.
        """
        log.warning("model %s: no card yet; frames are kept in the spool until there is one", self.model)
        try:
            for frame in frames:
                while not (is_found := self.find(0.0)) and not self._store(frame):
                    if is_found := wait_for(self.find, FULL_CHECK_S, self.stop):
                        break
                    if self.stop.is_set():
                        self._lose(frame)
                        return None
                if is_found:
                    return chain([frame], frames)
            self.is_read = not self.stop.is_set()
        except SourceError as error:  # what was stored before is sent all the same
            self.error = error
        return iter(()) if wait_for(self.find, patience, self.stop) else None

    def abandon(self, why: str) -> MqinferError:
        """End the stored frames of this run as cancelled, and return the reason."""
        for source, count in self.stored.items():
            for _ in range(count):
                self._end(source, Cancelled(KEPT))
        return LinkError(f"{why}; {len(self.spool)} frames are kept in the spool, and the next run sends them")

    def _store(self, frame: Frame) -> bool:
        """Store a frame; return False if it can't be stored now."""
        try:
            prepared = self.preparer.prepare(frame, partial(self.statistics.stage, frame.source))
        except MqinferError as error:  # this frame's fault
            log.warning("%s, frame %d: %s", frame.source, frame.sequence, error)
            self.statistics.frame_read(frame.source)
            self._end(frame.source, error)
            return True
        except MemoryError:
            return False
        if self.spool.put(SpooledFrame.of(frame, prepared)) is None:
            return False
        self.statistics.frame_read(frame.source)
        self.stored[frame.source] += 1
        return True

    def _lose(self, frame: Frame) -> None:
        self.statistics.frame_read(frame.source)
        self._end(frame.source, Cancelled(f"not kept in the spool ({self.spool.refusal}), and never sent"))

    def _end(self, source: str, error: MqinferError) -> None:
        self.statistics.request_sent(source)
        reason = ErrorInfo(error.code, str(error))
        result = InferResult("", error.outcome, self.model, error=reason, capture=Capture(source))
        self.statistics.finished(result, bytes_raw=0)


def wait_for(find: Callable[[float], bool], seconds: float, stop: threading.Event) -> bool:
    """Wait for a card; return False after so many seconds, or a stop."""
    until = time.monotonic() + seconds
    while not find(max(0.0, min(_CHECK_S, until - time.monotonic()))):
        if stop.is_set() or time.monotonic() >= until:
            return False
    return True
