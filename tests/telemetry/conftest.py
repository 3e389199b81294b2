"""Fixtures for the tests of spans."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from mqinfer.telemetry.tracer import Tracer


class Traced:
    """A tracer, and what it exported."""

    def __init__(self) -> None:
        self._memory = InMemorySpanExporter()
        self.tracer = Tracer(self._memory, "memory")

    def spans(self) -> list[ReadableSpan]:
        """Close the tracer and return its spans in the order of their ends, those without a context left out."""
        self.tracer.close()
        return list(self._memory.get_finished_spans())

    def by_name(self) -> dict[str, list[ReadableSpan]]:
        """Return the same by the first word of the name, but for `worker queue`."""
        found: dict[str, list[ReadableSpan]] = {}
        for span in self.spans():
            name = span.name if span.name == "worker queue" else span.name.split()[0]
            found.setdefault(name, []).append(span)
        return found


@pytest.fixture
def traced() -> Iterator[Traced]:
    """A tracer that exports to memory."""
    made = Traced()
    yield made
    made.tracer.close()
