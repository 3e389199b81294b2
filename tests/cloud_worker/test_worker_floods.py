"""Clients that send without a window: what they may take from others, and what refusing them costs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from mqinfer import Outcome
from mqinfer.broker import make_link
from mqinfer.broker.link import Link
from mqinfer.cloud_worker.serving.worker import Worker
from tests.clock import Clock
from tests.patience import wait_until

GatedWorker = Callable[..., tuple[Worker, Any]]
CAPACITY, FLOOD = 4, 100


@pytest.fixture
def timed(gated_worker: GatedWorker) -> Callable[..., tuple[Worker, Any, Clock]]:
    """Start a worker with a clock that stands still; `timed(capacity=…)` returns it, its back end and the clock."""

    def start(**options: Any) -> tuple[Worker, Any, Clock]:
        clock, how = Clock(100.0), {"capacity": CAPACITY, "inline_s": 0.0, **options}
        return *gated_worker(config="max_batch_size = 1", service_s=0.0001, clock=clock, **how), clock

    return start


@pytest.fixture
def other(url: str, bare_on: Callable[[Link, str], Any], unique: Callable[[str], str]) -> Iterator[Any]:
    """A second client."""
    name = unique("other")
    link = make_link(url, client_id=name)
    link.open()
    yield bare_on(link, name)
    link.close()


def test_a_client_that_heeds_no_refusal_is_dropped_and_takes_no_others_place(
    timed: Callable[..., Any], bare: Any, other: Any
) -> None:
    """It is refused a hundred times within a second, and then dropped, whatever it sends; others have room."""
    worker, backend, clock = timed()
    backend.gate.clear()
    for number in range(CAPACITY):
        bare.link.publish(bare.binary(f"{number:032x}"))
    wait_until(lambda: worker.pipeline.prepared == CAPACITY - 1)
    for sent in range(1, 2001):
        bare.link.publish(bare.binary(f"{CAPACITY + sent:032x}") if sent % 2 else bare.text("{", str(sent)))
        if sent % 100 == 0:  # more than a broker queues
            wait_until(lambda sent=sent: sum(worker.statistics().counters.values()) == sent)  # type: ignore[misc]
    assert all(b"rejected" in bytes(bare.next().payload) for _ in range(FLOOD))
    wait_until(lambda: worker.statistics().counters == {"rejected": FLOOD, "dropped_flood": 2000 - FLOOD})

    other.link.publish(other.binary())  # takes the place of the flood's last request, which has its reply
    assert bare.read().outcome is Outcome.REJECTED
    clock.now += 1.0  # the next second
    bare.link.publish(bare.binary("ab" * 16))
    assert (last := bare.read()).outcome is Outcome.REJECTED
    assert last.id == "ab" * 16
    backend.gate.set()
    assert other.read().outcome is Outcome.OK
    assert {bare.read().outcome for _ in range(CAPACITY - 1)} == {Outcome.OK}
    wait_until(lambda: worker.depth == 0)
    assert bare.ask(bare.binary("cd" * 16)).outcome is Outcome.OK


def test_large_requests_of_one_client_leave_room_for_another(timed: Callable[..., Any], bare: Any, other: Any) -> None:
    """Where the bytes are used up, the client with most queued makes room for one that has less."""
    size = len(bare.binary().payload)
    worker, backend, _ = timed(capacity=64, capacity_bytes=7 * size // 2)
    backend.gate.clear()
    for number in range(4):
        bare.link.publish(bare.binary(f"{number:032x}"))
    assert bare.read().id == f"{3:032x}"
    wait_until(lambda: worker.pipeline.prepared == 2)
    other.link.publish(other.binary("ab" * 16))
    refused = bare.read()
    assert (refused.id, refused.outcome) == (f"{2:032x}", Outcome.REJECTED)
    backend.gate.set()
    assert other.read().outcome is Outcome.OK
    assert {bare.read().id for _ in range(2)} == {f"{number:032x}" for number in range(2)}
