"""Whether spans are exported, where to, and what happens when that fails."""

from __future__ import annotations

import logging
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from mqinfer.protocol.errors import ConfigError, MissingExtra
from mqinfer.telemetry.exporting import ENDPOINT, check_endpoint, make_tracer
from mqinfer.telemetry.tracer import Exporter
from tests.ports import free_port
from tests.telemetry.collector import collecting

MANY = 5_000
TRACES = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (ENDPOINT, TRACES, "OTEL_SDK_DISABLED", "OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("option", "variables", "url"),
    [
        (None, {}, None),
        ("http://c:4318", {}, "http://c:4318/v1/traces"),
        ("http://c:4318/", {}, "http://c:4318/v1/traces"),
        ("http://c:4318/v1/traces", {}, "http://c:4318/v1/traces"),
        (None, {ENDPOINT: "https://c/otlp"}, "https://c/otlp/v1/traces"),
        (None, {TRACES: "https://c/as-it-is"}, "https://c/as-it-is"),
        ("http://c", {ENDPOINT: "http://c", TRACES: "http://d/x"}, "http://d/x"),
        ("http://mine", {ENDPOINT: "http://c", TRACES: "http://d/x"}, "http://mine/v1/traces"),
        ("http://c", {"OTEL_SDK_DISABLED": "true"}, None),
    ],
)
def test_the_endpoint_is_the_options_or_the_environments(
    monkeypatch: pytest.MonkeyPatch, option: str | None, variables: dict[str, str], url: str | None
) -> None:
    """By OpenTelemetry's rules; click fills the option from the environment, which is no wish of its own."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert check_endpoint(option) == url


def test_an_endpoint_that_is_no_url_is_named() -> None:
    """Before anything starts."""
    with pytest.raises(ConfigError, match=r"--otlp-endpoint collector:4317.* such as http://127\.0\.0\.1:4318"):
        check_endpoint("collector:4317")


def test_a_missing_extra_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the command that installs it."""
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http", None)
    with pytest.raises(MissingExtra, match=r"pip install .*\[telemetry\]"):
        check_endpoint("http://c")


def test_without_an_endpoint_nothing_is_imported() -> None:
    """Not even by the commands that could export."""
    script = (
        "import sys, mqinfer.cli.app, mqinfer.cloud_worker.supervision.process, mqinfer.gateway.inference;"
        "from mqinfer.telemetry.exporting import make_tracer; assert make_tracer('s', 'i', None) is None;"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"


def test_the_environment_names_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it the program does; the process's name in topics goes along."""
    with collecting() as collector:
        for variable in (None, "perception"):
            if variable:
                monkeypatch.setenv("OTEL_SERVICE_NAME", variable)
            tracer = make_tracer("mqinfer-edge", "car-7", f"{collector.url}/v1/traces")
            assert tracer is not None
            tracer.start("x", None, 1).end(2)
            tracer.close()
        spans = collector.wait_for(lambda each: len(each) == 2)
    assert [each.service for each in spans] == ["mqinfer-edge", "perception"]
    assert {each.resource["service.instance.id"] for each in spans} == {"car-7"}


@contextmanager
def silent_server() -> Iterator[str]:
    """Accept connections, and answer nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize("kind", ["refused", "silent"])
def test_an_unreachable_collector_costs_neither_time_nor_memory(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    """Making spans never waits, their number is bounded, two lines say what was lost, and the end is near."""
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "1")
    monkeypatch.setattr("mqinfer.telemetry.tracer._END_S", 0.1)
    monkeypatch.setattr("mqinfer.telemetry.tracer._GIVEN_UP_S", 0.1)
    with silent_server() as silent:
        url = silent if kind == "silent" else f"http://127.0.0.1:{free_port()}"
        with caplog.at_level(logging.INFO):
            tracer = make_tracer("s", "i", f"{url}/v1/traces")
            assert tracer is not None
            for number in range(MANY):
                tracer.start(f"{number}", None, 1).end(2)
            tracer.close()  # an export is under way, for ten seconds at most: it is left to itself
    for thread in threading.enumerate():
        if thread.name == "mqinfer-telemetry-end":
            thread.join()
    lines = [each.getMessage() for each in caplog.records]
    assert lines[-1] == f"{MANY} of {MANY} spans were not exported" or "can't be exported" in lines[-1]
    assert len(lines) <= 2, lines


def test_losses_are_counted_and_their_end_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One line at the first failure of a row, one when spans are exported again."""
    results = iter([SpanExportResult.FAILURE, SpanExportResult.FAILURE, SpanExportResult.SUCCESS])
    inner = InMemorySpanExporter()
    monkeypatch.setattr(inner, "export", lambda _: next(results))
    exporter = Exporter(inner, "http://user:secret@collector/v1/traces")
    with caplog.at_level(logging.INFO):
        for count in (2, 3, 1):
            exporter.export([ReadableSpan("x")] * count)
    assert [each.getMessage() for each in caplog.records] == [
        "spans can't be exported to http://collector/v1/traces, and are dropped until they can",
        "spans are exported to http://collector/v1/traces again",
    ]
    assert exporter.sent == 1
