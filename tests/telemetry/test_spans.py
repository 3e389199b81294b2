"""Spans made of given times: what lies where, below what, and what is left out."""

from __future__ import annotations

import time
from typing import Any

import pytest
from msgspec.structs import astuple
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind

from mqinfer.cloud_worker.serving.incoming import IncomingRequest, ReplyPath
from mqinfer.cloud_worker.serving.spans import Replied, WorkerSpans
from mqinfer.protocol.topics import Topics, request_kind
from mqinfer.protocol.trace import TraceContext, read_trace
from mqinfer.protocol.types import ErrorInfo, InferRequest, InferResponse, Outcome, Timings
from mqinfer.telemetry.around import Around
from mqinfer.telemetry.requests import RequestSpans
from tests.telemetry.conftest import Traced

TOPICS = Topics("site")
TRACE, SPAN = 0x4BF92F3577B34DA6A3CE929D0E0E4736, 0xF067AA0BA902B7
PARENT = read_trace(f"00-{TRACE:032x}-{SPAN:016x}-01", "vendor=1")
UNSAMPLED = read_trace(f"00-{TRACE:032x}-{SPAN:016x}-00")
MS = 1_000_000
WORKED = Timings(0, 0, 3 * MS, 5 * MS, 7 * MS, 11 * MS, 13 * MS, 17 * MS)
"""What a worker reports; each time is told from sums of the others."""


def request(trace: TraceContext | None, number: int = 1) -> InferRequest:
    """Return a request as a client has it."""
    return InferRequest(f"{number:032x}", "seg", (), response_topic=f"site/results/seg/ann/{number:032x}", trace=trace)


def took(span: ReadableSpan) -> int:
    """Return a span's duration in nanoseconds."""
    assert span.start_time is not None
    assert span.end_time is not None
    return span.end_time - span.start_time


def parent_of(span: ReadableSpan) -> int | None:
    """Return the id of the span above."""
    return span.parent.span_id if span.parent else None


def own(span: ReadableSpan) -> int:
    """Return a span's id."""
    assert span.context is not None
    return int(span.context.span_id)


def trace_of(span: ReadableSpan) -> int:
    """Return the id of a span's trace."""
    assert span.context is not None
    return int(span.context.trace_id)


def test_a_request_is_queued_transmitted_and_settled(traced: Traced) -> None:
    """Spans have the durations of the time split, lie end to end, and are of the caller's trace."""
    spans = RequestSpans(traced.tracer, request(PARENT), "ann", TOPICS, 100.0)
    sent = spans.sent("site/workers/w.0/infer/seg/ann", 64, 100.002)
    timings = Timings(2 * MS, 23 * MS, *astuple(WORKED)[2:])
    spans.end(Outcome.OK, None, timings, "w.0", 100.085)

    found = {name: each for name, (each,) in traced.by_name().items()}

    assert set(found) == {"infer", "queue", "transmit", "settle"}
    whole, queue, transmit, settle = (found[name] for name in ("infer", "queue", "transmit", "settle"))
    assert {trace_of(each) for each in found.values()} == {TRACE}
    assert parent_of(whole) == SPAN
    assert {parent_of(each) for each in (queue, transmit, settle)} == {own(whole)}
    assert took(queue) == 2 * MS
    assert took(transmit) == timings.transmission + WORKED.server == 79 * MS
    assert took(settle) == 4 * MS
    assert (took(whole), whole.start_time) == (85 * MS, queue.start_time)
    assert (queue.end_time, transmit.end_time, settle.end_time) == (
        transmit.start_time,
        settle.start_time,
        whole.end_time,
    )
    assert abs(time.time_ns() - (whole.start_time or 0)) < 600 * 10**9
    assert sent == TraceContext(f"00-{TRACE:032x}-{own(transmit):016x}-01", "vendor=1")
    assert transmit.name == "transmit site/workers/{worker}/infer/{model}/{client}"
    assert (transmit.kind, settle.kind, whole.kind) == (SpanKind.PRODUCER, SpanKind.CLIENT, SpanKind.INTERNAL)
    attributes = dict(transmit.attributes or {})
    assert attributes["messaging.system"] == "mqtt"
    assert attributes["messaging.destination.name"] == "site/workers/w.0/infer/seg/ann"
    assert attributes["messaging.message.conversation_id"] == f"{1:032x}"
    assert attributes["mqinfer.worker"] == "w.0"


def test_each_attempt_has_a_span_that_its_worker_continues(traced: Traced) -> None:
    """The first one ends where the second one begins; both are below the request."""
    spans = RequestSpans(traced.tracer, request(None), "ann", TOPICS, 5.0)
    first = spans.sent("site/models/seg/infer/ann", 64, 5.0)
    second = spans.sent("site/workers/w.1/infer/seg/ann", 64, 6.0)
    spans.end(Outcome.EXPIRED, ErrorInfo("expired", "no reply in time"), Timings(), "", 8.0)

    found = traced.by_name()

    (whole,), (early, late) = found["infer"], found["transmit"]
    assert parent_of(whole) is None
    assert [took(each) for each in (early, late, *found["queue"], *found["settle"])] == [10**9, 2 * 10**9, 0, 0]
    assert [first.traceparent[36:52], second.traceparent[36:52]] == [f"{own(each):016x}" for each in (early, late)]
    assert whole.status.description == "no reply in time"
    assert {**(whole.attributes or {})}["error.type"] == "expired"
    assert [{**(each.attributes or {})}["mqinfer.attempt"] for each in (early, late)] == [1, 2]


def test_a_request_that_was_never_sent_has_waited(traced: Traced) -> None:
    """It has no attempt."""
    spans = RequestSpans(traced.tracer, request(None), "ann", TOPICS, 5.0)
    spans.end(Outcome.CANCELLED, ErrorInfo("cancelled", "by the caller"), Timings(), "", 7.0)

    found = traced.by_name()

    assert set(found) == {"infer", "queue", "settle"}
    assert took(found["queue"][0]) == 2 * 10**9


@pytest.mark.parametrize("sampler", ["parent", "environment"])
def test_what_is_not_sampled_travels_and_is_not_exported(monkeypatch: pytest.MonkeyPatch, sampler: str) -> None:
    """By the flag of the caller, or by the sampler that the environment sets: the worker then leaves it out, too."""
    if sampler == "environment":
        monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
        monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0")
    traced = Traced()
    spans = RequestSpans(traced.tracer, request(UNSAMPLED if sampler == "parent" else None), "ann", TOPICS, 5.0)
    sent = spans.sent("site/models/seg/infer/ann", 64, 5.0)
    spans.end(Outcome.OK, None, WORKED, "w.0", 6.0)
    around = Around(traced.tracer, "frame", time.monotonic(), {}, sent)
    around.prepared()
    around.end(Outcome.OK, None)
    WorkerSpans(traced.tracer, TOPICS).add([replied(1, sent)], 10.0)

    assert int(sent.traceparent[-2:], 16) & 1 == 0
    assert (sent.traceparent[3:35] == f"{TRACE:032x}") is (sampler == "parent")
    assert traced.spans() == []


def replied(number: int, trace: TraceContext | None, **changes: Any) -> Replied:
    """Return a request that ran: 2 ms until a thread was free, 1 ms until the model was."""
    path = ReplyPath(f"site/results/seg/ann/{number:032x}", None, is_json=False, trace=trace)
    asked = request(trace, number)
    incoming = IncomingRequest(asked, "ann", path, None, 9.0, 20.0, 640, "site/models/seg/infer/ann")
    response = InferResponse(asked.id, "seg", "3", worker="w.0", timings=WORKED)
    passed = {"ready": 9.014, "began": 9.015, "replying": 9.030, "split_ns": 4 * MS}
    return Replied(incoming, response, started=9.002, replied=9.060, **{**passed, **changes})


def test_a_workers_spans_are_its_time_split(traced: Traced) -> None:
    """Their durations add up to each time of the reply, in the order in which they passed."""
    WorkerSpans(traced.tracer, TOPICS).add([replied(1, PARENT)], 10.0)

    found = traced.by_name()

    (process,) = found["process"]
    (batch,) = found["batch"]
    assert trace_of(process) == TRACE
    assert (parent_of(process), took(process), process.kind) == (SPAN, 60 * MS, SpanKind.CONSUMER)
    assert process.name == "process site/models/{model}/infer/{client}"
    below = {name: each for name, each in found.items() if name not in {"process", "run"}}
    assert {parent_of(each) for spans in below.values() for each in spans} == {own(process)}
    assert parent_of(found["run"][0]) == own(batch)
    durations = {name: sum(map(took, each)) for name, each in found.items()}
    assert durations["worker queue"] == WORKED.server_queue
    assert durations["decode"] == WORKED.decode
    assert durations["preprocess"] == WORKED.preprocess
    assert durations["run"] == WORKED.inference
    assert durations["encode"] == WORKED.encode
    assert durations["batch"] - durations["run"] + durations["postprocess"] == WORKED.postprocess
    starts = [span.start_time or 0 for name in ("worker queue", "decode", "preprocess") for span in found[name][:1]]
    starts += [span.start_time or 0 for name in ("batch", "postprocess", "encode") for span in found[name]]
    assert starts == sorted(starts)
    assert batch.links == ()


def test_requests_of_a_batch_are_linked(traced: Traced) -> None:
    """Each `batch` is below its own request and links to every other; one that is not sampled is in no link."""
    batch = [replied(1, PARENT), replied(2, None), replied(3, UNSAMPLED), replied(4, None)]
    WorkerSpans(traced.tracer, TOPICS).add(batch, 10.0)

    found = traced.by_name()

    processes = {own(each): each for each in found["process"]}
    assert len(processes) == len(found["batch"]) == 3
    assert len({trace_of(each) for each in processes.values()}) == 3
    for each in found["batch"]:
        linked = {link.context.span_id for link in each.links}
        assert linked == set(processes) - {parent_of(each)}
        assert dict(each.attributes or {}) == {"messaging.batch.message_count": 4}


def test_a_request_that_could_not_run_says_why(traced: Traced) -> None:
    """It has waited for a thread, and nothing else."""
    failed = InferResponse("1", "seg", "3", Outcome.ERROR, error=ErrorInfo("bad_tensor", "no such input"))
    given = replied(1, PARENT, began=0.0)
    given = Replied(given.incoming, failed, given.started, given.replied)
    WorkerSpans(traced.tracer, TOPICS).add([given], 10.0)

    found = traced.by_name()

    assert set(found) == {"process", "worker queue"}
    (process,) = found["process"]
    assert process.status.description == "no such input"
    assert {**(process.attributes or {})}["error.type"] == "bad_tensor"


def test_stages_before_a_request_lie_end_to_end(traced: Traced) -> None:
    """`queue` is from the frame's reading to the first of them."""
    around = Around(traced.tracer, "frame", time.monotonic() - 10.0, {"mqinfer.source": "/front"})
    for name, nanoseconds in (("demosaic", 3 * MS), ("resize", 5 * MS), ("encode", 7 * MS)):
        around.measured(name, nanoseconds)
    around.prepared()
    around.end(Outcome.OK, None)

    spans = sorted(traced.spans(), key=lambda each: (each.start_time or 0, -(each.end_time or 0)))

    assert [each.name for each in spans] == ["frame", "queue", "demosaic", "resize", "encode"]
    assert [took(each) for each in spans[2:]] == [3 * MS, 5 * MS, 7 * MS]
    assert [each.end_time for each in spans[1:4]] == [each.start_time for each in spans[2:]]
    assert spans[0].start_time == spans[1].start_time


@pytest.mark.parametrize(
    ("topic", "template"),
    [
        (TOPICS.infer("seg", "ann"), "site/models/{model}/infer/{client}"),
        (TOPICS.infer("infer", "ann", "3"), "site/models/{model}/versions/{version}/infer/{client}"),
        (TOPICS.lane("w.0", "infer", "ann"), "site/workers/{worker}/infer/{model}/{client}"),
    ],
)
def test_names_of_spans_are_few(topic: str, template: str) -> None:
    """However many models, clients and workers there are."""
    assert request_kind(TOPICS, topic).template == template


def test_a_defect_costs_no_outcome(
    traced: Traced, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What runs on threads that deliver replies raises nothing, and is logged as other drops are."""
    spans, around = RequestSpans(traced.tracer, request(None), "ann", TOPICS, 5.0), Around(traced.tracer, "x", 1.0, {})

    def fail(*_: object, **__: object) -> None:
        raise ValueError("defect")

    monkeypatch.setattr(traced.tracer, "start", fail)
    spans.end(Outcome.OK, None, WORKED, "w.0", 6.0)
    around.prepared()
    WorkerSpans(traced.tracer, TOPICS).add([replied(1, None)], 10.0)
    assert caplog.records
    assert all("dropped the spans of a request: ValueError('defect')" in each.getMessage() for each in caplog.records)
