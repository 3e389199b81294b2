"""The replies of a worker: made, sent, and remembered for requests that come twice."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from mqinfer.broker.link import Message
from mqinfer.cloud_worker.serving.incoming import Ticket, reply_path, write_reply
from mqinfer.cloud_worker.serving.load import LoadMeter
from mqinfer.cloud_worker.serving.options import WorkerOptions
from mqinfer.cloud_worker.serving.reply_memory import ReplyMemory, Seen
from mqinfer.cloud_worker.serving.service import InferenceService
from mqinfer.protocol.datatypes import Array
from mqinfer.protocol.errors import Corrupted, Expired, MessageTooLarge, MqinferError, NotConnected, Rejected
from mqinfer.protocol.header import RETRY_AFTER
from mqinfer.protocol.types import EncodedTensor, ErrorInfo, InferRequest, InferResponse, Outcome, Timings, WorkerLoad

__all__ = ["Answers"]

log = logging.getLogger("mqinfer.cloud_worker")
_OUTCOMES = {
    Expired.code: Outcome.EXPIRED,
    Rejected.code: Outcome.REJECTED,
    Corrupted.code: Outcome.REJECTED,  # no fault of the request: sent again, it is served
}
_NO_TIME = Timings()


class Answers:
    """Makes and sends the replies of one worker. Thread-safe."""

    def __init__(
        self,
        service: InferenceService,
        options: WorkerOptions,
        meter: LoadMeter,
        load: Callable[[], WorkerLoad],
        publish: Callable[[Message], None],
    ) -> None:
        """Prepare.

        Args:
            service: Encodes outputs.
            options: The worker's name, topics and bounds.
            meter: Counts the replies.
            load: Tells how busy the worker is.
            publish: Sends a message; raises a LinkError where it can't.
        """
        self._service = service
        self._options = options
        self._meter = meter
        self._load = load
        self._publish = publish
        self._memory = ReplyMemory(options.memory_bytes)
        self._lock = threading.Lock()

    def is_new(self, ticket: Ticket) -> bool:
        """Tell whether a request is to be run; one that was answered before gets the same reply again."""
        if ticket.key is None:
            return True
        with self._lock:
            known = self._memory.begin(ticket.key)
        if known is Seen.NEW:
            return True
        self._meter.count("duplicates")
        if isinstance(known, Message):
            self._send(known)
        return False

    def answer(
        self, ticket: Ticket, error: MqinferError | None, timings: Timings, outputs: Mapping[str, Array] | None = None
    ) -> None:
        """Send the outcome of a request.

        Args:
            ticket: The request.
            error: Why there is no result, or None.
            timings: The worker's part but for the encoding.
            outputs: The result, before encoding.
        """
        arrays = dict(outputs or {})
        started = finished = time.perf_counter_ns()
        tensors: tuple[EncodedTensor, ...] = ()
        try:
            if error is None:
                arrays = self._service.finish(ticket.request, arrays)
                finished = time.perf_counter_ns()
                tensors = () if ticket.path.is_json else self._service.encode(ticket.request, arrays)
        except MqinferError as problem:
            # Its traceback holds this frame, and this frame the request: the cycle would keep a payload for a while.
            error, arrays = problem.with_traceback(None), {}
        spent = finished - started
        timings = replace(
            timings, postprocess=timings.postprocess + spent, encode=time.perf_counter_ns() - started - spent
        )
        self._reply(ticket, self._response(ticket.request, error, tensors, timings), arrays)

    def skip(self, ticket: Ticket, outcome: Outcome) -> None:
        """Send nothing: the client took the request back, and has counted its outcome."""
        self._meter.count(f"skipped_{outcome}")
        if ticket.key is not None:
            with self._lock:
                self._memory.forget(ticket.key)

    def refuse(self, message: Message, error: MqinferError) -> None:
        """Answer a message that could not be read, as far as its properties tell where to.

        Of a corrupted one they may be wrong as well: the topic is checked as ever, and whose id it is only makes the
        client send again.
        """
        if isinstance(error, Corrupted):
            self._meter.count(error.code)
        try:
            path = reply_path(self._options.topics, message)
        except MqinferError as nowhere:
            self._meter.count(f"dropped_{error.code}")
            log.warning("dropped a message on %s: %s (not answered: %s)", message.topic, error, nowhere)
            return
        unread = InferRequest((message.correlation_data or b"").hex(), "", ())
        response = self._response(unread, error)
        self._meter.answered(response.outcome, response.timings)
        self._send(write_reply(path, response, {}))

    def _reply(self, ticket: Ticket, response: InferResponse, arrays: Mapping[str, Array]) -> None:
        try:
            message = write_reply(ticket.path, response, arrays)
        except MqinferError as error:  # an output that JSON can't carry
            response = self._response(ticket.request, error)
            message = write_reply(ticket.path, response, {})
        self._remember(ticket, response.outcome, message)
        try:
            self._send(message)
        except MessageTooLarge as error:
            if response.error is None:
                self._reply(ticket, self._response(ticket.request, error), {})
            else:  # not even an error fits through
                self._meter.count(f"dropped_{error.code}")
                log.warning("request %s can't be answered: %s", response.id, error)
        else:
            self._meter.answered(response.outcome, response.timings)

    def _remember(self, ticket: Ticket, outcome: Outcome, message: Message) -> None:
        if ticket.key is None:
            return
        with self._lock:
            if outcome is Outcome.REJECTED:
                self._memory.forget(ticket.key)  # sent again, it may be served
            else:
                self._memory.finish(ticket.key, message)

    def _send(self, message: Message) -> None:
        try:
            self._publish(message)
        except NotConnected:
            # The client sends its request again after the reconnection and gets the remembered reply.
            self._meter.count("replies_held_back")

    def _response(
        self,
        request: InferRequest,
        error: MqinferError | None,
        outputs: tuple[EncodedTensor, ...] = (),
        timings: Timings = _NO_TIME,
    ) -> InferResponse:
        card = self._service.model.card
        load = self._load()
        return InferResponse(
            id=request.id,
            model_name=card.name,
            model_version=card.version,
            outcome=Outcome.OK if error is None else _OUTCOMES.get(error.code, Outcome.ERROR),
            outputs=outputs,
            error=None if error is None else ErrorInfo(error.code, str(error)),
            model_hash=card.model_hash,
            worker=self._options.name,
            timings=timings,
            load=load,
            attempt=request.attempt,
            capture=request.capture,
            parameters={RETRY_AFTER: load.depth * load.service_time_us} if isinstance(error, Rejected) else {},
        )
