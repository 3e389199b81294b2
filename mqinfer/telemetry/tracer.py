"""Spans by OpenTelemetry's SDK, whose batch processor exports them on its own thread."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from itertools import count

from opentelemetry import trace
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState

from mqinfer._version import __version__
from mqinfer.logs import without_logins
from mqinfer.protocol.trace import TraceContext
from mqinfer.telemetry.conventions import Attributes, SpanRole

log = logging.getLogger("mqinfer.telemetry")
_END_S, _GIVEN_UP_S = 5.0, 1.0
"""How long the end of a program waits for the last export, and then for the end of its pauses."""
_NOISY = ("opentelemetry.exporter", "opentelemetry.sdk._shared_internal")
"""Loggers with a line for each attempt to export; `Exporter` says it once."""


class Span:
    """A span that has begun.

    Attributes:
        span: As OpenTelemetry has it.
        is_recorded: Whether it is exported; otherwise the sampler left its trace out.
    """

    __slots__ = ("is_recorded", "span")

    def __init__(self, span: trace.Span) -> None:
        self.span = span
        self.is_recorded = span.is_recording()

    @property
    def context(self) -> TraceContext:
        """What travels to those who continue the trace below this span."""
        own = self.span.get_span_context()
        parent = f"00-{own.trace_id:032x}-{own.span_id:016x}-{own.trace_flags:02x}"
        return TraceContext(parent, own.trace_state.to_header())

    def set(self, attributes: Attributes) -> None:
        """Add attributes."""
        self.span.set_attributes(dict(attributes))

    def end(self, end_ns: int, error: str = "") -> None:
        """End it, at a time since the epoch in nanoseconds; with an error, its status is that."""
        if error:
            self.span.set_status(Status(StatusCode.ERROR, error))
        self.span.end(end_ns)


class Tracer:
    """Makes the spans of one program. Thread-safe; exporting is another thread's work.

    Args:
        exporter: Sends the spans.
        where: Where to, for the log.
        resource: What they are of; None for what the environment says.
    """

    def __init__(self, exporter: SpanExporter, where: str, resource: Resource | None = None) -> None:
        self._exporter = Exporter(exporter, where)
        self._made = count()
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(self._exporter))
        self._tracer = self._provider.get_tracer("mqinfer", __version__)

    def start(  # noqa: PLR0913, PLR0917 - what a span is
        self,
        name: str,
        parent: Span | TraceContext | None,
        start_ns: int,
        attributes: Attributes | None = None,
        kind: SpanRole = SpanRole.INTERNAL,
        links: Sequence[Span] = (),
    ) -> Span:
        """Begin a span.

        Args:
            name: Its name.
            parent: The span above it, here or in another process; None for a new trace. Its sampled flag decides
                whether this one is exported; that of a new trace is up to the sampler, which the environment sets.
            start_ns: When it began, in nanoseconds since the epoch.
            attributes: Its attributes.
            kind: What it stands for.
            links: Spans that it belongs together with, beside its parent.
        """
        above = _above(parent)
        span = Span(
            self._tracer.start_span(
                name,
                # INVALID_SPAN where there is none: whatever span is current on this thread is none of ours.
                context=trace.set_span_in_context(above or trace.INVALID_SPAN),
                kind=SpanKind[kind],
                attributes=attributes,
                links=[trace.Link(each.span.get_span_context()) for each in links],
                start_time=start_ns,
            )
        )
        if span.is_recorded:
            next(self._made)
        return span

    def stage(  # noqa: PLR0913, PLR0917 - as for `start`
        self,
        name: str,
        parent: Span,
        start_ns: int,
        end_ns: int,
        attributes: Attributes | None = None,
        kind: SpanRole = SpanRole.INTERNAL,
        links: Sequence[Span] = (),
    ) -> Span:
        """Make a span that is over."""
        span = self.start(name, parent, start_ns, attributes, kind, links)
        span.end(max(start_ns, end_ns))
        return span

    def close(self) -> None:
        """Export what is left; what takes longer than `_END_S` is given up."""
        closing = threading.Thread(target=self._provider.shutdown, name="mqinfer-telemetry-end", daemon=True)
        closing.start()
        closing.join(_END_S)
        if closing.is_alive():
            self._exporter.shutdown()  # which ends its pauses
            closing.join(_GIVEN_UP_S)
        made, sent = next(self._made), self._exporter.sent
        if sent < made:
            log.warning("%d of %d spans were not exported", made - sent, made)


def _above(parent: Span | TraceContext | None) -> trace.Span | None:
    if isinstance(parent, Span):
        return parent.span
    if parent is None:
        return None
    _, trace_id, span_id, flags = parent.traceparent.split("-")[:4]
    state = TraceState.from_header([parent.tracestate]) if parent.tracestate else None
    own = SpanContext(
        int(trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=TraceFlags(int(flags, 16)), trace_state=state
    )
    return trace.NonRecordingSpan(own)


def make_resource(service: str, instance: str) -> Resource:
    """Return what spans are of; the environment's `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES` come first.

    Args:
        service: Name of the service.
        instance: The process's name in topics.
    """
    own = {"service.name": service, "service.instance.id": instance, "service.version": __version__}
    return Resource.create().merge(Resource(own)).merge(OTELResourceDetector().detect())


class Exporter(SpanExporter):
    """Passes spans on, counts what becomes of them, and logs the first failure of a row.

    Args:
        inner: Sends the spans.
        where: Where to, for the log.

    Attributes:
        sent: Spans that were sent.
    """

    def __init__(self, inner: SpanExporter, where: str) -> None:
        for name in _NOISY:
            logging.getLogger(name).setLevel(logging.CRITICAL)
        self.sent = 0
        self._inner, self._where = inner, without_logins(where)
        self._has_failed = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send spans; those that can't be sent are dropped."""
        result = self._inner.export(spans)
        if result is SpanExportResult.SUCCESS:
            self.sent += len(spans)
            if self._has_failed:
                log.info("spans are exported to %s again", self._where)
        elif not self._has_failed:
            log.warning("spans can't be exported to %s, and are dropped until they can", self._where)
        self._has_failed = result is not SpanExportResult.SUCCESS
        return result

    def shutdown(self) -> None:
        """End: what is tried again is given up."""
        self._inner.shutdown()
