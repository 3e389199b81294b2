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
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from queue import PriorityQueue

from mqinfer.bags.frame import Frame
from mqinfer.client.request import InferOptions, make_request, names_label, with_labelled_version
from mqinfer.client.requester import Requester
from mqinfer.client.result import InferResult
from mqinfer.client.window import NEWER_FRAME, StreamWindow
from mqinfer.edge_agent.frames.retries import Again, Patience, Retries, with_earlier
from mqinfer.edge_agent.frames.table import FrameTable, PendingFrame, PreparedFrame, Settle, failed_frame
from mqinfer.edge_agent.frames.times import EdgeStage
from mqinfer.edge_agent.preparing.preparer import Preparer
from mqinfer.edge_agent.preparing.quality_ladder import FULL_QUALITY, QualityLadder, QualityStep
from mqinfer.edge_agent.previews import PreviewDrop, Previews
from mqinfer.edge_agent.results import FirstResults
from mqinfer.edge_agent.settings import ReplayOptions
from mqinfer.fair_queue import turn_at
from mqinfer.logs import is_logged
from mqinfer.protocol.errors import Cancelled, LinkError, MessageTooLarge, MqinferError, Superseded
from mqinfer.protocol.states import AT_WORK
from mqinfer.protocol.types import InferRequest, Outcome
from mqinfer.telemetry.around import Around


class OneAtATime:
    """Runs tasks in the order of their submission, never two at once, on the threads of a shared pool. Thread-safe.

    Between two of its tasks the pool may run others, so streams take turns.

    Args:
        submit: Has a thread of the pool run a task.
    """

    def __init__(self, submit: Callable[[Callable[[], None]], object]) -> None:
        self._submit = submit
        self._lock = threading.Lock()
        self._tasks: deque[Callable[[], None]] = deque()  # the first one is running or submitted to the pool

    def submit(self, task: Callable[[], None]) -> None:
        """Queue a task; it must not raise."""
        with self._lock:
            self._tasks.append(task)
            is_first = len(self._tasks) == 1
        if is_first:
            self._submit(self._run)

    def _run(self) -> None:
        try:
            self._tasks[0]()
        finally:
            with self._lock:
                self._tasks.popleft()
                is_more = bool(self._tasks)
            if is_more:
                self._submit(self._run)


class InTurn:
    """Runs tasks on the threads of a shared pool, those of a higher priority first. Thread-safe.

    Args:
        pool: Its threads run the tasks.
    """

    def __init__(self, pool: Executor) -> None:
        self._pool = pool
        self._line: PriorityQueue[tuple[int, int, Callable[[], None]]] = PriorityQueue()  # turn, number, task
        self._numbers = count(1)

    def submit(self, priority: int, task: Callable[[], None]) -> None:
        """Queue a task of a priority, 0 for none; it must not raise."""
        number = next(self._numbers)
        self._line.put((turn_at(number, priority), number, task))
        self._pool.submit(self._run_first)

    def _run_first(self) -> None:
        _, _, task = self._line.get()
        task()


log = logging.getLogger("mqinfer.edge_agent")
PREPARERS = 2
"""Frames are prepared on so many threads."""
_BUSY_S = 3.0
"""A frame for which no file can be opened, or no memory is free, is tried again so long after the last such one."""


def started_pool(threads: int, name: str) -> ThreadPoolExecutor:
    """Return a pool whose threads run, so that none is missing once a frame is handed to it and waits for its outcome.

    Raises:
        RuntimeError: The system starts no more threads.
    """
    pool, go = ThreadPoolExecutor(threads, thread_name_prefix=name), threading.Event()
    try:
        for _ in range(threads):
            pool.submit(go.wait)
    finally:
        go.set()
    return pool


class Preparation:
    """Prepares the frames of one model. Thread-safe, as far as each frame is at one thread at a time.

    Args:
        preparer: Of the model's image input.
        options: How frames are sent.
        first: Whether any frame can succeed.
        previews: Says which frames get a small picture.
    """

    def __init__(self, preparer: Preparer, options: ReplayOptions, first: FirstResults, previews: Previews) -> None:
        self.preparer = preparer
        self.pool = started_pool(PREPARERS, "mqinfer-replay-prepare")
        self.adapts = options.quality.min_rate > 0
        """Whether quality and size depend on how many results come back."""
        self.is_told = self.adapts or previews.is_wanted or preparer.encoder.is_told
        """Whether anything depends on what becomes of the requests."""
        self.previews = previews
        self._options = options
        self._first = first
        self._patience = Patience(_BUSY_S)
        self._lock = threading.Lock()
        self._ladders: dict[str, QualityLadder] = {}
        self._in_turn = InTurn(self.pool)
        self._in_order: dict[str, OneAtATime] = {}

    def on_frame(self, source: str) -> None:
        """Count a frame that goes to the model, where `adapts`."""
        with self._lock:
            if source not in self._ladders:
                self._ladders[source] = QualityLadder(self._options.quality, self.preparer.encoder.quality)
            self._ladders[source].on_frame(time.monotonic())

    def on_result(self, frame: Frame, prepared: PreparedFrame | None, result: InferResult) -> None:
        """Learn from the outcome of a request, where `is_told`; called on any thread."""
        if self.previews.is_wanted:
            self.previews.on_result(result)
        if self.preparer.encoder.is_told:
            self.preparer.on_result(frame, prepared, result)
        if self.adapts and result.outcome is Outcome.OK:
            with self._lock:
                if frame.source in self._ladders:  # else a frame of an earlier run
                    self._ladders[frame.source].on_result()

    def run(self, pending: PendingFrame, work: Callable[[PendingFrame], None]) -> None:
        """Work on a frame on a thread: where the encoding needs the frames before, behind them."""
        source = pending.frame.source
        if not self.preparer.encoder.is_in_order:
            self._submit(source, partial(work, pending))
            return
        if source not in self._in_order:
            self._in_order[source] = OneAtATime(partial(self._submit, source))
        self._in_order[source].submit(partial(work, pending))

    def _submit(self, source: str, task: Callable[[], None]) -> None:
        if self._options.priorities is None:
            self.pool.submit(task)
        else:
            self._in_turn.submit(self._options.priorities.of(source), task)

    def prepare(self, pending: PendingFrame) -> PreparedFrame | InferResult:
        """Demosaic, resize and encode a frame; return its outcome if that fails, since there is no request then."""
        frame, laps = pending.frame, pending.laps
        if self._first.refusal:
            return self._failed(pending, Cancelled("not sent: the frames before it were refused, and it would be too"))
        ladder = self._ladders.get(frame.source)
        step = FULL_QUALITY if ladder is None else ladder.step
        laps.begin(EdgeStage.OTHER, time.monotonic_ns())
        tap = pending.keep_picture if self.previews.is_wanted and self._is_previewed(pending, step) else None
        record = laps.measured if pending.spans is None else partial(_record, pending, pending.spans)
        try:
            prepared = self.preparer.prepare(frame, record, step, whole=pending.is_whole, tap=tap)
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
            self.previews.drop(frame.source, PreviewDrop.NOT_SENT)
        pending.picture = None
        return self._failed(pending, _failure(error))

    def _is_previewed(self, pending: PendingFrame, step: QualityStep) -> bool:
        """Return whether a frame gets a preview: not one that comes from the disk, or that is sent once more."""
        if pending.spooled_as or pending.earlier is not None:
            return False
        source, has_room = pending.frame.source, pending.stream.has_room
        return self.previews.wants(source, has_room=has_room, is_full_quality=step is FULL_QUALITY)

    def forgo_preview(self, pending: PendingFrame, why: PreviewDrop) -> None:
        """Drop the preview of a frame that is not sent now, and its pixels."""
        if pending.picture is not None:
            pending.picture = None
            self.previews.drop(pending.frame.source, why)

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


@dataclass(frozen=True, slots=True, eq=False)
class StageParts:
    """What the stages of one run share.

    Attributes:
        requester: Sends the requests, and reports connections and their loss.
        options: How frames are sent.
        preparation: Prepares the frames.
        table: The frames of the run.
        changed: Guards the table, and is notified when a stream has room.
        retries: Which frames are sent once more.
    """

    requester: Requester
    options: ReplayOptions
    preparation: Preparation
    table: FrameTable
    changed: threading.Condition
    retries: Retries


class RemoteStage:
    """Sends the frames of one model, a `FrameStage`. Thread-safe.

    Args:
        parts: Of the run; the preparation is closed with this stage.
    """

    def __init__(self, parts: StageParts) -> None:
        self.left: Sequence[PendingFrame] = ()
        self._requester = parts.requester
        self._options = parts.options
        self._preparation = parts.preparation
        self._table = parts.table
        self._changed = parts.changed
        self._retries = parts.retries
        self._failed = partial(failed_frame, parts.options.model)

    def start(self, settle: Settle) -> None:
        """Follow the connection from now on."""
        self._settle = settle
        self._requester.watch(self._on_connection)
        self._table.reach.is_connected = self._requester.connected

    def take(self, pending: PendingFrame, prepared: PreparedFrame | None = None) -> None:
        """Queue a frame, where with `latest` it takes the place of an older one; send one that was prepared."""
        if prepared is not None:
            pending.earlier, pending.ends_at = None, 0.0  # from the disk, where it had no time limit
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
        """Have every frame end: one that a worker may answer has its time, and none waits for a worker or connection.

        Frames that are queued here become requests as these end, so the caller repeats this until all have ended.
        """
        self._retries.waits = False
        if self._is_reachable():
            return
        with self._changed:
            sent = [each.request_id for each in self._table.sent()]
        why = Cancelled("the run was stopped while no worker could answer; replay this part again")
        for request_id in sent:
            self._requester.cancel(request_id, why)

    def _is_reachable(self) -> bool:
        """Return whether a worker of the model accepts requests, or ends those that it has."""
        if not self._requester.connected:
            return False
        workers = [each for each in self._requester.registry.workers.values() if each.status in AT_WORK]
        return any(served.name == self._options.model for each in workers for served in each.models)

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
            timeout = self._retries.time_left(pending) if pending.ends_at else self._options.timeout
            pending.request_id = self._requester.submit(request, timeout, settle, worker=prepared.worker)
        except MqinferError as error:  # it can't be carried or sent, or the client was closed; there is no request
            self._preparation.forgo_preview(pending, PreviewDrop.NOT_SENT)
            settle(self._unsubmitted(pending, error))
            return
        if pending.edge_answers and not self._requester.connected:  # lost just before
            self._on_connection()
        picture, pending.picture = pending.picture, None
        if picture is not None:
            self._preparation.previews.publish(pending.request_id, pending.capture, picture, prepared.placement.picture)

    def _request(self, pending: PendingFrame, prepared: PreparedFrame) -> InferRequest:
        options = self._options
        asked: InferOptions = {
            "version": options.version,
            "output_encoding": options.output_encoding,
            "capture": pending.capture,
            "timestamps": True,
        }
        if options.priorities is not None:
            asked["priority"] = options.priorities.of(pending.frame.source)
        if pending.spans is not None:
            trace = pending.spans.context
            asked |= {"traceparent": trace.traceparent, "tracestate": trace.tracestate}
        request = make_request(options.model, {tensor.name: tensor for tensor in prepared.tensors}, asked)
        if names_label(request) and (card := self._requester.registry.card(options.model)):
            request = with_labelled_version(request, card)
        return request

    def _unsubmitted(self, pending: PendingFrame, error: MqinferError) -> InferResult:
        if isinstance(error, LinkError) and not isinstance(error, MessageTooLarge):
            # The connection failed for good: the spool, if there is one, keeps the frame.
            return self._failed(pending, Cancelled(str(error)))
        log.warning("%s, frame %d: %s", pending.frame.source, pending.frame.sequence, error)
        return self._failed(pending, error)

    def _settled(self, pending: PendingFrame, prepared: PreparedFrame | None, result: InferResult) -> None:
        """Remove a frame with its outcome from the window, which makes room for queued ones."""
        again = None if result.error is None else self._retries.again(pending, result, is_prepared=prepared is not None)
        if again is Again.AS_IT_IS and prepared is not None:
            self._log_unserved(result)
            self._preparation.pool.submit(self._submit, pending, prepared)
            return
        if self._preparation.is_told:
            self._preparation.on_result(pending.frame, prepared, result)
        if again is Again.WHOLE:
            self._preparation.pool.submit(self._prepare_and_submit, pending)
            return
        result = result if pending.earlier is None else with_earlier(pending.earlier, result)
        with self._changed:
            self._table.leave(pending, result)
            self._advance(pending.stream)
            self._changed.notify_all()
        self._end(pending, result, prepared)

    def _log_unserved(self, result: InferResult) -> None:
        if is_logged(self._retries.unserved) and result.error is not None:
            limit = self._options.timeout
            log.warning("%s; frames wait for one, at most %g s each", result.error.message, limit)

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
