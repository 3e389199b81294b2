"""The spans of requests at a worker: `process`, and below it the stages that `Timings` names.

A request passes `worker queue` until a thread is free, `decode`, `preprocess`, `worker queue` until the model is free,
`batch` with `run` in it, `postprocess`, `encode`. Its `batch` is a span of its own trace, and links to the `process` of
each other request that ran with it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mqinfer.cloud_worker.serving.incoming import IncomingRequest
from mqinfer.protocol.topics import Topics, request_kind
from mqinfer.protocol.types import InferResponse
from mqinfer.telemetry.conventions import SpanRole, end_attributes, harmless, messaging
from mqinfer.value_object import value_object

if TYPE_CHECKING:
    from mqinfer.telemetry.tracer import Span, Tracer


@value_object(eq=False)
class Replied:
    """A request that was replied to. Times in seconds of the worker's clock.

    Attributes:
        incoming: The request.
        response: The reply.
        started: When a thread began to work on it.
        replied: When the reply was sent.
        ready: When it was prepared, and began to wait for the model.
        began: When its batch began to run; 0 where it did not run.
        replying: When the work on its reply began.
        split_ns: How long splitting the batch's outputs took, in nanoseconds; part of `Timings.postprocess`.
    """

    incoming: IncomingRequest
    response: InferResponse
    started: float
    replied: float
    ready: float = 0.0
    began: float = 0.0
    replying: float = 0.0
    split_ns: int = 0


class WorkerSpans:
    """Makes the spans of one worker's requests. Thread-safe.

    Args:
        tracer: Makes the spans.
        topics: The site's.
    """

    def __init__(self, tracer: Tracer, topics: Topics) -> None:
        self._tracer, self._topics = tracer, topics

    @harmless
    def add(self, batch: Sequence[Replied], now: float) -> None:
        """Make the spans of requests that ran together.

        Args:
            batch: All of them.
            now: The time, in seconds of the worker's clock.
        """
        origin = time.time_ns() - round(now * 1e9)
        processes = [self._process(each, origin) for each in batch]
        for each, process in zip(batch, processes, strict=True):
            if process.is_recorded:
                self._stages(each, process, processes, origin)
                error = each.response.error
                process.end(origin + round(each.replied * 1e9), error.message if error else "")

    def _process(self, each: Replied, origin: int) -> Span:
        incoming, response = each.incoming, each.response
        template = request_kind(self._topics, incoming.topic).template
        attributes = {
            **messaging("process", "process", incoming.topic, template, response.id),
            "messaging.message.body.size": incoming.size,
            "messaging.client.id": response.worker,
            "mqinfer.client": incoming.client,
            "mqinfer.model": response.model_name,
            "mqinfer.model.version": response.model_version,
            "mqinfer.attempt": response.attempt,
            **end_attributes(response.outcome, response.error),
        }
        begin = origin + round(incoming.received * 1e9)
        return self._tracer.start(f"process {template}", incoming.path.trace, begin, attributes, SpanRole.CONSUMER)

    def _stages(self, each: Replied, process: Span, batch: Sequence[Span], origin: int) -> None:
        def wall(seconds: float) -> int:
            return origin + round(seconds * 1e9)

        stage, timings = self._tracer.stage, each.response.timings
        stage("worker queue", process, wall(each.incoming.received), wall(each.started))
        if not each.began:
            return
        ready, began, replying = wall(each.ready), wall(each.began), wall(each.replying)
        decoded = ready - timings.preprocess
        stage("decode", process, decoded - timings.decode, decoded)
        if timings.preprocess:
            stage("preprocess", process, decoded, ready)
        stage("worker queue", process, ready, began)
        others = [span for span in batch if span is not process and span.is_recorded]
        ran = began + timings.inference
        count = {"messaging.batch.message_count": len(batch)}
        together = stage("batch", process, began, ran + each.split_ns, count, links=others)
        stage("run", together, began, ran)
        finished = replying + timings.postprocess - each.split_ns
        if finished > replying:
            stage("postprocess", process, replying, finished)
        stage("encode", process, finished, finished + timings.encode)
