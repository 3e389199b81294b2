"""The last stage of a frame: it waits for room in its stream's window, is prepared, and is sent to the model.

`take` queues a frame, `_advance` lets it into the window, `_prepare_and_submit` hands it to the client, and `_settled`
receives its outcome. A frame that the edge can answer is not sent while the model is silent: it ends with the silence
as its error. Any other one that finds no worker, of a model that was there, is sent again until its time is over, with
the policy `all`. After its request a frame's preview is published, where one is due
(`mqinfer.edge_agent.previews`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from mqinfer.client.request import InferOptions, make_request, names_label, with_labelled_version
from mqinfer.client.requester import Requester
from mqinfer.client.result import InferResult
from mqinfer.client.window import NEWER_FRAME, StreamWindow
from mqinfer.edge_agent.frames.chain import Settle
from mqinfer.edge_agent.frames.pending import PendingFrame, failed_frame
from mqinfer.edge_agent.frames.prepared import PreparedFrame
from mqinfer.edge_agent.frames.reach import was_there
from mqinfer.edge_agent.frames.table import FrameTable
from mqinfer.edge_agent.preparation import Preparation
from mqinfer.edge_agent.previews import PreviewDrop, Previews
from mqinfer.edge_agent.settings import ReplayOptions
from mqinfer.logs import is_logged
from mqinfer.protocol.errors import Cancelled, LinkError, MessageTooLarge, MqinferError, NoWorker, Superseded
from mqinfer.protocol.types import ErrorInfo, InferRequest, Outcome

__all__ = ["RemoteStage"]

log = logging.getLogger("mqinfer.edge_agent")
_LEAST_TIMEOUT_S = 0.001
"""A frame that is sent again after its time is over expires in the regular way."""


class RemoteStage:
    """Sends the frames of one model, a `FrameStage`. Thread-safe."""

    def __init__(  # noqa: PLR0913, PLR0917 - its parts, each made by the replay
        self,
        requester: Requester,
        preparation: Preparation,
        options: ReplayOptions,
        table: FrameTable,
        changed: threading.Condition,
        previews: Previews,
        *,
        waits: bool,
    ) -> None:
        """Prepare; `start` before the first frame.

        Args:
            requester: Sends the requests.
            preparation: Prepares the frames; closed with this stage.
            options: How frames are sent.
            table: The frames of the run.
            changed: Guards the table, and is notified when a stream has room.
            previews: Publishes small pictures of the frames.
            waits: Whether frames that the edge can't answer wait for a worker.
        """
        self.left: Sequence[PendingFrame] = ()
        self._requester = requester
        self._preparation = preparation
        self._options = options
        self._table = table
        self._changed = changed
        self._previews = previews
        self._waits = waits
        self._unserved = 0  # how often a frame was sent again for want of a worker
        self._failed = partial(failed_frame, options.model)

    def start(self, settle: Settle) -> None:
        """Follow the connection from now on."""
        self._settle = settle
        self._requester.watch(self._on_connection)
        self._table.reach.is_connected = self._requester.connected

    def take(self, pending: PendingFrame, prepared: PreparedFrame | None = None) -> None:
        """Queue a frame, where with `latest` it takes the place of an older one; send one that was prepared."""
        if prepared is not None:
            pending.ends_at = 0.0  # from the disk, where it had no time limit
            self._submit(pending, prepared)
            return
        stream = pending.stream
        with self._changed:
            why = self._table.why_not(pending)
            if why is None:
                if self._preparation.adapts:
                    self._preparation.on_frame(pending.frame.source)
                lost = stream.put(pending)
                self._advance(stream)
                replaceable = self._table.replaceable(stream)
        if why is not None:
            self._end(pending, self._failed(pending, why))
            return
        if replaceable:  # one that was sent and that no worker works on
            self._requester.supersede(replaceable)
        if lost is not None:
            self._end(lost, self._failed(lost, Superseded(NEWER_FRAME)))

    def leave(self) -> None:
        """Have every frame end by itself: its request has its time, and is not sent again."""
        self._waits = False

    def close(self) -> None:
        """End the threads."""
        self._preparation.close()

    def _advance(self, stream: StreamWindow[PendingFrame]) -> None:
        """Start the queued frames that the window has room for; the lock is held."""
        for pending in stream.take():
            self._preparation.run(pending, self._prepare_and_submit)

    def _prepare_and_submit(self, pending: PendingFrame) -> None:
        if pending.edge_answers:
            with self._changed:
                why = self._table.why_not(pending)
            if why is not None:
                self._settled(pending, None, self._failed(pending, why))
                return
        prepared = self._preparation.prepare(pending)
        if isinstance(prepared, InferResult):
            self._settled(pending, None, prepared)
        else:
            self._submit(pending, prepared)

    def _submit(self, pending: PendingFrame, prepared: PreparedFrame) -> None:
        """Hand a frame to the client, and publish its preview behind it."""
        settle = partial(self._settled, pending, prepared)
        try:
            request = self._request(pending, prepared)
            is_first = pending.lost is None and not pending.ends_at
            timeout = self._options.timeout if is_first else self._time_left(pending)
            pending.request_id = self._requester.submit(request, timeout, settle, worker=prepared.worker)
        except MqinferError as error:  # it can't be carried or sent, or the client was closed; there is no request
            self._preparation.forgo_preview(pending, PreviewDrop.NOT_SENT)
            settle(self._unsubmitted(pending, error))
            return
        if pending.edge_answers and not self._requester.connected:  # lost just before
            self._on_connection()
        picture, pending.picture = pending.picture, None
        if picture is not None:
            self._previews.publish(pending.request_id, pending.capture, picture, prepared.placement.picture)

    def _request(self, pending: PendingFrame, prepared: PreparedFrame) -> InferRequest:
        options = self._options
        asked: InferOptions = {
            "version": options.version,
            "output_encoding": options.output_encoding,
            "capture": pending.capture,
            "timestamps": True,
        }
        if pending.spans is not None:
            trace = pending.spans.context
            asked |= {"traceparent": trace.traceparent, "tracestate": trace.tracestate}
        request = make_request(options.model, {tensor.name: tensor for tensor in prepared.tensors}, asked)
        if names_label(request) and (card := self._requester.registry.card(options.model)):
            request = with_labelled_version(request, card)
        return request

    def _time_left(self, pending: PendingFrame) -> float:
        """Return how much of its time is left to a frame that was sent before, in seconds."""
        if pending.ends_at or pending.lost is None:
            return max(_LEAST_TIMEOUT_S, pending.ends_at - time.monotonic())
        return max(_LEAST_TIMEOUT_S, self._options.timeout - pending.lost.timings.total / 1e9)

    def _unsubmitted(self, pending: PendingFrame, error: MqinferError) -> InferResult:
        if isinstance(error, LinkError) and not isinstance(error, MessageTooLarge):
            # The connection failed for good: the spool, if there is one, keeps the frame.
            return self._failed(pending, Cancelled(str(error)))
        log.warning("%s, frame %d: %s", pending.frame.source, pending.frame.sequence, error)
        return self._failed(pending, error)

    def _settled(self, pending: PendingFrame, prepared: PreparedFrame | None, result: InferResult) -> None:
        """Remove a frame with its outcome from the window, which makes room for queued ones."""
        if result.error is not None and self._waits_for_worker(pending, prepared, result.error, result):
            return
        if pending.unserved is not None:
            result, pending.unserved = _after(pending.unserved, result), None
        if self._previews.is_wanted:
            self._previews.on_result(result)
        preparer = self._preparation.preparer
        if preparer.encoder.is_told:
            preparer.on_result(pending.frame, prepared, result)
            if self._table.is_again(pending, result):
                self._preparation.pool.submit(self._prepare_and_submit, pending)
                return
            result = result if pending.lost is None else _after(pending.lost, result)
        if self._preparation.adapts and result.outcome is Outcome.OK:
            self._preparation.on_result(pending.frame.source)
        with self._changed:
            self._table.leave(pending, result)
            self._advance(pending.stream)
            self._changed.notify_all()
        self._end(pending, result, prepared)

    def _waits_for_worker(
        self, pending: PendingFrame, prepared: PreparedFrame | None, error: ErrorInfo, result: InferResult
    ) -> bool:
        """Send a frame again that no worker took, on another thread; return False where it does not wait for one."""
        if error.code != NoWorker.code or not self._waits or pending.edge_answers:
            return False
        if prepared is None or not was_there(self._requester.registry, self._options.model, self._options.version):
            return False
        if not pending.ends_at:
            pending.ends_at = time.monotonic() + self._options.timeout - result.timings.total / 1e9
        elif time.monotonic() >= pending.ends_at:
            return False
        pending.unserved = result if pending.unserved is None else _after(pending.unserved, result)
        self._unserved += 1
        if is_logged(self._unserved):
            log.warning("%s; frames wait for one, at most %g s each", error.message, self._options.timeout)
        self._preparation.pool.submit(self._submit, pending, prepared)
        return True

    def _end(self, pending: PendingFrame, result: InferResult, prepared: PreparedFrame | None = None) -> None:
        """Hand a frame with its outcome back to the stage before, which may answer it while the model is silent."""
        with self._changed:
            if result.outcome is Outcome.CANCELLED:
                self._table.reach.on_connection(is_connected=self._requester.connected)
            result = self._table.ended(pending, result)
        self._settle(pending, prepared, result)

    def _on_connection(self) -> None:
        """Have the edge answer what was sent before a loss: on another thread, since this one is the link's."""
        with self._changed:
            is_connected = self._requester.connected
            self._table.reach.on_connection(is_connected=is_connected)
            cut_off = [] if is_connected else [each.request_id for each in self._table.sent() if each.edge_answers]
        if cut_off:
            with suppress(RuntimeError):  # it is being closed
                self._preparation.pool.submit(self._recall, cut_off)

    def _recall(self, requests: Sequence[str]) -> None:
        for request_id in requests:
            self._requester.cancel(request_id, Cancelled("there is no connection; the edge answers alone"))


def _after(lost: InferResult, result: InferResult) -> InferResult:
    """Return the result of a frame that was sent twice, with the attempts and bytes of both."""
    attempts, sent = lost.attempts + result.attempts, lost.bytes_sent + result.bytes_sent
    return replace(result, attempts=attempts, bytes_sent=sent)
