"""One model on one broker connection: takes requests from the shared channel and its lane, and answers each.

Life of a request: the link's thread takes it in (`_receive`), a thread of the crew reads and prepares it, one runs it
in a batch and answers (`.processing`). Shutting down goes in this order: state `draining`, unsubscribe, finish what is
in hand, state `stopped`, disconnect.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

from mqinfer.broker.link import ConnectionHandler, Link, Message, ReasonCode
from mqinfer.cloud_worker.batching.batcher import Batcher
from mqinfer.cloud_worker.batching.schedule import Schedule
from mqinfer.cloud_worker.serving.admission import Admission
from mqinfer.cloud_worker.serving.announcer import Announcer
from mqinfer.cloud_worker.serving.load import LoadMeter
from mqinfer.cloud_worker.serving.options import WorkerOptions
from mqinfer.cloud_worker.serving.pipeline import Crew
from mqinfer.cloud_worker.serving.processing import Job, Processing, Work
from mqinfer.cloud_worker.serving.replies import Answers
from mqinfer.cloud_worker.serving.service import InferenceService
from mqinfer.models.loading import LoadedModel
from mqinfer.protocol.card import ModelCard
from mqinfer.protocol.control import Cancellation, ModelStatistics
from mqinfer.protocol.errors import BadTopic, LinkError, MqinferError, Rejected
from mqinfer.protocol.states import WorkerStatus
from mqinfer.protocol.types import Timings, WorkerLoad

__all__ = ["LinkMaker", "Worker"]

log = logging.getLogger("mqinfer.cloud_worker")
_SILENCE_S = 0.1
"""After this long without a request every client has heard that the worker drains."""
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
        service_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare; `start` connects.

        Args:
            model: Loaded and warm.
            make_link: How to reach the broker.
            options: Name, bounds and topics.
            is_default: Whether requests without a version are for this one.
            service_s: How long one request takes, in seconds, as far as is known before the first; 0 for not at all.
            clock: In seconds.
        """
        self._model = model
        self._options = options
        self._is_default = is_default
        self._clock = clock
        self._meter = LoadMeter()
        if service_s:
            self._meter.served(service_s, 1)
        self._service = InferenceService(
            model, options.limits, self._meter.ran, lambda: self._meter.count("batches_rerun")
        )
        self._came = threading.Event()  # set by each request
        self._schedule = Schedule(model.config.dynamic_batching, self._service.max_rows)
        self._admission = Admission(options, self._service.max_rows * model.backend.concurrency)
        self._answers = Answers(self._service, options, self._meter, self._load, self._publish)
        processing = Processing(
            self._service, self._answers, self._admission, self._schedule, options, self._meter, clock
        )
        self._crew: Crew[Job, Work] = Crew(
            Batcher(self._schedule.policy),
            processing.decode,
            processing.run,
            options.threads,
            concurrency=model.backend.concurrency,
            in_order=self._schedule.in_order,
            clock=clock,
        )
        self._announcer = Announcer(
            self.card, options, self._load, self._meter.counters, self._on_ack, is_default=is_default
        )
        self._link = make_link(self._announcer.presence.client_id, self._announcer.presence.will, self._on_connection)

    @property
    def name(self) -> str:
        """The worker's name in its topics and replies."""
        return self._options.name

    @property
    def failure(self) -> LinkError | None:
        """Why nobody is served any more: its name is another's, or its connection has given up; else None."""
        return self._announcer.presence.failure or self._link.failure

    @property
    def card(self) -> ModelCard:
        """The card of the model that it serves."""
        return self._model.card

    def counters(self) -> dict[str, int]:
        """Copy the counters: replies by outcome, and what was dropped by reason."""
        return self._meter.counters()

    def statistics(self, memory_bytes: int = 0) -> ModelStatistics:
        """Say what it has done so far.

        Args:
            memory_bytes: Of the process, to go with it.
        """
        return self._meter.statistics(memory_bytes)

    def start(self, timeout: float = 10.0) -> None:
        """Connect, say `ready`, and take requests.

        Raises:
            BrokerUnreachable: No broker answers.
            NotAuthorized: The broker refused the credentials or a subscription, or would not hand requests over.
        """
        self._crew.start()
        try:
            self._link.open(timeout)
            self._announcer.attach(self._link)
            self._link.subscribe(self._options.topics.cancel_filter(self.card.name), self._take_back)
            for topic_filter, share in self._subscriptions():
                self._link.subscribe(topic_filter, self._receive, share=share)
            self._announcer.publish(WorkerStatus.READY)
            self._announcer.check_taken()
        except BaseException:
            self._announcer.withdraw()
            self._crew.stop()
            self._link.close()
            raise
        log.info("worker %s serves %s", self.name, self._model.card.name)

    def stop(self, timeout: float = 30.0) -> None:
        """Drain and disconnect.

        The lane is left last, and only when nothing came over it for a moment: clients that have not heard of the
        draining yet still send there.

        Args:
            timeout: For what is in hand, in seconds.
        """
        self._announcer.publish(WorkerStatus.DRAINING)
        *channels, (lane, _) = self._subscriptions()
        for topic_filter, share in channels:
            self._link.unsubscribe(topic_filter, share=share)
        self._await_silence(timeout)
        self._link.unsubscribe(lane)
        if not self._crew.drain(timeout):
            log.warning("worker %s stops with work in hand after %g s", self.name, timeout)
        self._turn_away(*self._crew.stop())
        self._announcer.publish(WorkerStatus.STOPPED)
        self._link.close()
        self._model.backend.close()

    def _await_silence(self, timeout: float) -> None:
        """Wait until no request has come for a moment, or the link is down."""
        end = self._clock() + timeout
        while self._link.connected and self._clock() < end:
            self._came.clear()
            if not self._came.wait(min(_SILENCE_S, timeout)):
                return

    def _turn_away(self, messages: Sequence[Job], works: Sequence[Work]) -> None:
        """Answer what nobody began, so that it is sent to another worker."""
        why = Rejected(f"worker {self.name} is stopping")
        for message in messages:
            self._refuse(message, why)
        for work in works:
            self._refuse(work, why)

    def _subscriptions(self) -> list[tuple[str, str | None]]:
        topics, card = self._options.topics, self._model.card
        shared = [topics.infer_filter(card.name, card.version)]
        if self._is_default:
            shared.append(topics.infer_filter(card.name))
        return [*((topic, self._options.group) for topic in shared), (topics.lane_filter(self.name), None)]

    def _on_connection(self, connected: bool) -> None:  # noqa: FBT001  the link's signature
        if connected:
            self._announcer.repeat()

    def announce(self) -> None:
        """Publish card and state again."""
        self._announcer.repeat()

    def _load(self) -> WorkerLoad:
        return self._meter.load(self._crew.depth, self._admission.window(self._meter.service_s))

    def _receive(self, message: Message) -> None:
        self._came.set()
        if not len(message.payload) and message.response_topic is None:
            return  # another worker's, to itself: see `reads_back`
        received = self._clock()
        client = self._sender(message)
        if self._crew.depth >= self._options.capacity:
            why = Rejected(f"worker {self.name} has {self._options.capacity} requests in hand")
            pushed_out = self._crew.give_way(client)
            if pushed_out is None:
                self._answers.refuse(message, why)
                return
            self._refuse(pushed_out, why)
        elif self._crew.waiting >= self._schedule.max_waiting:
            self._answers.refuse(message, Rejected(f"{self._schedule.max_waiting} requests wait at worker {self.name}"))
            return
        if self._admission.enter(client, len(message.payload), received):
            self._crew.receive((message, received), client)
        else:
            bound = self._options.capacity_bytes >> 20
            self._answers.refuse(message, Rejected(f"worker {self.name} has {bound} MiB of requests in hand"))

    def _take_back(self, message: Message) -> None:
        try:
            client = self._options.topics.parse_cancel(message.topic)
            cancellation = Cancellation.from_json(message.payload)
        except MqinferError as error:
            log.warning("ignored the unreadable cancellation on %s: %s", message.topic, error)
            return
        self._admission.take_back(client, cancellation.ids, cancellation.outcome)

    def _sender(self, message: Message) -> str:
        try:
            return self._options.topics.parse_infer(message.topic).client
        except BadTopic:
            return ""  # refused when it is read

    def _refuse(self, pushed_out: Job | Work, why: Rejected) -> None:
        if isinstance(pushed_out, Work):
            self._admission.leave(pushed_out.size)
            self._answers.answer(pushed_out.ticket, why, Timings())
        else:
            self._admission.leave(len(pushed_out[0].payload))
            self._answers.refuse(pushed_out[0], why)

    def _publish(self, message: Message) -> None:
        self._link.publish(message, self._on_ack)

    def _on_ack(self, code: int) -> None:
        if code == ReasonCode.NOT_AUTHORIZED:
            self._meter.count("refused_by_broker")
            log.error("the broker does not let worker %s publish its state or its replies", self.name)
