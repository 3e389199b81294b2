"""What nobody expects to be raised, in each step and on each thread: every request has its outcome, and it goes on.

A back end raises at the public seam `Backend`, since no model at hand can raise these; codecs and encoders are replaced
where even a back end can't.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from mqinfer import Outcome
from mqinfer.cloud_worker.serving.worker import Worker
from mqinfer.codecs import encode_tensor
from mqinfer.protocol.types import Capture
from tests.patience import wait_until

GatedWorker = Callable[..., tuple[Worker, Any]]
ERRORS = [MemoryError(), RecursionError("too deep"), SystemExit(3), KeyboardInterrupt(), GeneratorExit()]
BAD = encode_tensor("x", np.full((1, 4), 7, np.float32))
INLINE = {"inline_s": 10.0, "service_s": 0.0001}


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Keep tracebacks that are expected out of the report."""
    caplog.set_level(logging.CRITICAL, "mqinfer")


@pytest.mark.parametrize("options", [{}, INLINE], ids=["pipeline", "inline"])
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_whatever_a_back_end_raises_is_one_requests_error(
    gated_worker: GatedWorker, bare: Any, error: BaseException, options: dict[str, Any]
) -> None:
    """More often than there are threads; the threads stay, and the next request is served."""
    worker, backend = gated_worker(**options)
    backend.fails = lambda inputs: error if inputs["x"][0, 0] == 7 else None
    threads = {thread.name for thread in threading.enumerate()}
    for number in range(4):
        reply = bare.ask(bare.binary(f"{number:032x}", inputs=(BAD,)))
        assert reply.error
        assert (reply.outcome, reply.error.code) == (Outcome.ERROR, "model_failed")
        assert type(error).__name__ in reply.error.message
    assert bare.ask(bare.binary()).outcome is Outcome.OK
    wait_until(lambda: worker.depth == 0)
    assert {thread.name for thread in threading.enumerate()} == threads
    assert worker.failure is None


def test_one_such_error_in_a_batch_spoils_no_other_request(gated_worker: GatedWorker, bare: Any) -> None:
    """The batch comes apart, and each member runs alone."""
    worker, backend = gated_worker(
        config="[dynamic_batching]\nmax_queue_delay_microseconds = 0\npreferred_batch_size = [4]\n"
    )
    backend.fails = lambda inputs: SystemExit(1) if 7 in inputs["x"] else None
    bare.hold(backend, f"{0:032x}")
    for number in range(1, 4):
        bare.link.publish(bare.binary(f"{number:032x}", **({"inputs": (BAD,)} if number == 2 else {})))
    wait_until(lambda: worker.pipeline.prepared == 3)
    backend.gate.set()
    outcomes = {int(reply.id, 16): reply.outcome for reply in (bare.read() for _ in range(4))}
    assert outcomes == {0: Outcome.OK, 1: Outcome.OK, 2: Outcome.ERROR, 3: Outcome.OK}
    assert backend.runs == [1, 3, 1, 1, 1]


@pytest.mark.parametrize("options", [{}, INLINE], ids=["pipeline", "inline"])
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("step", ["processing.read_request", "service.decode_tensor", "service.encode_tensor"])
def test_whatever_a_step_raises_is_one_requests_error(
    gated_worker: GatedWorker,
    bare: Any,
    error: BaseException,
    step: str,
    options: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is replied to, so that its client need not wait; sent again it ends the same, and its bytes are free."""
    worker, _ = gated_worker(capacity_bytes=1000, **options)

    def broken(*_: object) -> Any:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(f"mqinfer.cloud_worker.serving.{step}", broken)
        for number in (1, 2, 3, 4, 4):
            reply = bare.ask(bare.binary(f"{number:032x}"))
            assert reply.error
            assert (reply.id, reply.error.code) == (f"{number:032x}", "internal")
            assert type(error).__name__ in reply.error.message
    wait_until(lambda: worker.depth == 0)
    assert [bare.ask(bare.binary(f"{number:032x}")).outcome for number in (10, 11, 12)] == [Outcome.OK] * 3
    assert worker.failure is None


def test_a_request_for_which_not_even_an_error_can_be_sent_is_counted_and_may_come_again(
    gated_worker: GatedWorker, bare: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its id is not taken for one that runs, and the other requests go on."""
    worker, _ = gated_worker(capacity_bytes=1000)

    def broken(*_: object) -> Any:
        raise MemoryError

    message = bare.binary("01" * 16)
    with monkeypatch.context() as patch:
        patch.setattr("mqinfer.cloud_worker.serving.replies.write_reply", broken)
        for _ in range(3):
            bare.link.publish(message)
        bare.link.publish(replace(message, payload=b"MQI1"))
        wait_until(lambda: worker.statistics().counters == {"dropped_internal": 4})
    assert bare.ask(message).outcome is Outcome.OK
    wait_until(lambda: worker.depth == 0)


@pytest.mark.parametrize("options", [{}, INLINE], ids=["pipeline", "inline"])
def test_a_defect_between_the_steps_ends_the_worker(
    gated_worker: GatedWorker, bare: Any, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is reported as the worker's failure, on which its process ends; what it goes on to serve is served."""
    worker, _ = gated_worker(**options)

    def broken(*_: object) -> Any:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr("mqinfer.cloud_worker.serving.processing.Ready", broken)
        bare.link.publish(bare.binary("01" * 16))
        wait_until(lambda: worker.failure is not None)
    assert "MemoryError" in str(worker.failure)
    assert bare.ask(bare.binary("02" * 16)).outcome is Outcome.OK


@pytest.mark.parametrize("depth", [100, 10_000, 1_000_000])
@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
def test_deeply_nested_requests_are_bad_requests(
    gated_worker: GatedWorker, bare: Any, depth: int, opening: bytes
) -> None:
    """In JSON and in MessagePack: a typed error, whatever the parser's recursion does."""
    worker, _ = gated_worker()
    body = b'{"inputs":' + opening * depth
    bare.link.publish(replace(bare.text(""), payload=body))
    assert b"bad_envelope" in bytes(bare.next().payload)
    packed = (b"\x91" if opening == b"[" else b"\x81\xa1a") * min(depth, 20_000)
    head = b"MQI1" + len(packed).to_bytes(4, "little") + packed
    reply = bare.ask(replace(bare.binary(), payload=head + bytes(-len(head) % 64)))
    assert reply.error
    assert reply.error.code == "bad_envelope"
    assert bare.ask(bare.binary("cd" * 16, capture=Capture(source="camera"))).outcome is Outcome.OK
    assert worker.failure is None
