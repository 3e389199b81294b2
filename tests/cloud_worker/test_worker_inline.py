"""Short work for an idle worker, on the link's own thread."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from mqinfer import Client, Outcome
from mqinfer.cloud_worker.serving.worker import Worker
from mqinfer.codecs import encode_tensor
from mqinfer.models.loading import LoadedModel
from mqinfer.protocol.datatypes import Array
from tests.patience import wait_until

GatedWorker = Callable[..., tuple[Worker, Any]]
Serve = Callable[..., Worker]
Gated = Callable[..., tuple[LoadedModel, Any]]
X = np.arange(4, dtype=np.float32).reshape(1, 4)
ALWAYS = 10.0
"""Seconds below which work is short: every run of these tests."""


def is_inline(thread: str) -> bool:
    """Whether a thread's name is that of a link, and not that of a pipeline's thread."""
    return thread.startswith(("mqinfer-memory-", "mqinfer-link-"))


def test_an_idle_worker_serves_short_work_on_the_links_thread(gated_worker: GatedWorker, bare: Any) -> None:
    """The first request measures; those after it stay on the thread that received them."""
    worker, backend = gated_worker(inline_s=ALWAYS)
    for number in range(5):
        reply = bare.ask(bare.binary(f"{number:032x}"))
        assert (reply.outcome, reply.load.depth) == (Outcome.OK, 1)
        wait_until(lambda: worker.depth == 0)  # which comes after the reply
    assert [is_inline(thread) for thread in backend.threads] == [False, True, True, True, True]
    wait_until(lambda: worker.statistics().counters == {"ok": 5})


def test_a_worker_that_knows_its_models_time_serves_the_first_request_inline(
    broker_url: str, serve: Serve, gated: Gated, unique: Callable[[str], str]
) -> None:
    """Over MQTT alike: what the warm-up measured is enough."""
    model, backend = gated(unique("echo"))
    serve(broker_url, model, inline_s=ALWAYS, service_s=0.0001)
    with Client(broker_url, name=unique("client")) as client:
        assert client.infer(model.card.name, {"x": X}).outcome is Outcome.OK
    assert [is_inline(thread) for thread in backend.threads] == [True]


@pytest.mark.parametrize(
    ("config", "options"),
    [
        ("", {"inline_s": 0.0}),
        ("", {"inline_s": ALWAYS, "inline_bytes": 100}),
        ("[dynamic_batching]\nmax_queue_delay_microseconds = 0", {"inline_s": ALWAYS}),
        ("[dynamic_batching]\npreferred_batch_size = [1]", {"inline_s": ALWAYS}),
    ],
)
def test_other_work_keeps_its_threads(
    gated_worker: GatedWorker, bare: Any, config: str, options: dict[str, Any]
) -> None:
    """Never inline: where it is off, a payload is large, or the operator stated how batches gather."""
    _, backend = gated_worker(config=config, **options)
    for number in range(3):
        assert bare.ask(bare.binary(f"{number:032x}")).outcome is Outcome.OK
    assert not any(map(is_inline, backend.threads))


def test_one_slow_run_sends_the_next_request_to_the_threads(gated_worker: GatedWorker, bare: Any) -> None:
    """The estimate rises at once, and falls again with runs that are short."""
    worker, backend = gated_worker(inline_s=0.5)
    delays = [0.0, 0.0, 1.0, 0.0, 0.0]

    def wait(_: Mapping[str, Array]) -> None:
        time.sleep(delays.pop(0) if delays else 0.0)

    backend.fails = wait
    for number in range(20):
        assert bare.ask(bare.binary(f"{number:032x}")).outcome is Outcome.OK
        wait_until(lambda: worker.depth == 0)
    places = [is_inline(thread) for thread in backend.threads]
    assert places[:4] == [False, True, True, False]
    assert places[-1]


def test_a_worker_that_is_busy_hands_over(gated_worker: GatedWorker, bare: Any) -> None:
    """While a large request runs on a thread, a short one is queued behind it, and the link goes on receiving."""
    worker, backend = gated_worker(
        "echo",
        ("x", "FP32", [-1, 1000]),
        config="max_batch_size = 4",
        inline_s=ALWAYS,
        inline_bytes=5000,
        service_s=0.0001,
    )
    large = encode_tensor("x", np.zeros((3, 1000), np.float32))
    small = encode_tensor("x", np.zeros((1, 1000), np.float32))
    bare.hold(backend, inputs=(large,))
    for number in range(3):
        bare.link.publish(bare.binary(f"{number:032x}", inputs=(small,)))
    wait_until(lambda: worker.pipeline.prepared >= 3)
    backend.gate.set()
    assert {bare.read().outcome for _ in range(4)} == {Outcome.OK}
    wait_until(lambda: worker.depth == 0)
    assert not any(map(is_inline, backend.threads))
    assert bare.ask(bare.binary("cd" * 16, inputs=(small,))).outcome is Outcome.OK
    assert is_inline(backend.threads[-1])


def test_requests_that_fail_inline_get_replies(gated_worker: GatedWorker, bare: Any) -> None:
    """An unreadable request, a wrong one and one that makes the model fail get replies and leave nothing behind."""
    worker, backend = gated_worker(inline_s=ALWAYS, service_s=0.0001)
    backend.fails = lambda inputs: ValueError("a defect") if inputs["x"][0, 0] == 7 else None
    seven = encode_tensor("x", np.full((1, 4), 7, np.float32))
    codes = []
    for message in (
        bare.binary("01" * 16, inputs=(seven,)),
        bare.binary("02" * 16, inputs=()),
        bare.text("{", "3"),
    ):
        bare.link.publish(message)
        codes.append(bytes(bare.next().payload))
    assert all(
        word in code for word, code in zip((b"model_failed", b"bad_tensor", b"bad_envelope"), codes, strict=True)
    )
    assert bare.ask(bare.binary("04" * 16)).outcome is Outcome.OK
    wait_until(lambda: worker.depth == 0)
