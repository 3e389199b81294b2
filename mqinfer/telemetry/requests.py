"""The spans of a client's request: `infer MODEL`, and below it `queue`, one `transmit` an attempt, and `settle`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from mqinfer.protocol.topics import Topics, request_kind
from mqinfer.protocol.trace import TraceContext
from mqinfer.protocol.types import ErrorInfo, InferRequest, Outcome, Timings
from mqinfer.telemetry.conventions import SpanRole, end_attributes, harmless, messaging

if TYPE_CHECKING:
    from mqinfer.telemetry.tracer import Span, Tracer


class RequestSpans:
    """One request's; its methods are called one after another. Times in seconds of the client's clock.

    Args:
        tracer: Makes the spans.
        request: With its id.
        client: The client's name.
        topics: The site's.
        submitted: When the caller asked: just now.
    """

    def __init__(self, tracer: Tracer, request: InferRequest, client: str, topics: Topics, submitted: float) -> None:
        self._tracer, self._request, self._topics = tracer, request, topics
        self._origin = time.time_ns() - round(submitted * 1e9)
        self._submitted = submitted
        attributes = {
            "mqinfer.model": request.model_name,
            "mqinfer.request.id": request.id,
            "messaging.client.id": client,
        }
        if request.model_version is not None:
            attributes["mqinfer.model.version"] = request.model_version
        self._all = tracer.start(f"infer {request.model_name}", request.trace, self._wall(submitted), attributes)
        self._transmit: Span | None = None
        self._sent = submitted
        self._attempts = 0

    def sent(self, topic: str, size: int, sent: float) -> TraceContext:
        """Begin an attempt, and return the context that travels with its message.

        Args:
            topic: Where it is published.
            size: Bytes of its payload.
            sent: When.
        """
        if not self._all.is_recorded:
            return self._all.context
        if self._transmit is None:
            self._tracer.stage("queue", self._all, self._wall(self._submitted), self._wall(sent))
        else:
            self._transmit.end(self._wall(sent))  # no reply to it: this is the next one
        self._sent = sent
        self._attempts += 1
        template = request_kind(self._topics, topic).template
        self._transmit = self._tracer.start(
            f"transmit {template}",
            self._all,
            self._wall(sent),
            {
                **messaging("transmit", "send", topic, template, self._request.id),
                "messaging.message.body.size": size,
                "mqinfer.attempt": self._attempts,
            },
            SpanRole.PRODUCER,
        )
        return self._transmit.context

    @harmless
    def end(self, outcome: Outcome, error: ErrorInfo | None, timings: Timings, worker: str, now: float) -> None:
        """End all spans: the request has its outcome.

        Args:
            outcome: The request's.
            error: Why it is not `ok`.
            timings: As the caller receives them.
            worker: Who replied; empty where nobody did.
            now: When it was handed to the caller.
        """
        if not self._all.is_recorded:
            return
        end = self._wall(now)
        received = min(end, self._wall(self._sent) + timings.transmission + timings.server) if worker else end
        if self._transmit is None:
            self._tracer.stage("queue", self._all, self._wall(self._submitted), end)
        else:
            self._transmit.set({"mqinfer.transmission_ns": timings.transmission, "mqinfer.worker": worker})
            self._transmit.end(received)
        template = self._topics.result.template
        settle = messaging("settle", "settle", self._request.response_topic or "", template, self._request.id)
        self._tracer.stage(f"settle {template}", self._all, received, end, settle, SpanRole.CLIENT)
        self._all.set(end_attributes(outcome, error))
        self._all.end(end, "" if error is None else error.message)

    def _wall(self, seconds: float) -> int:
        return self._origin + round(seconds * 1e9)
