"""One model on one broker connection: receives requests from the shared channel and its lane, and replies to each.

The way of a request: the link's thread receives it (`_receive`); a thread of the pipeline reads and prepares it, and
one runs it in a batch and replies (`.processing`). Short work for an idle worker never leaves the link's thread.
Shutting down goes in this order: state `draining`, unsubscribe, finish what was accepted, state `stopped`, remove the
state, disconnect. A worker that an operator drains stops behind the third of these, and can come back.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from msgspec import structs

from mqinfer.broker.link import ConnectionHandler, Link, Message, ReasonCode
from mqinfer.broker.malloc import return_freed_memory
from mqinfer.cloud_worker.batching.batcher import Batcher
from mqinfer.cloud_worker.batching.schedule import Schedule
from mqinfer.cloud_worker.serving.announcer import WorkerAnnouncer
from mqinfer.cloud_worker.serving.incoming import Delivery, accept
from mqinfer.cloud_worker.serving.intake import Intake
from mqinfer.cloud_worker.serving.load import Admission, CancelledRequests, LoadMeter
from mqinfer.cloud_worker.serving.options import WorkerOptions
from mqinfer.cloud_worker.serving.pipeline import Pipeline, RunningRequests
from mqinfer.cloud_worker.serving.processing import PreparedRequest, Processing
from mqinfer.cloud_worker.serving.replies import Replies
from mqinfer.cloud_worker.serving.service import InferenceService
from mqinfer.cloud_worker.serving.shadow import Shadowing
from mqinfer.cloud_worker.serving.spans import WorkerSpans
from mqinfer.models.ensemble.ensemble import step_counts
from mqinfer.models.loading import LoadedModel
from mqinfer.models.repository.traffic import Shadow
from mqinfer.protocol.card import ModelCard, with_parameters
from mqinfer.protocol.control import Cancellation, ModelStatistics
from mqinfer.protocol.errors import MqinferError, Rejected
from mqinfer.protocol.states import WorkerStatus
from mqinfer.protocol.types import WorkerLoad

if TYPE_CHECKING:
    from mqinfer.client import Client
    from mqinfer.cloud_worker.serving.remote import RemoteModels
    from mqinfer.telemetry.tracer import Tracer

log = logging.getLogger("mqinfer.cloud_worker")
_IDLE_S = 5.0
"""A worker without a request for so many seconds returns the memory that it has freed to the system."""
_UNFINISHED_S = 1.0
"""A worker that could not drain leaves its threads to themselves after so long: the task of one may never end."""
LinkMaker = Callable[[str, Message, ConnectionHandler], Link]
"""Makes a link from a client id, a will and a handler for its connections."""


class Worker:
    """Serves one loaded model until it is stopped."""

    def __init__(  # noqa: PLR0913 - what is known of the model, and a clock for tests
        self,
        model: LoadedModel,
        make_link: LinkMaker,
        options: WorkerOptions,
        *,
        is_default: bool = True,
        share: int = 0,
        service_s: float = 0.0,
        incarnation: int | None = None,
        clock: Callable[[], float] = time.monotonic,
        running: RunningRequests | None = None,
        tracer: Tracer | None = None,
        remote: RemoteModels | None = None,
        shadow: Shadow | None = None,
        connect_shadow: Callable[[], Client] | None = None,
    ) -> None:
        """Set up; `start` connects.

        Args:
            model: Loaded and warm.
            make_link: How to reach the broker.
            options: Name, bounds and topics.
            is_default: Whether requests without a version are for this one.
            share: As a canary: per cent of the requests without a version that clients send to it.
            service_s: How long one request takes, in seconds, as far as it is known before the first; 0 while unknown.
            incarnation: The number of its process's start; None for a new one.
            clock: In seconds.
            running: Where the requests are recorded that its threads work on, for its server.
            tracer: Makes spans of the requests; None for none.
            remote: Asks other workers for steps of the model; None where it has none such.
            shadow: What gets copies of its requests; None for nothing.
            connect_shadow: Makes the client that sends copies of requests to a shadow version; None where none is sent.
        """
        self._running = running or RunningRequests()
        self._model = model
        self._options = options
        self._clock = clock
        self._meter = LoadMeter(service_s=service_s)
        for counts in step_counts(model.backend):
            counts.sums = ModelStatistics()  # the runs of the warm-up are nobody's
        self._service = InferenceService(model, options.limits, self._meter.ran, self._meter.count)
        self._schedule = Schedule(model.config.dynamic_batching, self._service.max_rows)
        self._max_queued = self._schedule.max_queued
        self._remote, self._connect_shadow = remote, connect_shadow
        self._inline_s = 0.0 if self._schedule.gathers or remote else options.inline_s
        self._inline = 0  # requests that are being served on the link's thread: 0 or 1
        self._inline_since = math.inf
        self._came = 0.0  # when the last request came; 0 once its memory is returned
        self._admission = Admission(options, self._service.max_rows * model.backend.concurrency)
        self._cancelled = CancelledRequests()
        self._replies = Replies(self._service, options, self._meter, self._load, self._publish, clock)
        self._shadow(shadow)
        self._processing = Processing(
            self._service,
            self._replies,
            self._admission,
            self._cancelled,
            self._schedule,
            options,
            self._meter,
            clock,
            None if tracer is None else WorkerSpans(tracer, options.topics),
            remote,
        )
        self.pipeline: Pipeline[Delivery, PreparedRequest] = Pipeline(
            Batcher(self._schedule.policy),
            self._processing.prepare,
            self._processing.run,
            options.threads,
            concurrency=model.backend.concurrency,
            in_order=self._schedule.in_order,
            most_bytes=options.capacity_bytes,
            clock=clock,
            record=self._record,
        )
        if self.pipeline.threads >= RunningRequests.SLOTS:  # a culprit without a slot would put the blame on others
            self._running = RunningRequests(bytearray((self.pipeline.threads + 1) * RunningRequests.SLOT_BYTES))
        self._announcer = WorkerAnnouncer(
            self.card,
            options,
            self._load,
            self._meter.counters,
            self._on_ack,
            accepted=self._admission.accepted,
            is_default=is_default,
            share=share,
            incarnation=incarnation,
            clock=clock,
        )
        self._link = make_link(self._announcer.presence.client_id, self._announcer.presence.will, self._on_connection)
        topics, group = options.topics, options.group
        filters = [topics.infer_filter(self.card.name, self.card.version)]
        if is_default:
            filters.append(topics.infer_filter(self.card.name))
        channels, lane = [(each, group) for each in filters], (topics.lane.filter(worker=self.name), None)
        self._intake = Intake(self._link, channels, lane, self._receive, clock)

    @property
    def name(self) -> str:
        """The worker's name in its topics and replies."""
        return self._options.name

    @property
    def failure(self) -> MqinferError | None:
        """Why nobody is served any more, or not all requests; else None.

        Another process has its name, its connection failed for good, or one of its threads failed.
        """
        return self._announcer.presence.failure or self._link.failure or self.pipeline.failure

    @property
    def card(self) -> ModelCard:
        """The card of the model that it serves."""
        return self._model.card

    @property
    def depth(self) -> int:
        """Requests accepted and not replied to."""
        return self.pipeline.depth + self._inline

    def progress(self) -> float:
        """Return the time at which the oldest task that is not finished began; the time now where there is none.

        It stands still while a task does not end.
        """
        return min(self.pipeline.busy_since, self._inline_since, self._clock())

    def statistics(self, memory_bytes: int = 0) -> ModelStatistics:
        """Return what it has done so far.

        Args:
            memory_bytes: Resident memory of the process, repeated in the statistics.
        """
        received = [
            each.incoming.received if isinstance(each, PreparedRequest) else each.received
            for each in self.pipeline.waiting()
        ]
        oldest = max(0.0, self._clock() - min(received)) if received else 0.0
        return structs.replace(
            self._meter.statistics(),
            memory_bytes=memory_bytes,
            depth=self.depth,
            capacity=self._options.capacity,
            oldest_ns=round(oldest * 1e9),
            steps=[(each.card.name, int(each.card.version), each.sums) for each in step_counts(self._model.backend)],
        )

    def start(self, timeout: float = 10.0) -> None:
        """Connect, publish `ready`, and serve.

        Raises:
            BrokerUnreachable: No broker answers.
            NotAuthorized: The broker refused the credentials or a subscription, or would not deliver requests.
        """
        self.pipeline.start()
        try:
            self._link.open(timeout)
            self._announcer.attach(self._link)
            self._link.subscribe(self._options.topics.cancel.filter(model=self.card.name), self._cancel, retained=False)
            self._intake.join()
            self._announcer.publish(WorkerStatus.READY)
            self._announcer.check_taken()
        except BaseException:
            self._announcer.withdraw()
            self.pipeline.stop()
            self._link.close()
            raise
        log.debug("worker %s serves %s", self.name, self._model.card.name)

    def stop(self, timeout: float = 30.0) -> None:
        """Drain and disconnect.

        The lane is left last, and only when nothing came over it for a moment: clients that have not received the state
        yet still send there.

        Args:
            timeout: For what was accepted, in seconds.
        """
        self.drain()
        self._intake.leave(timeout)
        drained = self.pipeline.drain(timeout)
        if not drained:
            log.warning("worker %s stops with %d requests unfinished after %g s", self.name, self.depth, timeout)
        why = Rejected(f"worker {self.name} is stopping")
        left = self.pipeline.stop(None if drained else _UNFINISHED_S)
        self._shadow(None)
        for each in left:
            self._reject(each, why)
        self._announcer.presence.end()
        self._link.close()
        if math.isinf(self.pipeline.busy_since):  # else a thread is still in it
            self._model.backend.close()

    def drain(self, *, on: bool = True) -> None:
        """Accept nothing more from the models' channels, or serve again, and announce that.

        What comes over the lane is still served.

        Args:
            on: Whether it drains.

        Raises:
            BrokerUnreachable: The broker does not answer; call it again.
        """
        if on:
            self._intake.begin_to_drain()
            self._announcer.publish(WorkerStatus.DRAINING)
            self._intake.leave_channels()
        else:
            self._intake.join()
            self._announcer.publish(WorkerStatus.READY)

    def is_drained(self) -> bool:
        """Return whether, after `drain`, nothing is accepted any more and all that was accepted is answered.

        Raises:
            BrokerUnreachable: The broker does not answer; call it again.
        """
        return self._intake.is_left() and self.depth == 0

    def _on_connection(self, connected: bool) -> None:  # noqa: FBT001  the link's signature
        if connected:
            self._announcer.repeat()

    def assign(
        self, labels: Mapping[str, str], traffic: Mapping[str, int], share: int, shadow: Shadow | None = None
    ) -> None:
        """Publish labels and shares, as in `CardParameters` and `ServedModel`, and copy requests for a shadow."""
        self._shadow(shadow)
        card = with_parameters(self.card, labels=labels, traffic=traffic)
        self._model = replace(self._model, card=card)
        self._announcer.assign(card, share)

    def _shadow(self, target: Shadow | None) -> None:
        before = self._replies.shadowing
        if target == (before and before.target):
            return
        self._replies.shadowing = None
        if target is not None and self._connect_shadow is not None:
            self._replies.shadowing = Shadowing(target, self._meter, self._connect_shadow, self._clock)
        if before is not None:
            before.close()

    def refresh(self, *, repeat: bool = False) -> None:
        """Publish the state again where its figures have changed, and free what streams and requests leave behind.

        Call it about twice a second, from one thread.

        Args:
            repeat: Whether to publish card and state in any case.
        """
        if repeat:
            self._announcer.repeat()
        else:
            self._announcer.refresh()
        is_idle = self._came > 0 and not self.depth and self._clock() - self._came > _IDLE_S
        if self._service.forget_idle() or is_idle:
            self._came = 0.0
            return_freed_memory()

    def _load(self, replied: int = 0) -> WorkerLoad:
        meter = self._meter
        return meter.load(self.pipeline.depth + self._inline - replied, self._admission.window(meter.service_s))

    def _receive(self, message: Message) -> None:
        if message.retain:  # kept by the broker: it would come again to each worker, and crash one after the other
            self._meter.drop("retained", f"a retained request on {message.topic}")
            return
        if self._intake.draining:
            self._intake.came.set()
        if not len(message.payload) and message.response_topic is None:
            return  # another worker's, to itself: see `reads_back`
        delivery = accept(self._options.topics, message, self._clock())
        self._came = delivery.received
        depth = self.pipeline.depth
        if depth and not self._has_room(delivery, depth):
            return
        if not self._admission.enter(delivery.client, delivery.size, delivery.received):
            self._make_way(delivery)
        elif depth or not self._is_short(delivery):
            self.pipeline.receive(delivery, delivery.client)
        else:
            self._serve_inline(delivery)

    def _make_way(self, delivery: Delivery) -> None:
        """Accept a request for whose bytes there is no room, where another client has more queued; else reject it."""
        mib = self._options.capacity_bytes >> 20
        why = Rejected(f"worker {self.name} is at its capacity of {mib} MiB of requests")
        evicted = self.pipeline.evict(delivery.client)
        if evicted is not None:
            self._reject(evicted, why)
        if evicted is not None and self._admission.enter(delivery.client, delivery.size, delivery.received):
            self.pipeline.receive(delivery, delivery.client)
        else:
            self._refuse(delivery, why)

    def _has_room(self, delivery: Delivery, depth: int) -> bool:
        """Make room for a request where there is none; where that can't be, reject it."""
        capacity, most = self._options.capacity, self._max_queued
        if depth >= capacity:
            if self._admission.is_flood(delivery.client, delivery.received):  # before anything that takes time
                self._meter.drop("flood", f"a request of {delivery.client}, which sends without a window")
                return False
            why = Rejected(f"worker {self.name} is at its capacity of {capacity} requests")
            evicted = self.pipeline.evict(delivery.client)
            if evicted is not None:
                self._reject(evicted, why)
                return True
        elif self.pipeline.queued >= most:
            why = Rejected(f"{most} requests are queued at worker {self.name}, the model's max_queue_size")
            why.queue_full = True
        else:
            return True
        self._refuse(delivery, why)
        return False

    def _refuse(self, delivery: Delivery, why: Rejected) -> None:
        self._admission.refuse(delivery.client, delivery.received)
        self._replies.refuse(delivery, why)

    def _is_short(self, delivery: Delivery) -> bool:
        """Whether a request will be served in less time than the hand-over to another thread is worth.

        One slow request raises the estimate at once, so that the next one leaves the link's thread alone. Floods are
        served so too: handing them to the pipeline, where clients take turns, left others with less (a share of 0.2 of
        their throughput in place of 0.4), since the threads then compete with this one.
        """
        return 0 < self._meter.busy_s < self._inline_s and delivery.size <= self._options.inline_bytes

    def _serve_inline(self, delivery: Delivery) -> None:
        """Serve a request on the link's thread. Only that thread adds work, so nothing else runs meanwhile."""
        self._inline, self._inline_since = 1, delivery.received
        self._record(self.pipeline.threads, (delivery,))
        try:
            self._processing.serve(delivery)
        except BaseException as error:  # noqa: BLE001 - a defect: as on the pipeline's threads
            self.pipeline.fail(error)
        finally:
            self._record(self.pipeline.threads, ())
            self._inline, self._inline_since = 0, math.inf

    def _record(self, slot: int, items: Sequence[Delivery | PreparedRequest]) -> None:
        """Record what a thread begins to work on; called with nothing after that."""
        self._running.write(slot, [each.correlation_data for each in items])

    def _reject(self, accepted: Delivery | PreparedRequest, why: Rejected) -> None:
        """Reply to an accepted request, so that it is sent to another worker."""
        if isinstance(accepted, PreparedRequest):
            self._admission.leave(accepted.incoming.size)
            self._replies.send_error(accepted.incoming, why)
        else:
            self._admission.leave(accepted.size)
            self._replies.refuse(accepted, why)

    def _cancel(self, message: Message) -> None:
        if message.retain:
            self._meter.drop("retained", f"a retained cancellation on {message.topic}")
            return
        try:
            client = self._options.topics.cancel.parse(message.topic)["client"]
            cancellation = Cancellation.from_json(message.payload)
        except MqinferError as error:
            self._meter.drop(error.code, f"an unreadable cancellation on {message.topic}: {error}")
            return
        self._cancelled.add(client, cancellation.ids, cancellation.outcome)
        if self._remote is not None:
            self._remote.cancel(client, cancellation.ids)

    def _publish(self, message: Message) -> None:
        self._link.publish(message, self._on_ack)

    def _on_ack(self, code: int) -> None:
        if code == ReasonCode.NOT_AUTHORIZED:
            self._meter.count("refused_by_broker")
            log.error("the broker does not let worker %s publish its state or its replies", self.name)
