"""What the crew does with a request: read and prepare it, run it in a batch, answer it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from mqinfer.broker.link import Message
from mqinfer.cloud_worker.batching.batcher import Ready
from mqinfer.cloud_worker.batching.schedule import Schedule
from mqinfer.cloud_worker.serving.admission import Admission
from mqinfer.cloud_worker.serving.incoming import Ticket, read_ticket
from mqinfer.cloud_worker.serving.load import LoadMeter
from mqinfer.cloud_worker.serving.options import WorkerOptions
from mqinfer.cloud_worker.serving.pipeline import Ran
from mqinfer.cloud_worker.serving.replies import Answers
from mqinfer.cloud_worker.serving.service import Completed, InferenceService, Prepared
from mqinfer.protocol.errors import Expired, MqinferError
from mqinfer.protocol.types import Timings

__all__ = ["Job", "Processing", "Work"]

log = logging.getLogger("mqinfer.cloud_worker")
Job = tuple[Message, float]
"""A message, and when it came, in seconds of the worker's clock."""


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """A request between decoding and running.

    Attributes:
        ticket: Whose it is.
        prepared: Its inputs.
        started: When a thread took it up, in seconds of the worker's clock.
        ready: When it was prepared.
        size: Bytes of its message.
    """

    ticket: Ticket
    prepared: Prepared
    started: float
    ready: float
    size: int


class Processing:
    """The way of requests through one worker; called by all threads of its crew."""

    def __init__(  # noqa: PLR0913, PLR0917 - its parts, each made by the worker
        self,
        service: InferenceService,
        answers: Answers,
        admission: Admission,
        schedule: Schedule,
        options: WorkerOptions,
        meter: LoadMeter,
        clock: Callable[[], float],
    ) -> None:
        self._service = service
        self._answers = answers
        self._admission = admission
        self._schedule = schedule
        self._options = options
        self._name = options.name
        self._meter = meter
        self._clock = clock

    def decode(self, job: Job) -> Ready[Work] | None:
        """Read and prepare a request; None where it is answered, dropped or skipped already."""
        ready = self._make_ready(job)
        if ready is None:
            self._admission.leave(len(job[0].payload))
        return ready

    def _make_ready(self, job: Job) -> Ready[Work] | None:
        message, received = job
        started = self._clock()
        try:
            ticket = read_ticket(self._options.topics, message, received, self._options.limits)
        except MqinferError as error:
            self._answers.refuse(message, error)
            return None
        ticket = replace(ticket, deadline=self._schedule.deadline(received, ticket.deadline))
        if not self._answers.is_new(ticket) or self._is_skipped(ticket):
            return None
        try:
            self._check_deadline(ticket)
            prepared = self._service.prepare(ticket.request)
        except MqinferError as error:
            self._answers.answer(ticket, error, Timings())
            return None
        except Exception as error:  # a defect; the request gets its outcome all the same
            log.exception("worker %s, request %s", self._name, ticket.request.id)
            self._answers.answer(ticket, MqinferError(f"can't be prepared: {error!r}"), Timings())
            return None
        request = ticket.request
        return Ready(
            Work(ticket, prepared, started, self._clock(), len(message.payload)),
            prepared.key,
            prepared.rows,
            ticket.address.client,
            request.capture.source,
            self._schedule.level(request.priority),
        )

    def _is_skipped(self, ticket: Ticket) -> bool:
        """Drop a request that its client took back."""
        outcome = self._admission.was_taken_back(ticket.key)
        if outcome:
            self._answers.skip(ticket, outcome)
        return outcome is not None

    def _check_deadline(self, ticket: Ticket) -> None:
        late = self._clock() - ticket.deadline
        if late > 0:
            raise Expired(f"the deadline passed {late * 1e3:.1f} ms before worker {self._name} came to it")

    def run(self, batch: Sequence[Work]) -> Ran:
        """Run a batch; what is left to do with its results comes back as a function."""
        now = self._clock()
        wanted = [work for work in batch if not self._is_skipped(work.ticket)]
        alive = [work for work in wanted if now <= work.ticket.deadline]
        completed = self._service.run([work.prepared for work in alive]) if alive else []
        if alive:
            self._meter.served(self._clock() - now, len(alive))
        rows = sum(work.prepared.rows for work in alive)
        done = dict(zip(map(id, alive), completed, strict=True))
        return Ran(rows, lambda: self._finish(batch, wanted, done, now))

    def _finish(
        self, batch: Sequence[Work], wanted: Sequence[Work], completed: dict[int, Completed], ran: float
    ) -> None:
        for work in wanted:
            done = completed.get(id(work)) or Completed(
                {}, Expired(f"the deadline passed in the queue of worker {self._name}"), inference_ns=0
            )
            try:
                self._answer_completed(work, done, ran)
            except Exception:  # a defect; the rest of the batch is answered all the same
                log.exception("worker %s could not answer request %s", self._name, work.ticket.request.id)
        self._admission.leave(sum(work.size for work in batch))

    def _answer_completed(self, work: Work, done: Completed, ran: float) -> None:
        if self._is_skipped(work.ticket):
            return
        if self._clock() > work.ticket.deadline and done.error is None:  # nobody waits: encoding would be for nothing
            done = replace(done, outputs={}, error=Expired(f"the deadline passed while worker {self._name} ran it"))
        queued = work.started - work.ticket.received + ran - work.ready
        timings = Timings(
            server_queue=max(0, round(queued * 1e9)),
            decode=work.prepared.decode_ns,
            preprocess=work.prepared.preprocess_ns,
            inference=done.inference_ns,
            postprocess=done.postprocess_ns,
        )
        self._answers.answer(work.ticket, done.error, timings, done.outputs)
