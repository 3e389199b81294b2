"""A worker that drains, or loses its connection, or gets none."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from mqinfer import Outcome
from mqinfer.broker import make_link
from mqinfer.broker.link import Link, Message, ReasonCode
from mqinfer.broker.memory import MemoryLink
from mqinfer.cloud_worker.serving.options import WorkerOptions
from mqinfer.cloud_worker.serving.worker import Worker
from mqinfer.models.loading import LoadedModel
from mqinfer.protocol.errors import BrokerUnreachable
from tests.cloud_worker.conftest import TOPICS
from tests.patience import PATIENCE_S, wait_until

GatedWorker = Callable[..., tuple[Worker, Any]]
Serve = Callable[..., Worker]
Gated = Callable[..., tuple[LoadedModel, Any]]


def test_draining_replies_to_everything_accepted(gated_worker: GatedWorker, bare: Any) -> None:
    """Stopping waits for the run and for all that is queued behind it."""
    worker, backend = gated_worker()
    backend.gate.clear()
    for number in range(5):
        bare.link.publish(bare.binary(f"{number:032x}"))
    assert backend.entered.acquire(timeout=PATIENCE_S)
    wait_until(lambda: worker.depth == 5)
    stopper = threading.Thread(target=worker.stop)
    stopper.start()
    backend.gate.set()
    assert {bare.read().outcome for _ in range(5)} == {Outcome.OK}
    stopper.join(PATIENCE_S)


def test_a_drained_worker_comes_back(
    url: str, serve: Serve, gated: Gated, bare: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answers what it has, leaves all request topics and stays connected; then it serves again."""
    monkeypatch.setattr("mqinfer.cloud_worker.serving.intake._QUIET_S", 0.0)
    model, backend = gated()
    links: list[Link] = []
    worker = serve(url, model, links=links)
    bare.hold(backend)
    worker.drain()
    assert not worker.is_drained()
    backend.gate.set()
    assert bare.read().outcome is Outcome.OK
    wait_until(worker.is_drained)
    codes: list[int] = []
    lane = replace(bare.binary("1" * 32), topic=TOPICS.lane(worker.name, "echo", bare.name))
    for message in (bare.binary("2" * 32), lane):
        bare.link.publish(message, codes.append)
    wait_until(lambda: len(codes) == 2)
    assert codes == 2 * [ReasonCode.NO_MATCHING_SUBSCRIBERS]
    assert links[0].connected
    worker.drain(on=False)
    assert bare.ask(lane).outcome is Outcome.OK
    assert bare.ask(bare.binary("3" * 32)).outcome is Outcome.OK


def test_what_can_not_be_drained_in_time_is_turned_away(
    gated_worker: GatedWorker, bare: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """After the time-out the run in hand is still finished, and the rest is answered `rejected`."""
    worker, backend = gated_worker(config="max_batch_size = 1", threads=1)
    backend.gate.clear()
    for number in range(4):
        bare.link.publish(bare.binary(f"{number:032x}"))
    assert backend.entered.acquire(timeout=PATIENCE_S)
    wait_until(lambda: worker.depth == 4)
    with caplog.at_level(logging.CRITICAL, "mqinfer"):
        stopper = threading.Thread(target=worker.stop, args=(0.0,))
        stopper.start()
        wait_until(lambda: worker.pipeline._closing)
        backend.gate.set()
        stopper.join(PATIENCE_S)
    outcomes = [bare.read().outcome for _ in range(4)]
    assert sorted(outcomes) == [Outcome.OK, *3 * [Outcome.REJECTED]]


def test_a_reply_that_can_not_be_sent_is_kept_for_the_retry(url: str, serve: Serve, gated: Gated, bare: Any) -> None:
    """A worker that lost its connection while it ran replies to the retry from memory."""
    model, backend = gated()
    links: list[Link] = []
    worker = serve(url, model, links=links)
    (link,) = links
    assert isinstance(link, MemoryLink)
    bare.hold(backend)
    link.drop()
    backend.gate.set()
    wait_until(lambda: worker.depth == 0)
    link.restore()
    assert bare.ask(bare.binary()).outcome is Outcome.OK
    assert backend.runs == [1]
    assert worker.statistics().counters["replies_held_back"] == 1


def test_a_worker_that_can_not_connect_leaves_nothing_behind(gated: Gated) -> None:
    """The error is raised, and no thread is left (the fixture looks)."""
    model, _ = gated()

    def connect(name: str, will: Message, handler: Callable[[bool], None]) -> Link:
        return make_link("mqtt://127.0.0.1:1", client_id=name, will=will, on_connection=handler)

    worker = Worker(model, connect, WorkerOptions("w"))
    with pytest.raises(BrokerUnreachable):
        worker.start(2)
