"""A collector of traces, as far as tests need one: OTLP over HTTP, read by OpenTelemetry's own messages."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span as ProtoSpan

__all__ = ["Collected", "Collector", "collecting"]

_PATIENCE_S = 120.0


@dataclass(frozen=True, slots=True)
class Collected:
    """One span. Times in nanoseconds since the epoch; ids as hex."""

    name: str
    service: str
    trace: str
    id: str
    parent: str
    kind: str
    start: int
    end: int
    attributes: dict[str, Any]
    links: tuple[tuple[str, str], ...]
    status: str
    resource: dict[str, Any] = field(repr=False)


def _value(value: Any) -> Any:
    return getattr(value, value.WhichOneof("value"))


def _read(body: bytes) -> Iterator[Collected]:
    for of_resource in ExportTraceServiceRequest.FromString(body).resource_spans:
        resource = {each.key: _value(each.value) for each in of_resource.resource.attributes}
        for scope in of_resource.scope_spans:
            for span in scope.spans:
                yield Collected(
                    span.name,
                    resource["service.name"],
                    span.trace_id.hex(),
                    span.span_id.hex(),
                    span.parent_span_id.hex(),
                    ProtoSpan.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_"),
                    span.start_time_unix_nano,
                    span.end_time_unix_nano,
                    {each.key: _value(each.value) for each in span.attributes},
                    tuple((link.trace_id.hex(), link.span_id.hex()) for link in span.links),
                    span.status.message,
                    resource,
                )


@dataclass(slots=True)
class Collector:
    """What was exported to `url` so far, in the order of arrival."""

    url: str = ""
    _spans: list[Collected] = field(default_factory=list)
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def wait_for(self, enough: Callable[[list[Collected]], bool]) -> list[Collected]:
        """Return the spans once they are enough."""
        with self._changed:
            assert self._changed.wait_for(lambda: enough(self._spans), _PATIENCE_S), [each.name for each in self._spans]
            return list(self._spans)

    def put(self, body: bytes) -> None:
        """Take an export."""
        with self._changed:
            self._spans.extend(_read(body))
            self._changed.notify_all()


@contextmanager
def collecting() -> Iterator[Collector]:
    """Collect spans on a free port until the end of the block."""
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            collector.put(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200 if self.path == "/v1/traces" else 404)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collector.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, name="collector")
    thread.start()
    try:
        yield collector
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
