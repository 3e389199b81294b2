"""The replies of a worker: made, sent, and remembered for requests that come twice."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from enum import Enum

import numpy as np
from msgspec.structs import replace

from mqinfer.broker.link import Message
from mqinfer.broker.packets import payload_size
from mqinfer.cloud_worker.serving.incoming import Delivery, IncomingRequest, ReplyPath, reply_path
from mqinfer.cloud_worker.serving.load import LoadMeter
from mqinfer.cloud_worker.serving.options import WorkerOptions
from mqinfer.cloud_worker.serving.pictures import write_words
from mqinfer.cloud_worker.serving.service import Completed, InferenceService, Prepared
from mqinfer.cloud_worker.serving.shadow import Shadowing
from mqinfer.protocol import envelope, oip_json
from mqinfer.protocol.checksum import checksum
from mqinfer.protocol.datatypes import Array
from mqinfer.protocol.errors import Corrupted, MessageTooLarge, MqinferError, NotConnected, Rejected
from mqinfer.protocol.header import QUEUE_FULL, RECEIVED_TIME, RETRY_AFTER, SENT_TIME, TIMESTAMPS
from mqinfer.protocol.types import (
    Buffer,
    EncodedTensor,
    ErrorInfo,
    InferRequest,
    InferResponse,
    Outcome,
    Scalar,
    Timings,
    WorkerLoad,
)

_NO_TIME = Timings()
_SHARED = 4 << 20
"""Bytes of a batch's outputs up to which its stored replies stay parts of them; parts of more are copied."""

REPLY_COST = 256
"""Bytes charged for a stored reply beside its payload: the key, the message object, the table's slot."""


class Replies:
    """Makes and sends the replies of one worker. Thread-safe.

    Attributes:
        shadowing: Copies requests that were replied to for another version; None without one.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - its parts, each made by the worker
        self,
        service: InferenceService,
        options: WorkerOptions,
        meter: LoadMeter,
        load: Callable[[int], WorkerLoad],
        publish: Callable[[Message], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Set up.

        Args:
            service: Encodes outputs.
            options: The worker's name, topics and bounds.
            meter: Counts the replies.
            load: Returns how busy the worker is, without so many requests that were replied to just now.
            publish: Sends a message; raises a LinkError where it can't.
            clock: The worker's, in seconds.
        """
        self._service = service
        self._version = service.model.card.version
        self._topics = options.topics
        self._worker = options.name
        self._meter = meter
        self._load = load
        self._publish = publish
        self._clock = clock
        self._memory = ReplyMemory(options.memory_bytes)
        self._lock = threading.Lock()
        self.shadowing: Shadowing | None = None

    def is_new(self, incoming: IncomingRequest) -> bool:
        """Return whether a request is to be run; where it was replied to before, send the same reply again."""
        if incoming.key is None:
            return True
        with self._lock:
            known = self._memory.begin(incoming.key)
        if known is Seen.NEW:
            return True
        self._meter.count("duplicates")
        if isinstance(known, Message):
            self._send(known)
        return False

    def send(
        self, incoming: IncomingRequest, prepared: Prepared, completed: Completed, queued_ns: int, replied: int = 0
    ) -> InferResponse:
        """Reply to a request that was run, and return the reply.

        Args:
            incoming: The request.
            prepared: What was run.
            completed: What became of it.
            queued_ns: How long it waited in the worker, in nanoseconds.
            replied: Requests of its batch that were replied to before: the reported depth is without them.
        """
        request, error, arrays = incoming.request, completed.error, completed.outputs
        started = finished = time.perf_counter_ns()
        tensors: tuple[EncodedTensor, ...] = ()
        if error is None:
            try:
                arrays = self._service.finish(request, arrays)
                finished = time.perf_counter_ns()
                if not incoming.path.is_json and incoming.path.words is None:
                    tensors = self._service.encode(request, arrays)
            except MqinferError as problem:
                # Its traceback holds this frame, and this frame the request: the cycle would keep a payload for a while
                error, arrays = problem.with_traceback(None), {}
        timings = Timings(
            0,
            0,
            queued_ns,
            prepared.decode_ns,
            prepared.preprocess_ns,
            completed.inference_ns,
            completed.postprocess_ns + finished - started,
            time.perf_counter_ns() - finished,
        )
        response = self._reply(incoming, self._response(request, error, tensors, timings, replied), arrays)
        if (shadowing := self.shadowing) is not None:
            shadowing.offer(incoming, prepared.inputs, response, arrays)
        return response

    def send_error(self, incoming: IncomingRequest, error: MqinferError) -> InferResponse | None:
        """Reply to a request that was not run, and return the reply.

        Raise nothing, since nobody could do more for it; None where there was no reply.
        """
        try:
            return self._reply(incoming, self._response(incoming.request, error), {})
        except BaseException:  # noqa: BLE001 - no memory even for this: sent again, it may be served
            self._meter.drop("internal", f"no reply to request {incoming.request.id}: {error}")
            self._forget(incoming.key)
            return None

    def skip(self, incoming: IncomingRequest, outcome: Outcome) -> None:
        """Send nothing: the client cancelled the request, and has counted its outcome."""
        self._meter.count(f"skipped_{outcome}")
        self._forget(incoming.key)

    def refuse(self, delivery: Delivery, error: MqinferError) -> None:
        """Reply to a message that was not read, as far as its properties tell where to.

        Those of a corrupted one may be wrong as well: the topic is checked as ever, and a wrong id only makes its
        client send again.
        """
        if isinstance(error, Corrupted):
            self._meter.count(error.code)
        message = delivery.message
        try:
            path = reply_path(self._topics, delivery)
        except MqinferError as nowhere:
            self._meter.drop(error.code, f"a message on {message.topic}: {error} (no reply: {nowhere})")
            return
        unread = InferRequest((message.correlation_data or b"").hex() or path.topic.rpartition("/")[2], "", ())
        response = self._response(unread, error)
        try:
            self._send(self._write(path, unread, response, {}))
        except BaseException as problem:  # noqa: BLE001 - too large for the broker, or no memory: nobody could do more
            self._meter.drop(getattr(problem, "code", "internal"), f"no reply on {path.topic}: {error}")
        else:
            self._meter.answered(response.outcome, response.timings)

    def _reply(self, incoming: IncomingRequest, response: InferResponse, arrays: Mapping[str, Array]) -> InferResponse:
        if TIMESTAMPS in incoming.request.parameters:
            response = self._with_timestamps(incoming, response)
        try:
            message = self._write(incoming.path, incoming.request, response, arrays)
        except MqinferError as error:  # an output that JSON can't carry
            response = self._response(incoming.request, error)
            message = self._write(incoming.path, incoming.request, response, {})
        self._remember(incoming.key, response.outcome, message)
        try:
            self._send(message)
        except MessageTooLarge as error:
            if response.error is None:
                return self._reply(incoming, self._response(incoming.request, error), {})
            self._meter.drop(error.code, f"no reply to request {response.id}: {error}")  # not even an error fits
        else:
            self._meter.answered(response.outcome, response.timings)
        return response

    def _write(
        self, path: ReplyPath, request: InferRequest, response: InferResponse, arrays: Mapping[str, Array]
    ) -> Message:
        words = None
        if path.words is not None:
            words = write_words(request, response, arrays, self._service.model.card, path.words)
        return write_reply(path, response, arrays, words)

    def _with_timestamps(self, incoming: IncomingRequest, response: InferResponse) -> InferResponse:
        had = self._clock() - incoming.received
        now = time.time_ns()
        stamps = {RECEIVED_TIME: now - round(had * 1e9), SENT_TIME: now}
        return replace(response, parameters={**response.parameters, **stamps})

    def _remember(self, key: Hashable | None, outcome: Outcome, message: Message) -> None:
        if key is None:
            return
        if message.tail and any(map(_keeps_more, message.tail)):
            message = message.joined()
        with self._lock:
            if outcome is Outcome.REJECTED:
                self._memory.forget(key)  # sent again, it may be served
            else:
                self._memory.finish(key, message)

    def _forget(self, key: Hashable | None) -> None:
        if key is not None:
            with self._lock:
                self._memory.forget(key)

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
        replied: int = 0,
    ) -> InferResponse:
        card = self._service.model.card
        load = self._load(replied)
        parameters: dict[str, Scalar] = {}
        if isinstance(error, Rejected):
            parameters[RETRY_AFTER] = load.depth * load.service_time_us
            if error.queue_full:
                parameters[QUEUE_FULL] = True
        return InferResponse(
            id=request.id,
            model_name=request.model_name or card.name,
            model_version=self._version,
            outcome=Outcome.OK if error is None else error.outcome,
            outputs=outputs,
            error=None if error is None else ErrorInfo(error.code, str(error)),
            model_hash=card.parameters.model_hash,
            worker=self._worker,
            timings=timings,
            load=load,
            attempt=request.attempt,
            capture=request.capture,
            parameters=parameters,
        )


def write_reply(
    path: ReplyPath, response: InferResponse, arrays: Mapping[str, Array], words: bytes | None = None
) -> Message:
    """Make the message that replies to a request, in the form in which the request came.

    Args:
        path: Where it goes.
        response: Its content; the outputs in it are used for the binary form.
        arrays: The outputs before encoding; used for the JSON form.
        words: The whole reply in words, to a picture that came as it is.

    Raises:
        MqinferError: An output can't be carried in that form.
    """
    properties = () if path.trace is None else path.trace.properties()
    payload: Buffer
    tail: list[Buffer] = []
    if words is not None:
        payload = words
    elif path.is_json:
        payload, length = oip_json.encode_response(response, arrays=arrays, binary=path.binary)
        if length is not None:
            properties = (*properties, (oip_json.HEADER_LENGTH, str(length)))
    else:
        payload, *tail = envelope.response_pieces(response)
    return Message(
        topic=path.topic,
        payload=payload,
        content_type=envelope.CONTENT_TYPE if words is None and not path.is_json else oip_json.CONTENT_TYPE,
        correlation_data=path.correlation_data,
        user_properties=(*properties, checksum((payload, *tail))),
        tail=tuple(tail),
    )


def _keeps_more(piece: Buffer) -> bool:
    """Return whether a piece keeps much more memory than its own: that of a batch, or of a request's other inputs."""
    owner: object = piece
    while (base := owner.obj if isinstance(owner, memoryview) else getattr(owner, "base", None)) is not None:
        owner = base
    size: int = owner.nbytes if isinstance(owner, np.ndarray) else 0
    return size > max(_SHARED, 2 * memoryview(piece).nbytes)


class Seen(Enum):
    """What the memory knows of a request that has no stored reply."""

    NEW = "new"
    RUNNING = "running"


class ReplyMemory:
    """Remembers the newest replies, so that a request sent twice runs once. Pure; its owner holds a lock."""

    def __init__(self, max_bytes: int = 64 << 20) -> None:
        """Set the bound.

        Args:
            max_bytes: Of all stored replies together, each with `REPLY_COST`; the oldest go first. A larger reply is
                not stored at all.
        """
        self._max_bytes = max_bytes
        self.bytes = 0
        """What all stored replies cost together."""
        self._entries: OrderedDict[Hashable, Message | None] = OrderedDict()  # None while the request runs

    def begin(self, key: Hashable) -> Message | Seen:
        """Remember a new request; of a known one return the stored reply, or that it is running."""
        entries = self._entries
        if key not in entries:
            entries[key] = None
            return Seen.NEW
        return entries[key] or Seen.RUNNING

    def finish(self, key: Hashable, reply: Message) -> None:
        """Store the reply of a request that ran."""
        self.forget(key)
        cost = _cost(reply)
        if cost > self._max_bytes:
            return
        self._entries[key] = reply
        self.bytes += cost
        while self.bytes > self._max_bytes:  # running requests are bounded elsewhere
            self.forget(next(key for key, stored in self._entries.items() if stored))

    def forget(self, key: Hashable) -> None:
        """Forget a request, so that it runs again: a retry may end better."""
        reply = self._entries.pop(key, None)
        if reply:
            self.bytes -= _cost(reply)


def _cost(reply: Message) -> int:
    return payload_size(reply) + len(reply.correlation_data or b"") + REPLY_COST
