"""From a frame that has entered to its request: prepared, with the outcome of a frame that can't be, and submitted.

After its request a frame's preview is published, where one is due (`mqinfer.edge_agent.previews`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from functools import partial

from mqinfer.client.request import InferOptions, make_request, names_label, with_labelled_version
from mqinfer.client.requester import Requester
from mqinfer.client.result import InferResult
from mqinfer.edge_agent.cascade.cascade import Cascade
from mqinfer.edge_agent.frames.pending import PendingFrame, failed_frame
from mqinfer.edge_agent.frames.prepared import PreparedFrame
from mqinfer.edge_agent.frames.stages import EdgeStage
from mqinfer.edge_agent.preparing.preparer import Preparer, Tap
from mqinfer.edge_agent.preparing.quality_ladder import FULL_QUALITY, QualityLadder, QualityStep
from mqinfer.edge_agent.previews import PreviewDrop, Previews
from mqinfer.edge_agent.results import FirstResults
from mqinfer.edge_agent.settings import ReplayOptions
from mqinfer.protocol.errors import Cancelled, LinkError, MessageTooLarge, MqinferError
from mqinfer.telemetry.around import Around

__all__ = ["FrameSender"]

log = logging.getLogger("mqinfer.edge_agent")
_LEAST_TIMEOUT_S = 0.001
"""A frame that is sent again after its time is over expires in the regular way."""
Settle = Callable[[PendingFrame, PreparedFrame | None, InferResult], None]


class FrameSender:
    """Prepares and submits the frames of one model. Thread-safe, as far as each frame is at one thread at a time."""

    def __init__(  # noqa: PLR0913 - its parts, each made by the replay
        self,
        requester: Requester,
        preparer: Preparer,
        options: ReplayOptions,
        *,
        ladders: Mapping[str, QualityLadder],
        first: FirstResults,
        settle: Settle,
        cascade: Cascade | None = None,
        previews: Previews | None = None,
    ) -> None:
        """Prepare.

        Args:
            requester: Sends the requests.
            preparer: Of the model's image input.
            options: How frames are sent.
            ladders: The quality ladder of each stream.
            first: Whether any frame can succeed.
            settle: Receives the one outcome of a frame that was to be submitted.
            cascade: Counts what is submitted; None without one.
            previews: Publishes small pictures of the frames; None for none.
        """
        self._requester = requester
        self._preparer = preparer
        self._options = options
        self._ladders = ladders
        self._first = first
        self._settle = settle
        self._cascade = cascade
        self._previews = previews
        self._failed = partial(failed_frame, options.model)

    def prepare(self, pending: PendingFrame) -> PreparedFrame | InferResult:
        """Demosaic, resize and encode a frame; return its outcome if that fails, since there is no request then."""
        frame, step = pending.frame, self._ladders[pending.frame.source].step
        if self._first.refusal:
            return self._failed(pending, Cancelled("not sent: the frames before it were refused, and it would be too"))
        laps = pending.laps
        laps.begin(EdgeStage.OTHER, time.monotonic_ns())
        tap = None
        if self._previews is not None and self._is_previewed(self._previews, pending, step):
            tap = pending.keep_picture
        try:
            if pending.spans is None:
                prepared = self._preparer.prepare(frame, laps.measured, step, whole=pending.lost is not None, tap=tap)
            else:
                prepared = self._prepare_traced(pending, pending.spans, step, tap)
        except MqinferError as error:  # this frame's fault
            log.warning("%s, frame %d: %s", frame.source, frame.sequence, error)
            return self._unprepared(pending, error, tap)
        except Exception as error:  # a defect; the frame gets its outcome all the same, or the run would wait for it
            log.exception("%s, frame %d", frame.source, frame.sequence)
            return self._unprepared(pending, MqinferError(f"preparing the frame failed: {error!r}"), tap)
        laps.begin(EdgeStage.SPOOL, time.monotonic_ns())
        return prepared

    def _is_previewed(self, previews: Previews, pending: PendingFrame, step: QualityStep) -> bool:
        """Return whether a frame gets a preview: not one that comes from the disk, or that is sent once more."""
        if pending.spooled_as or pending.lost is not None:
            return False
        source, has_room = pending.frame.source, pending.stream.has_room
        return previews.wants(source, has_room=has_room, is_full_quality=step is FULL_QUALITY)

    def _unprepared(self, pending: PendingFrame, error: MqinferError, tap: Tap | None) -> InferResult:
        if tap is not None:
            self.forgo_preview(pending, PreviewDrop.NOT_SENT)
        return self._failed(pending, error)

    def _prepare_traced(
        self, pending: PendingFrame, spans: Around, step: QualityStep, tap: Tap | None
    ) -> PreparedFrame:
        def record(stage: EdgeStage, nanoseconds: int) -> None:
            pending.laps.measured(stage, nanoseconds)
            spans.measured(stage.removeprefix("edge_"), nanoseconds)

        prepared = self._preparer.prepare(pending.frame, record, step, whole=pending.lost is not None, tap=tap)
        spans.prepared()
        return prepared

    def submit(self, pending: PendingFrame, prepared: PreparedFrame) -> None:
        """Hand a frame to the client, and publish its preview behind it."""
        options = self._options
        asked: InferOptions = {
            "version": options.version,
            "output_encoding": options.output_encoding,
            "capture": pending.capture,
            "timestamps": True,
        }
        settle = partial(self._settle, pending, prepared)
        picture, pending.picture = pending.picture, None
        try:
            if pending.spans is not None:
                trace = pending.spans.context
                asked |= {"traceparent": trace.traceparent, "tracestate": trace.tracestate}
            request = make_request(options.model, {tensor.name: tensor for tensor in prepared.tensors}, asked)
            if names_label(request) and (card := self._requester.registry.card(options.model)):
                request = with_labelled_version(request, card)
            timeout = options.timeout if pending.lost is None else max(_LEAST_TIMEOUT_S, _left(pending.lost, options))
            pending.request_id = self._requester.submit(request, timeout, settle, worker=prepared.worker)
            if self._cascade:
                self._cascade.submitted()
        except MqinferError as error:  # it can't be carried or sent, or the client was closed; there is no request
            if picture is not None:
                self.forgo_preview(pending, PreviewDrop.NOT_SENT)
            settle(self._unsubmitted(pending, error))
            return
        if picture is not None and self._previews is not None:
            self._previews.publish(pending.request_id, pending.capture, picture, prepared.placement.picture)

    def _unsubmitted(self, pending: PendingFrame, error: MqinferError) -> InferResult:
        if isinstance(error, LinkError) and not isinstance(error, MessageTooLarge):
            # The connection failed for good: the spool, if there is one, keeps the frame.
            return self._failed(pending, Cancelled(str(error)))
        log.warning("%s, frame %d: %s", pending.frame.source, pending.frame.sequence, error)
        return self._failed(pending, error)

    def forgo_preview(self, pending: PendingFrame, why: PreviewDrop) -> None:
        """Drop the preview of a frame that is not sent now, and its pixels."""
        pending.picture = None
        if self._previews is not None:
            self._previews.drop(pending.frame.source, why)


def _left(lost: InferResult, options: ReplayOptions) -> float:
    """Return how much of a frame's time is left, in seconds, after a worker could not decode it."""
    return options.timeout - lost.timings.total / 1e9
