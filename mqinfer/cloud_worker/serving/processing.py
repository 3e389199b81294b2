"""The steps of one request in a worker: read, prepare, run, reply.

The pipeline's threads take the steps one by one, so that requests run together; `serve` takes them all at once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from functools import partial
from typing import TYPE_CHECKING

from mqinfer.cloud_worker.batching.batcher import Ready
from mqinfer.cloud_worker.batching.schedule import Schedule
from mqinfer.cloud_worker.serving.incoming import Delivery, IncomingRequest, read_request
from mqinfer.cloud_worker.serving.load import Admission, CancelledRequests, LoadMeter
from mqinfer.cloud_worker.serving.options import WorkerOptions
from mqinfer.cloud_worker.serving.pipeline import FinishedRun
from mqinfer.cloud_worker.serving.replies import Replies
from mqinfer.cloud_worker.serving.service import Completed, InferenceService, Prepared
from mqinfer.cloud_worker.serving.spans import Replied, WorkerSpans
from mqinfer.models.repository.config import DynamicBatching
from mqinfer.protocol.errors import Expired, MqinferError
from mqinfer.value_object import value_object

if TYPE_CHECKING:
    from mqinfer.cloud_worker.serving.remote import RemoteModels

log = logging.getLogger("mqinfer.cloud_worker")


@value_object(eq=False)
class PreparedRequest:
    """A request that is ready to run.

    Attributes:
        incoming: The request.
        prepared: Its inputs.
        queued: How long it waited for a thread, in seconds.
        ready: When it was prepared, in seconds of the worker's clock.
    """

    incoming: IncomingRequest
    prepared: Prepared
    queued: float
    ready: float

    @property
    def correlation_data(self) -> bytes | None:
        """The request's."""
        return self.incoming.path.correlation_data


class Processing:
    """The steps of requests through one worker. Thread-safe."""

    def __init__(  # noqa: PLR0913, PLR0917 - its parts, each made by the worker
        self,
        service: InferenceService,
        replies: Replies,
        admission: Admission,
        cancelled: CancelledRequests,
        schedule: Schedule,
        options: WorkerOptions,
        meter: LoadMeter,
        clock: Callable[[], float],
        spans: WorkerSpans | None = None,
        remote: RemoteModels | None = None,
    ) -> None:
        self._service = service
        self._replies = replies
        self._admission = admission
        self._cancelled = cancelled
        self._batching = schedule.batching
        self._queue_timeout_s = schedule.queue_timeout_s
        self._topics, self._limits, self._name = options.topics, options.limits, options.name
        self._meter = meter
        self._clock = clock
        self._spans = spans
        self._remote = remote

    def serve(self, delivery: Delivery) -> None:
        """Read, prepare and run a request alone, and reply to it, all on the calling thread."""
        ready = self.prepare(delivery)
        if ready is not None:
            self.run([ready.item]).reply()

    def prepare(self, delivery: Delivery) -> Ready[PreparedRequest] | None:
        """Read and prepare a request; None where it is replied to, dropped or skipped already."""
        ready = self._make_ready(delivery)
        if ready is None:
            self._admission.leave(delivery.size)
        return ready

    def run(self, batch: Sequence[PreparedRequest]) -> FinishedRun:
        """Run a batch; sending its replies is left to the caller."""
        began = self._clock()
        runnable: list[PreparedRequest] = []
        late: list[PreparedRequest] = []
        inputs: list[Prepared] = []
        rows = 0
        for each in batch:
            if self._cancelled.any and self._is_skipped(each.incoming):
                continue
            if began > each.incoming.deadline:
                late.append(each)
                continue
            runnable.append(each)
            inputs.append(each.prepared)
            rows += each.prepared.rows
        completed: list[Completed] = []
        if runnable:
            if self._remote is None:
                completed = self._service.run(inputs)
            else:
                asking = [each.incoming for each in runnable]
                completed = self._remote.serving(asking, partial(self._service.run, inputs))
            self._meter.served(self._clock() - began, len(runnable))
        for _ in late:
            error = Expired(f"the deadline passed in the queue of worker {self._name}")
            completed.append(Completed({}, error, inference_ns=0))
        return FinishedRun(rows, partial(self._reply_all, batch, runnable + late, completed, began))

    def _make_ready(self, delivery: Delivery) -> Ready[PreparedRequest] | None:
        started = self._clock()
        try:
            incoming = read_request(
                self._topics, delivery, self._limits, self._queue_timeout_s, self._service.model.card
            )
        except BaseException as error:  # noqa: BLE001 - also RecursionError and the like: the sender gets a reply
            self._replies.refuse(delivery, self._failure(error))
            return None
        if not self._replies.is_new(incoming) or (self._cancelled.any and self._is_skipped(incoming)):
            return None
        late, request = self._clock() - incoming.deadline, incoming.request
        if late > 0:
            why = f"the deadline passed {late * 1e3:.1f} ms before worker {self._name} prepared it"
            self._fail(incoming, Expired(why), started)
            return None
        try:
            prepared = self._service.prepare(request, incoming.client)
        except BaseException as error:  # noqa: BLE001 - also a defect, or SystemExit from a codec: it gets its outcome
            self._fail(incoming, self._failure(error), started)
            return None
        item = PreparedRequest(incoming, prepared, started - delivery.received, self._clock())
        return Ready(
            item,
            prepared.key,
            prepared.rows,
            incoming.client,
            _level(self._batching, request.priority, incoming.client),
            prepared.nbytes,
        )

    def _is_skipped(self, incoming: IncomingRequest) -> bool:
        """Drop a request that its client cancelled."""
        outcome = self._cancelled.pop(incoming.key)
        if outcome:
            self._replies.skip(incoming, outcome)
        return outcome is not None

    def _reply_all(
        self,
        batch: Sequence[PreparedRequest],
        wanted: Sequence[PreparedRequest],
        completed: Sequence[Completed],
        began: float,
    ) -> None:
        spans: list[Replied] | None = None if self._spans is None else []
        for replied, (each, done) in enumerate(zip(wanted, completed, strict=True)):
            try:
                self._reply(each, done, began, replied, spans)
            except BaseException as error:  # noqa: BLE001 - no memory for its encoding, or a defect: the rest goes on
                self._replies.send_error(each.incoming, self._failure(error))
        for each in batch:
            self._admission.leave(each.incoming.size)
        if self._spans is not None and spans:
            self._spans.add(spans, self._clock())

    def _fail(self, incoming: IncomingRequest, error: MqinferError, started: float) -> None:
        """Reply to a request that could not be prepared."""
        response = self._replies.send_error(incoming, error)
        if self._spans is not None and response is not None:
            now = self._clock()
            self._spans.add([Replied(incoming, response, started, now)], now)

    def _failure(self, error: BaseException) -> MqinferError:
        """Return the error that a request ends with; log what nobody expected to be raised."""
        if isinstance(error, MqinferError):
            return error
        log.error("worker %s failed on a request", self._name, exc_info=error)
        return MqinferError(f"worker {self._name} failed on this request: {error!r:.500}")

    def _reply(
        self, work: PreparedRequest, done: Completed, began: float, replied: int, spans: list[Replied] | None
    ) -> None:
        incoming = work.incoming
        if self._cancelled.any and self._is_skipped(incoming):
            return
        if done.error is None and self._clock() > incoming.deadline:  # nobody waits: encoding would be for nothing
            error = Expired(f"the deadline passed while worker {self._name} ran it")
            done = Completed({}, error, done.inference_ns, done.postprocess_ns)
        queued = work.queued + began - work.ready
        replying = 0.0 if spans is None else self._clock()
        response = self._replies.send(incoming, work.prepared, done, max(0, round(queued * 1e9)), replied)
        if spans is not None:
            started, replied_at = incoming.received + work.queued, self._clock()
            spans.append(
                Replied(incoming, response, started, replied_at, work.ready, began, replying, done.postprocess_ns)
            )


def _level(batching: DynamicBatching | None, priority: int, client: str) -> int:
    """Return the level of a request's priority, 0 the highest; 0 for all where no levels are configured."""
    if batching is None or not batching.priority_levels:
        return 0
    known = 1 <= priority <= batching.priority_levels
    level = priority if known else batching.default_priority_level or batching.priority_levels
    held = next((most for name, most in batching.highest_priority.items() if fnmatchcase(client, name)), 1)
    return min(max(level, held), batching.priority_levels) - 1
