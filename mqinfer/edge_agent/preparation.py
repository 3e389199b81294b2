"""The preparing of one model's frames: on which thread, in which order and quality, and what becomes of a failure."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from mqinfer.client.result import InferResult
from mqinfer.edge_agent.frames.patience import Patience
from mqinfer.edge_agent.frames.pending import PendingFrame, failed_frame
from mqinfer.edge_agent.frames.prepared import PreparedFrame
from mqinfer.edge_agent.frames.stages import EdgeStage
from mqinfer.edge_agent.preparing.one_at_a_time import OneAtATime
from mqinfer.edge_agent.preparing.preparer import Preparer
from mqinfer.edge_agent.preparing.quality_ladder import FULL_QUALITY, QualityLadder, QualityStep
from mqinfer.edge_agent.previews import PreviewDrop, Previews
from mqinfer.edge_agent.results import FirstResults
from mqinfer.edge_agent.settings import ReplayOptions
from mqinfer.protocol.errors import Cancelled, MqinferError
from mqinfer.telemetry.around import Around

__all__ = ["PREPARERS", "Preparation"]

log = logging.getLogger("mqinfer.edge_agent")
PREPARERS = 2
"""Frames are prepared on so many threads."""
_BUSY_S = 3.0
"""A frame for which no file can be opened, or no memory is free, is tried again so long after the last such one."""


class Preparation:
    """Prepares the frames of one model. Thread-safe, as far as each frame is at one thread at a time."""

    def __init__(self, preparer: Preparer, options: ReplayOptions, first: FirstResults, previews: Previews) -> None:
        """Prepare.

        Args:
            preparer: Of the model's image input.
            options: How frames are sent.
            first: Whether any frame can succeed.
            previews: Says which frames get a small picture.
        """
        self.preparer = preparer
        self.pool = ThreadPoolExecutor(PREPARERS, thread_name_prefix="mqinfer-replay-prepare")
        self.adapts = options.quality.min_rate > 0
        """Whether quality and size depend on how many results come back."""
        self._options = options
        self._first = first
        self._previews = previews
        self._patience = Patience(_BUSY_S)
        self._lock = threading.Lock()
        self._ladders: dict[str, QualityLadder] = {}
        self._in_order: dict[str, OneAtATime] = {}

    def on_frame(self, source: str) -> None:
        """Count a frame that goes to the model, where `adapts`."""
        with self._lock:
            if source not in self._ladders:
                self._ladders[source] = QualityLadder(self._options.quality, self.preparer.encoder.quality)
            self._ladders[source].on_frame(time.monotonic())

    def on_result(self, source: str) -> None:
        """Count a frame that came back with a result, where `adapts`."""
        with self._lock:
            if source in self._ladders:  # else a frame of an earlier run
                self._ladders[source].on_result()

    def run(self, pending: PendingFrame, work: Callable[[PendingFrame], None]) -> None:
        """Work on a frame on a thread: where the encoding needs the frames before, behind them."""
        if not self.preparer.encoder.is_in_order:
            self.pool.submit(work, pending)
            return
        source = pending.frame.source
        if source not in self._in_order:
            self._in_order[source] = OneAtATime(self.pool)
        self._in_order[source].submit(partial(work, pending))

    def prepare(self, pending: PendingFrame) -> PreparedFrame | InferResult:
        """Demosaic, resize and encode a frame; return its outcome if that fails, since there is no request then."""
        frame, laps = pending.frame, pending.laps
        if self._first.refusal:
            return self._failed(pending, Cancelled("not sent: the frames before it were refused, and it would be too"))
        ladder = self._ladders.get(frame.source)
        step = FULL_QUALITY if ladder is None else ladder.step
        laps.begin(EdgeStage.OTHER, time.monotonic_ns())
        tap = pending.keep_picture if self._previews.is_wanted and self._is_previewed(pending, step) else None
        record = laps.measured if pending.spans is None else partial(_record, pending, pending.spans)
        try:
            prepared = self.preparer.prepare(frame, record, step, whole=pending.lost is not None, tap=tap)
        except Exception as error:  # noqa: BLE001 - the frame gets its outcome, or the run would wait for it
            return self._unprepared(pending, error, is_previewed=tap is not None)
        if pending.spans is not None:
            pending.spans.prepared()
        laps.begin(EdgeStage.SPOOL, time.monotonic_ns())
        return prepared

    def _unprepared(
        self, pending: PendingFrame, error: Exception, *, is_previewed: bool
    ) -> PreparedFrame | InferResult:
        """Return the outcome of a frame that could not be prepared; without files or memory, try again for a moment."""
        frame = pending.frame
        if isinstance(error, OSError | MemoryError) and self._patience.pause():
            again = self.prepare(pending)
            if isinstance(again, PreparedFrame):
                self._patience.renew()
            return again
        if isinstance(error, MqinferError):  # this frame's fault
            log.warning("%s, frame %d: %s", frame.source, frame.sequence, error)
        else:  # a defect
            log.error("%s, frame %d", frame.source, frame.sequence, exc_info=error)
        if is_previewed:
            self._previews.drop(frame.source, PreviewDrop.NOT_SENT)
        pending.picture = None
        return self._failed(pending, _failure(error))

    def _is_previewed(self, pending: PendingFrame, step: QualityStep) -> bool:
        """Return whether a frame gets a preview: not one that comes from the disk, or that is sent once more."""
        if pending.spooled_as or pending.lost is not None:
            return False
        source, has_room = pending.frame.source, pending.stream.has_room
        return self._previews.wants(source, has_room=has_room, is_full_quality=step is FULL_QUALITY)

    def forgo_preview(self, pending: PendingFrame, why: PreviewDrop) -> None:
        """Drop the preview of a frame that is not sent now, and its pixels."""
        if pending.picture is not None:
            pending.picture = None
            self._previews.drop(pending.frame.source, why)

    def _failed(self, pending: PendingFrame, error: MqinferError) -> InferResult:
        return failed_frame(self._options.model, pending, error)

    def close(self) -> None:
        """End the threads."""
        self.pool.shutdown()


def _failure(error: Exception) -> MqinferError:
    """Return how a frame ends that could not be prepared; without memory the spool and `--resume` send it again."""
    if isinstance(error, MqinferError):
        return error
    if isinstance(error, MemoryError):
        return Cancelled("not sent: no memory was free to prepare the frame; free some, and replay this part again")
    return MqinferError(f"preparing the frame failed: {error!r}")


def _record(pending: PendingFrame, spans: Around, stage: EdgeStage, nanoseconds: int) -> None:
    pending.laps.measured(stage, nanoseconds)
    spans.measured(stage.removeprefix("edge_"), nanoseconds)
