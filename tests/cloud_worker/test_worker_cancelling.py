"""Cancelled and superseded requests, in each step of a request's life in a worker."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from mqinfer import Outcome
from mqinfer.broker import make_link
from mqinfer.broker.link import Message
from mqinfer.client.connection import connect
from mqinfer.client.options import ClientOptions
from mqinfer.client.request import make_request
from mqinfer.cloud_worker.serving.load import CancelledRequests
from mqinfer.cloud_worker.serving.worker import Worker
from mqinfer.codecs import decode_tensor
from mqinfer.models.loading import LoadedModel
from mqinfer.protocol.control import Cancellation
from mqinfer.protocol.errors import BadEnvelope, Superseded
from mqinfer.protocol.states import WorkerState
from mqinfer.protocol.topics import Topics
from tests.patience import PATIENCE_S, STEADY, wait_until

GatedWorker = Callable[..., tuple[Worker, Any]]
Serve = Callable[..., Worker]
Gated = Callable[..., tuple[LoadedModel, Any]]
Cancel = Callable[..., None]
TOPICS = Topics()
ONE, TWO, THREE, FOUR = (f"{number:032x}" for number in range(1, 5))
BATCHES = "[dynamic_batching]\nmax_queue_delay_microseconds = 0\npreferred_batch_size = [4]\n"
INLINE = {"inline_s": 10.0, "service_s": 0.0001}
UNREADABLE = "dropped_bad_envelope"


def cancellation(client: str, *ids: str, outcome: Outcome = Outcome.CANCELLED) -> Message:
    """Make the message by which a client cancels requests of the model `echo`."""
    return Message(TOPICS.cancel("echo", client), Cancellation(ids, outcome).to_json())


@pytest.fixture(params=[Outcome.CANCELLED, Outcome.SUPERSEDED])
def outcome(request: pytest.FixtureRequest) -> Outcome:
    """The outcome that the client counted."""
    found: Outcome = request.param
    return found


@pytest.fixture
def cancel(bare: Any) -> Cancel:
    """Cancel requests, `cancel(worker, *ids, outcome=…)`, and wait until the worker's link has read it."""

    def send(worker: Worker, *ids: str, **how: Outcome) -> None:
        before = worker.statistics().counters.get(UNREADABLE, 0)
        bare.link.publish(cancellation(bare.name, *ids, **how))
        bare.link.publish(replace(cancellation(bare.name), payload=b"{"))  # counted once what came before is read
        wait_until(lambda: worker.statistics().counters.get(UNREADABLE, 0) > before)

    return send


class HeldDecoding:
    """Decoding that waits while `gate` is not set; `entered` is released once a tensor."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.gate, self.entered = threading.Event(), threading.Semaphore(0)
        monkeypatch.setattr("mqinfer.cloud_worker.serving.service.decode_tensor", self)

    def __call__(self, *arguments: Any) -> Any:
        """Decode a tensor once the gate is open."""
        self.entered.release()
        assert self.gate.wait(PATIENCE_S)
        return decode_tensor(*arguments)


@pytest.mark.parametrize("options", [{"inline_s": 0.0}, INLINE], ids=["pipeline", "inline"])
def test_a_cancellation_that_overtakes_its_request(
    gated_worker: GatedWorker, bare: Any, outcome: Outcome, options: dict[str, Any]
) -> None:
    """The request is skipped when it comes, without a run and a reply; it is counted once and leaves nothing behind."""
    worker, backend = gated_worker(capacity_bytes=len(bare.binary().payload) * 3 // 2, **options)
    for number in range(1, 5):  # each has more than half of the bytes that the worker may hold
        request_id = f"{number:032x}"
        bare.link.publish(cancellation(bare.name, request_id, outcome=outcome))
        bare.link.publish(bare.binary(request_id))
        counted = {f"skipped_{outcome}": number}
        wait_until(lambda counted=counted: (worker.statistics().counters, worker.depth) == (counted, 0))  # type: ignore[misc]
    request_id = "ab" * 16
    assert bare.ask(bare.binary(request_id)).id == request_id
    assert backend.runs == [1]
    wait_until(lambda: worker.statistics().counters == {f"skipped_{outcome}": 4, "ok": 1})
    wait_until(lambda: worker.depth == 0)


def test_a_request_that_waits_for_a_thread(
    gated_worker: GatedWorker, bare: Any, cancel: Cancel, outcome: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cancelled while all threads are busy, it is skipped by the one that takes it up, before it is decoded."""
    worker, backend = gated_worker(config="max_batch_size = 1", threads=2)
    decoding = HeldDecoding(monkeypatch)
    for request_id in (ONE, TWO):
        bare.link.publish(bare.binary(request_id))
        assert decoding.entered.acquire(timeout=PATIENCE_S)
    bare.link.publish(bare.binary(THREE))
    wait_until(lambda: worker.depth == 3)
    cancel(worker, THREE, outcome=outcome)
    decoding.gate.set()
    assert {bare.read().id for _ in range(2)} == {ONE, TWO}
    wait_until(lambda: worker.depth == 0)
    assert backend.runs == [1, 1]
    assert not decoding.entered.acquire(blocking=False)
    assert worker.statistics().counters == {f"skipped_{outcome}": 1, "ok": 2, UNREADABLE: 1}


def test_a_request_that_is_being_prepared(
    gated_worker: GatedWorker, bare: Any, cancel: Cancel, outcome: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cancelled while it is decoded, it is skipped before it runs."""
    worker, backend = gated_worker()
    decoding = HeldDecoding(monkeypatch)
    bare.link.publish(bare.binary(ONE))
    assert decoding.entered.acquire(timeout=PATIENCE_S)
    cancel(worker, ONE, outcome=outcome)
    decoding.gate.set()
    wait_until(lambda: worker.depth == 0)
    assert bare.ask(bare.binary(TWO)).id == TWO
    assert backend.runs == [1]
    wait_until(lambda: worker.statistics().counters == {f"skipped_{outcome}": 1, "ok": 1, UNREADABLE: 1})


def test_a_prepared_request(gated_worker: GatedWorker, bare: Any, cancel: Cancel, outcome: Outcome) -> None:
    """Cancelled while it waits for the model, it is left out of its batch; the others run and have replies."""
    worker, backend = gated_worker(config=BATCHES, capacity_bytes=len(bare.binary().payload) * 6)
    for turn in (100, 200):  # twice: the bytes of what was skipped are free again
        bare.hold(backend, f"{turn:032x}")
        ids = [f"{turn + number:032x}" for number in range(1, 5)]
        for request_id in ids:
            bare.link.publish(bare.binary(request_id))
        wait_until(lambda: worker.pipeline.prepared == 4)
        cancel(worker, ids[1], ids[2], outcome=outcome)
        backend.gate.set()
        assert {bare.read().id for _ in range(3)} >= {ids[0], ids[3]}
        wait_until(lambda: worker.depth == 0)
    assert backend.runs == [1, 2, 1, 2]
    assert worker.statistics().counters == {f"skipped_{outcome}": 4, "ok": 6, UNREADABLE: 2}


def test_a_request_that_runs(gated_worker: GatedWorker, bare: Any, cancel: Cancel, outcome: Outcome) -> None:
    """Cancelled in a running batch, it has no reply, and the others have theirs."""
    worker, backend = gated_worker(config=BATCHES)
    bare.hold(backend, ONE)
    for request_id in (TWO, THREE, FOUR):
        bare.link.publish(bare.binary(request_id))
    wait_until(lambda: worker.pipeline.prepared == 3)
    cancel(worker, ONE, outcome=outcome)
    backend.gate.set()
    assert {bare.read().id for _ in range(3)} == {TWO, THREE, FOUR}
    wait_until(lambda: worker.depth == 0)
    assert backend.runs == [1, 3]
    assert worker.statistics().counters == {f"skipped_{outcome}": 1, "ok": 3, UNREADABLE: 1}


def test_a_request_that_is_served_inline(gated_worker: GatedWorker, bare: Any, outcome: Outcome) -> None:
    """Its cancellation is read after the reply: the client drops that as late, and the worker is not held up."""
    worker, backend = gated_worker(**INLINE)
    bare.hold(backend, ONE)
    bare.link.publish(cancellation(bare.name, ONE, outcome=outcome))
    backend.gate.set()
    assert bare.read().id == ONE
    assert bare.ask(bare.binary(TWO)).id == TWO
    wait_until(lambda: worker.statistics().counters == {"ok": 2})


def test_a_request_that_was_replied_to(gated_worker: GatedWorker, bare: Any, cancel: Cancel, outcome: Outcome) -> None:
    """A cancellation after the reply changes nothing: sent again it gets the same reply without a run."""
    worker, backend = gated_worker()
    first = bare.ask(bare.binary(ONE))
    cancel(worker, ONE, outcome=outcome)
    again = bare.ask(bare.binary(ONE))
    assert (again.id, again.timings, again.outcome) == (ONE, first.timings, Outcome.OK)
    assert backend.runs == [1]
    wait_until(lambda: worker.statistics().counters == {"ok": 1, "duplicates": 1, UNREADABLE: 1})


def test_a_cancelled_request_that_comes_again_is_not_taken_for_one_that_runs(
    gated_worker: GatedWorker, bare: Any, cancel: Cancel
) -> None:
    """It is skipped once, and then forgotten: nothing keeps its id."""
    worker, backend = gated_worker()
    cancel(worker, ONE)
    bare.link.publish(bare.binary(ONE))
    wait_until(lambda: worker.statistics().counters.get("skipped_cancelled") == 1)
    assert bare.ask(bare.binary(ONE)).outcome is Outcome.OK
    assert backend.runs == [1]


def test_nobody_cancels_the_request_of_another_client(
    url: str, gated_worker: GatedWorker, bare: Any, cancel: Cancel, unique: Callable[[str], str]
) -> None:
    """Ids are those of the client in the topic, which the broker's access rules vouch for."""
    worker, backend = gated_worker()
    bare.hold(backend, ONE)
    bare.link.publish(bare.binary(TWO))
    wait_until(lambda: worker.pipeline.prepared == 1)
    other = make_link(url, client_id=unique("other"))
    other.open()
    other.publish(cancellation("other", ONE, TWO, THREE))
    other.close()
    cancel(worker)
    backend.gate.set()
    bare.link.publish(bare.binary(THREE))
    assert {bare.read().id for _ in range(3)} == {ONE, TWO, THREE}
    wait_until(lambda: worker.statistics().counters == {"ok": 3, UNREADABLE: 1})


def test_a_worker_that_drains_honours_cancellations(gated_worker: GatedWorker, bare: Any, outcome: Outcome) -> None:
    """What is cancelled meanwhile is not run, and the drain does not wait for it."""
    worker, backend = gated_worker(config="max_batch_size = 1")
    states: list[WorkerState] = []
    bare.link.subscribe(
        TOPICS.worker_state(worker.name),
        lambda m: states.append(WorkerState.from_json(m.payload)) if m.payload else None,
    )
    bare.hold(backend, ONE)
    for request_id in (TWO, THREE):
        bare.link.publish(bare.binary(request_id))
    wait_until(lambda: worker.pipeline.prepared == 2)
    stopper = threading.Thread(target=worker.stop)
    stopper.start()
    wait_until(lambda: any(state.status == "draining" for state in states))
    bare.link.publish(cancellation(bare.name, TWO, outcome=outcome))
    bare.link.publish(replace(cancellation(bare.name), payload=b"{"))
    wait_until(lambda: UNREADABLE in worker.statistics().counters)
    backend.gate.set()
    stopper.join(30)
    assert {bare.read().id for _ in range(2)} == {ONE, THREE}
    assert backend.runs == [1, 1]
    wait_until(lambda: states[-1].status == "stopped")
    assert states[-1].counters == {f"skipped_{outcome}": 1, "ok": 2, UNREADABLE: 1}  # what a dashboard sees


@pytest.mark.broker
@pytest.mark.parametrize("why", [None, Superseded("a newer frame took its place")])
def test_each_side_counts_a_cancelled_request_once(
    broker_url: str, serve: Serve, gated: Gated, unique: Callable[[str], str], why: Superseded | None
) -> None:
    """Over Mosquitto, with the real client: one outcome there, one skip here, no reply that would be late."""
    model, backend = gated(unique("echo"), config="max_batch_size = 1")
    worker = serve(broker_url, model, inline_s=0.0)
    outcomes: list[Outcome] = []
    request = make_request(model.card.name, {"x": np.zeros((1, 4), np.float32)}, {})
    requester = connect(broker_url, unique("client"), TOPICS, ClientOptions(window=4, silence=STEADY.silence))

    def submit() -> str:
        return requester.submit(request, 30.0, lambda result: outcomes.append(result.outcome))

    try:
        submit()
        wait_until(lambda: len(outcomes) == 1)  # from now on the client knows how many the worker takes
        backend.gate.clear()
        ids = [submit() for _ in range(3)]
        wait_until(lambda: worker.pipeline.prepared == 2)
        assert requester.cancel(ids[1], why)
        assert not requester.cancel(ids[1], why)
        requester.link.publish(Message(TOPICS.cancel(model.card.name, requester.name), b"{"))
        wait_until(lambda: UNREADABLE in worker.statistics().counters)
        assert len(outcomes) == 2
        backend.gate.set()
        wait_until(lambda: len(outcomes) == 4 and worker.depth == 0)
        expected = Outcome.SUPERSEDED if why else Outcome.CANCELLED
        assert outcomes == [Outcome.OK, expected, Outcome.OK, Outcome.OK]
        counters = requester.counters()
        assert (counters.outcomes[expected], counters.outcomes[Outcome.OK], counters.late) == (1, 3, 0)
        assert worker.statistics().counters == {f"skipped_{expected}": 1, "ok": 3, UNREADABLE: 1}
        assert backend.runs == [1, 1, 1]
    finally:
        backend.gate.set()
        requester.close()


def test_cancellations_are_bounded_and_of_each_client_its_own() -> None:
    """A flood of unknown ids drops that client's oldest ones alone; clients without number drop the oldest client."""
    cancelled = CancelledRequests()
    assert not cancelled.any
    cancelled.add("car", ["mine"], Outcome.SUPERSEDED)
    cancelled.add("flood", (f"{number}" for number in range(1 << 16)), Outcome.CANCELLED)
    assert sum(map(len, cancelled._outcomes.values())) < 1000
    assert cancelled.pop(("flood", "0")) is None
    assert cancelled.pop(("flood", f"{(1 << 16) - 1}")) is Outcome.CANCELLED
    assert cancelled.pop(("car", "mine")) is Outcome.SUPERSEDED
    assert cancelled.pop(("car", "mine")) is None
    assert cancelled.pop(None) is None
    for number in range(1 << 14):
        cancelled.add(f"client-{number}", ["a"], Outcome.CANCELLED)
    assert sum(map(len, cancelled._outcomes.values())) < 1000
    assert cancelled.pop(("client-0", "a")) is None
    last = f"client-{(1 << 14) - 1}"
    assert cancelled.pop((last, "a")) is Outcome.CANCELLED
    cancelled.add("nothing", [], Outcome.CANCELLED)
    for number in range(1 << 14):
        cancelled.pop((f"client-{number}", "a"))
    assert not cancelled.any
    assert not cancelled._outcomes


@pytest.mark.parametrize("request_id", ["x" * 65, "", "a/b", "\0"])
def test_ids_that_no_request_has(request_id: str) -> None:
    """They are not remembered: a client's 256 would take as much memory as it likes."""
    with pytest.raises(BadEnvelope):
        Cancellation.from_json(Cancellation((ONE, request_id)).to_json())
