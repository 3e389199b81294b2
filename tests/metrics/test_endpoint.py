from __future__ import annotations

import builtins
import socket
import threading
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from prometheus_client import parser

from mqinfer.metrics.endpoint import make_registry, serving_metrics
from mqinfer.metrics.histogram import Histogram
from mqinfer.metrics.inference import add_inference
from mqinfer.metrics.samples import BUCKETS, Samples
from mqinfer.protocol.control import BatchStatistics, Duration, ModelStatistics, StageTimes
from mqinfer.protocol.errors import ConfigError, MissingExtra


def read(port: int, path: str = "/metrics") -> str:
    """Return what the endpoint answers."""
    with urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as reply:
        return str(reply.read().decode())


def values(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Return samples by name and labels, as prometheus-client's own parser reads them."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in parser.text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_samples_of_a_model() -> None:
    """Requests by outcome, what was skipped among them; batches; and the same under Triton's names."""
    found = ModelStatistics(
        inference_count=12,
        execution_count=3,
        stages=StageTimes(success=Duration(2, 3_000_000), queue=Duration(2, 1_000_000)),
        batches={rows: BatchStatistics(compute_infer=Duration(runs, 9)) for rows, runs in ((1, 1), (3, 1), (8, 1))},
        counters={"ok": 2, "error": 1, "cancelled": 1, "skipped_cancelled": 4, "dropped_flood": 5, "duplicates": 6},
        histograms={"success": (0,) * 20 + (1, 1)},
        depth=7,
        capacity=64,
        oldest_ns=1_500_000_000,
    )

    def add(samples: Samples) -> None:
        add_inference(samples, {("seg", "3"): found}, triton=True)

    with serving_metrics(add, 0) as port:
        got = values(read(port))
    labels = (("model", "seg"), ("version", "3"))

    def value(name: str, **more: str) -> float:
        return got[name, tuple(sorted((*labels, *more.items())))]

    assert value("mqinfer_inference_request_success_total") == 2
    assert value("mqinfer_inference_request_failure_total", reason="cancelled") == 5
    assert value("mqinfer_inference_request_failure_total", reason="rejected") == 0
    assert value("mqinfer_inference_dropped_total", reason="flood") == 5
    assert value("mqinfer_inference_events_total", event="duplicates") == 6
    assert value("mqinfer_inference_oldest_request_seconds") == 1.5
    assert value("mqinfer_inference_request_duration_seconds_count") == 2
    assert value("mqinfer_inference_request_duration_seconds_sum") == 0.003
    bounds = {le: value("mqinfer_inference_request_duration_seconds_bucket", le=le) for le in ("0.000524288", "+Inf")}
    assert bounds == {"0.000524288": 0, "+Inf": 2}
    assert value("mqinfer_inference_request_duration_seconds_bucket", le=repr(2**20 / 1e9)) == 1
    assert [value("mqinfer_inference_batch_rows_bucket", le=f"{size}.0") for size in (1, 2, 4, 8)] == [1, 1, 2, 3]
    assert value("nv_inference_request_failure", reason="CANCELED") == 5
    assert value("nv_inference_request_failure", reason="BACKEND") == 1
    assert value("nv_inference_request_duration_us") == 3000
    assert value("nv_inference_pending_request_count") == 7
    assert got["mqinfer_build_info", (("version", __import__("mqinfer").__version__),)] == 1


def test_buckets_of_the_finer_histogram_are_exact() -> None:
    """Those of an edge are made of its own: nothing is counted in a wrong bucket, at the bounds neither."""
    histogram, durations = Histogram(), [0, 1, 127, 128, *(2**power + step for power in BUCKETS for step in (-1, 0, 1))]
    for each in durations:
        histogram.add(each)
    counts = histogram.lengths()
    for power in BUCKETS:
        assert sum(counts[: power + 1]) == sum(each < 2**power for each in durations)
    assert (sum(counts), histogram.total) == (len(durations), sum(durations))


def test_the_port() -> None:
    """It is open on loopback alone, has its own paths, survives a silent connection, and is closed with the context."""
    with serving_metrics(lambda _: None, 0) as port:
        assert "mqinfer-metrics" in {thread.name for thread in threading.enumerate()}
        with socket.create_connection(("127.0.0.1", port)) as silent:
            silent.close()
            assert "mqinfer_build_info" in read(port)
        with pytest.raises(HTTPError, match="404"):
            read(port, "/")
        with (
            pytest.raises(ConfigError, match=rf"can't serve metrics on 127\.0\.0\.1:{port}.*--metrics-port"),
            serving_metrics(lambda _: None, port),
        ):
            pass
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port))
    with serving_metrics(lambda _: None, None) as port:
        assert port == 0


def test_probes() -> None:
    """A program lives while it answers, and is ready while it says so."""
    answers = iter((False, True))
    with serving_metrics(lambda _: None, 0, is_ready=lambda: next(answers)) as port:
        assert read(port, "/v2/health/live") == "ok\n"
        with pytest.raises(HTTPError, match="503"):
            read(port, "/v2/health/ready")
        assert read(port, "/v2/health/ready") == "ok\n"


def test_a_defect_costs_the_rest_alone(caplog: pytest.LogCaptureFixture) -> None:
    """What was read before is answered, and the log has the reason."""

    def fail(samples: Samples) -> None:
        samples.gauge("broker_connected", "…", 1)
        raise RuntimeError("a defect")

    with serving_metrics(fail, 0) as port:
        assert "mqinfer_broker_connected 1.0" in read(port)
    assert "could not be read" in caplog.text


def test_without_prometheus_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """One line names the package and the command that installs it; without a port it is not needed."""
    original = builtins.__import__

    def refuse(name: str, *arguments: Any, **more: Any) -> Any:
        if name.startswith("prometheus_client"):
            raise ModuleNotFoundError(name)
        return original(name, *arguments, **more)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(MissingExtra, match=r"prometheus-client is not installed; run: .*pip install .*\[telemetry\]"):
        make_registry(lambda _: None)
    with serving_metrics(lambda _: None, None) as port:
        assert port == 0
