"""The spans of a frame at an edge, and of a call at a gateway: what is around their requests."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from mqinfer.protocol.trace import TraceContext
from mqinfer.protocol.types import ErrorInfo, Outcome
from mqinfer.telemetry.conventions import Attributes, SpanRole, end_attributes, harmless

if TYPE_CHECKING:
    from mqinfer.telemetry.tracer import Tracer


class Around:
    """One span around a request, with stages that lie before the request. Times in seconds of the monotonic clock.

    Args:
        tracer: Makes the spans.
        name: Of the span.
        began: When it began.
        attributes: Of the span.
        parent: Whose trace it continues; None for a new one.
        kind: Of the span.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - what a span is
        self,
        tracer: Tracer,
        name: str,
        began: float,
        attributes: Attributes,
        parent: TraceContext | None = None,
        kind: SpanRole = SpanRole.INTERNAL,
    ) -> None:
        self._tracer = tracer
        self._origin = time.time_ns() - time.monotonic_ns()
        self._began = self._origin + round(began * 1e9)
        self._span = tracer.start(name, parent, self._began, attributes, kind)
        self._stages: list[tuple[str, int]] = []

    @property
    def context(self) -> TraceContext:
        """What the request continues."""
        return self._span.context

    def measured(self, name: str, nanoseconds: int) -> None:
        """Take note of a stage's duration."""
        self._stages.append((name, nanoseconds))

    @harmless
    def prepared(self) -> None:
        """Lay the measured stages end to end: `queue` comes first, and the last one ends now."""
        if not self._span.is_recorded:
            return
        end = self._origin + time.monotonic_ns()
        while self._stages:
            name, nanoseconds = self._stages.pop()
            self._tracer.stage(name, self._span, end - nanoseconds, end)
            end -= nanoseconds
        self._tracer.stage("queue", self._span, self._began, end)

    @harmless
    def stage(self, name: str, began: float) -> None:
        """Add a stage that ends now."""
        begin = self._origin + round(began * 1e9)
        self._tracer.stage(name, self._span, begin, self._origin + time.monotonic_ns())

    @harmless
    def end(self, outcome: Outcome, error: ErrorInfo | None) -> None:
        """End the span now, with the request's outcome."""
        self._span.set(end_attributes(outcome, error))
        self._span.end(self._origin + time.monotonic_ns(), "" if error is None else error.message)
