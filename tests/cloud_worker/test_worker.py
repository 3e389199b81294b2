"""What a worker says of itself, which requests it takes, and in what order it runs them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from mqinfer import Client, Outcome
from mqinfer.broker import make_link
from mqinfer.broker.link import Link, Message, MessageHandler
from mqinfer.broker.memory import MemoryLink
from mqinfer.cloud_worker.serving.options import WorkerOptions
from mqinfer.cloud_worker.serving.worker import Worker
from mqinfer.codecs import encode_tensor
from mqinfer.models.loading import LoadedModel
from mqinfer.models.repository.config import DynamicBatching
from mqinfer.protocol.card import card_from_json
from mqinfer.protocol.envelope import encode_request
from mqinfer.protocol.states import ServedModel, WorkerState, WorkerStatus
from mqinfer.protocol.topics import Topics
from mqinfer.protocol.types import Capture, InferRequest
from tests.patience import PATIENCE_S, PATIENT, wait_until

GatedWorker = Callable[..., tuple[Worker, Any]]
Serve = Callable[..., Worker]
WriteEcho = Callable[..., Path]
Gated = Callable[..., tuple[LoadedModel, Any]]
TOPICS = Topics()
X = np.arange(4, dtype=np.float32).reshape(1, 4)


@pytest.fixture
def seen(url: str, unique: Callable[[str], str]) -> Iterator[list[tuple[str, Message]]]:
    """Everything retained below the root, as it came."""
    link = make_link(url, client_id=unique("watcher"))
    link.open()
    messages: list[tuple[str, Message]] = []
    link.subscribe("mqinfer/v1/+/+/state", lambda message: messages.append((message.topic, message)))
    link.subscribe(TOPICS.card.filter(), lambda message: messages.append((message.topic, message)))
    yield messages
    link.close()


def test_state_and_card_are_retained_in_their_order(
    url: str, unique: Callable[[str], str], seen: list[tuple[str, Message]], gated: Gated
) -> None:
    """Card and `ready` once requests can come in, then `draining`, `stopped` and the removal; one boot number."""
    model, _ = gated()
    subscriptions_at_ready: list[bool] = []
    name = unique("worker")

    def connect(client_id: str, will: Message, handler: Callable[[bool], None]) -> Link:
        assert WorkerState.from_json(will.payload).status is WorkerStatus.LOST
        assert (will.topic, will.retain) == (TOPICS.worker_state(name), True)
        link = make_link(url, client_id=client_id, will=will, on_connection=handler)
        assert isinstance(link, MemoryLink)
        publish, subscribe, unsubscribe = link.publish, link.subscribe, link.unsubscribe
        filters: set[tuple[str, str | None]] = set()

        def noted(topic_filter: str, handler: MessageHandler, *, share: str | None = None, **how: Any) -> None:
            subscribe(topic_filter, handler, share=share, **how)
            filters.add((topic_filter, share))

        def dropped(topic_filter: str, *, share: str | None = None) -> None:
            unsubscribe(topic_filter, share=share)
            filters.discard((topic_filter, share))

        def watched(message: Message, *rest: Any) -> None:
            if b'"ready"' in bytes(message.payload):
                subscriptions_at_ready.append(len(filters) == 5)
            publish(message, *rest)

        link.publish, link.subscribe, link.unsubscribe = watched, noted, dropped  # type: ignore[method-assign,assignment]
        return link

    worker = Worker(model, connect, WorkerOptions(name))
    worker.start()
    worker.stop()
    wait_until(lambda: any(not message.payload for _, message in seen))
    *payloads, removal = [message.payload for topic, message in seen if topic.endswith("/state")]
    assert removal == b""
    states = [WorkerState.from_json(payload) for payload in payloads]
    cards = [card_from_json(message.payload) for topic, message in seen if topic.endswith("/card")]
    assert [state.status for state in states] == [WorkerStatus.READY, WorkerStatus.DRAINING, WorkerStatus.STOPPED]
    assert len({state.incarnation for state in states}) == 1
    known = model.card.parameters
    assert {(state.worker, state.models, state.capacity) for state in states} == {
        (
            name,
            (ServedModel("echo", "1", precision=known.precision, backend=known.backend, device=known.device),),
            64,
        )
    }
    assert cards[0] == model.card
    assert all(subscriptions_at_ready)


def test_a_lost_worker_is_said_to_be_lost_and_comes_back(
    gated_worker: GatedWorker, seen: list[tuple[str, Message]], bare: Any
) -> None:
    """The will says `lost` with the boot number of the state before; a reconnection says `ready` again."""
    links: list[Link] = []
    gated_worker(links=links)
    (link,) = links
    assert isinstance(link, MemoryLink)
    link.drop()
    link.restore()
    assert bare.ask(bare.binary()).outcome is Outcome.OK
    wait_until(
        lambda: sum(topic.endswith("/state") for topic, _ in list(seen)) >= 3
    )  # the watcher has a thread of its own
    states = [WorkerState.from_json(message.payload) for topic, message in list(seen) if topic.endswith("/state")]
    assert [state.status for state in states][:3] == [WorkerStatus.READY, WorkerStatus.LOST, WorkerStatus.READY]
    assert len({state.incarnation for state in states}) == 1


@pytest.mark.parametrize("where", ["shared", "version", "lane"])
def test_every_channel_is_answered(gated_worker: GatedWorker, bare: Any, where: str) -> None:
    """The model's channel, its version's channel and the worker's lane lead to the same model."""
    worker, _ = gated_worker()
    topic = {
        "shared": TOPICS.infer("echo", bare.name),
        "version": TOPICS.infer("echo", bare.name, "1"),
        "lane": TOPICS.lane(worker.name, "echo", bare.name),
    }[where]
    reply = bare.ask(structs.replace(bare.binary(), topic=topic))
    assert (reply.outcome, reply.worker, reply.load.depth) == (Outcome.OK, worker.name, 1)
    np.testing.assert_array_equal(np.frombuffer(reply.outputs[0].data, np.float32), X[0])


def test_a_lane_asked_for_another_model_or_version(gated_worker: GatedWorker, bare: Any) -> None:
    """What a lane's worker does not serve is said by name."""
    worker, _ = gated_worker()
    for model, version in (("other", None), ("echo", "7")):
        message = bare.binary(model=model, model_version=version)
        reply = bare.ask(structs.replace(message, topic=TOPICS.lane(worker.name, model, bare.name)))
        assert reply.error
        assert reply.error.code == "model_not_found"


def test_a_reply_counts_no_request_that_was_replied_to(gated_worker: GatedWorker, bare: Any) -> None:
    """Of a batch each reply reports one less in depth: clients choose their worker by it."""
    worker, backend = gated_worker(
        config="[dynamic_batching]\nmax_queue_delay_microseconds = 0\npreferred_batch_size = [4]\n"
    )
    bare.hold(backend, f"{0:032x}")
    for number in range(1, 4):
        bare.link.publish(bare.binary(f"{number:032x}"))
    while worker.pipeline.prepared < 3:
        threading.Event().wait(0.001)
    backend.gate.set()
    replies = [bare.read() for _ in range(4)]
    assert backend.runs == [1, 3]
    depths = [reply.load.depth for reply in replies[1:]]
    assert depths[0] > depths[1] > depths[2], depths
    assert depths[0] in {3, 4}, "the request before them may count until its thread has gone on"


@pytest.mark.parametrize(
    "response_topic",
    [
        None,
        "mqinfer/v1/results/echo/somebody/1",
        "mqinfer/v1/results/other/BARE/1",
        "evil",
        "mqinfer/v1/results/+/BARE/1",
    ],
)
def test_nobody_can_make_a_worker_write_elsewhere(
    gated_worker: GatedWorker, bare: Any, response_topic: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """A reply topic that is missing or not the sender's own is not answered, and counted; the next request works."""
    worker, backend = gated_worker()
    topic = response_topic and response_topic.replace("BARE", bare.name)
    strange: list[Message] = []
    for topic_filter in ("mqinfer/v1/results/+/somebody/+", "evil"):
        bare.link.subscribe(topic_filter, strange.append)
    message = bare.binary()
    request = InferRequest("ab" * 16, "echo", (encode_tensor("x", X),), response_topic=topic)
    with caplog.at_level(logging.CRITICAL, "mqinfer"):
        stated = None if topic and "+" in topic else topic  # no link sends that as a property; it stands in the header
        bare.link.publish(structs.replace(message, response_topic=stated, payload=encode_request(request)))
        assert bare.ask(bare.binary("cd" * 16)).outcome is Outcome.OK
    wait_until(lambda: worker.statistics().counters == {"dropped_bad_topic": 1, "ok": 1})
    assert len(backend.runs) == 1
    assert strange == []


def test_the_headers_reply_topic_serves_a_link_without_properties(gated_worker: GatedWorker, bare: Any) -> None:
    """Over MQTT 3.1.1 everything stands in the header."""
    gated_worker()
    message = bare.binary()
    plain = Message(message.topic, message.payload)
    assert bare.ask(plain).outcome is Outcome.OK


def test_a_request_that_comes_twice_runs_once(gated_worker: GatedWorker, bare: Any) -> None:
    """While it runs the second copy is ignored; afterwards it gets the same reply from memory."""
    worker, backend = gated_worker()
    backend.gate.clear()
    message = bare.binary()
    bare.link.publish(message)
    assert backend.entered.acquire(timeout=PATIENCE_S)
    bare.link.publish(message)
    bare.link.publish(bare.binary("cd" * 16))
    wait_until(lambda: worker.statistics().counters.get("duplicates") == 1)
    backend.gate.set()
    first = bare.next()
    assert bare.read().id == "cd" * 16
    bare.link.publish(message)
    assert bytes(bare.next().payload) == bytes(first.payload)
    assert backend.runs == [1, 1]
    wait_until(lambda: worker.statistics().counters == {"ok": 2, "duplicates": 2})


def test_ids_of_different_clients_are_different(
    url: str, gated_worker: GatedWorker, bare: Any, unique: Callable[[str], str]
) -> None:
    """The same id from another client is another request."""
    _, backend = gated_worker()
    assert bare.ask(bare.binary()).outcome is Outcome.OK
    other = make_link(url, client_id=unique("other"))
    other.open()
    other.publish(structs.replace(bare.binary(), topic=TOPICS.infer("echo", "other")))  # foreign: not answered
    other.close()
    assert bare.ask(bare.binary("cd" * 16)).outcome is Outcome.OK
    assert backend.runs == [1, 1]


def test_a_busy_worker_refuses_at_once_and_the_client_tries_again(
    url: str, gated_worker: GatedWorker, bare: Any, unique: Callable[[str], str]
) -> None:
    """Above its capacity a worker answers `rejected` without a run; a client's request comes again and is served."""
    worker, backend = gated_worker(capacity=1)
    backend.gate.clear()
    with Client(url, name=unique("client")) as client:
        running = client.submit("echo", {"x": X})
        assert backend.entered.acquire(timeout=PATIENCE_S)
        reply = bare.ask(bare.binary())
        assert reply.outcome is Outcome.REJECTED
        assert reply.id == "ab" * 16
        assert reply.error
        assert "capacity of 1 requests" in reply.error.message
        retried = client.submit("echo", {"x": X}, timeout=30)
        while worker.statistics().counters.get("rejected", 0) < 3:
            bare.link.publish(bare.binary())
            bare.next()
        backend.gate.set()
        assert running.result(PATIENCE_S).outcome is retried.result(30).outcome is Outcome.OK
        assert bare.ask(bare.binary()).outcome is Outcome.OK


def test_expired_requests_are_not_run(gated_worker: GatedWorker, bare: Any) -> None:
    """A request whose time is over is answered before it is decoded."""
    _, backend = gated_worker()
    broken = structs.replace(encode_tensor("x", X, "lz4"), data=b"broken")
    reply = bare.ask(bare.binary(timeout_us=0, inputs=(broken,)))
    assert reply.outcome is Outcome.EXPIRED
    assert bare.ask(bare.binary("cd" * 16, timeout_us=600_000_000)).outcome is Outcome.OK
    assert backend.runs == [1]


def test_requests_that_expire_in_the_queue_are_not_run(gated_worker: GatedWorker, bare: Any) -> None:
    """The deadline is looked at again when the batch is about to run."""
    now = [0.0]
    worker, backend = gated_worker(clock=lambda: now[0])
    bare.hold(backend)
    bare.link.publish(bare.binary("cd" * 16, timeout_us=1_000_000))
    wait_until(lambda: worker.pipeline.prepared == 1)
    now[0] = 2.0
    backend.gate.set()
    outcomes = {reply.id: reply for reply in (bare.read(), bare.read())}
    assert outcomes["ab" * 16].outcome is Outcome.OK
    late = outcomes["cd" * 16]
    assert late.outcome is Outcome.EXPIRED
    assert late.error
    assert "in the queue" in late.error.message
    assert backend.runs == [1]


def test_waiting_requests_share_a_run(gated_worker: GatedWorker, bare: Any) -> None:
    """What comes while one batch runs is the next batch, and each request gets its own rows."""
    worker, backend = gated_worker(config="[dynamic_batching]\nmax_queue_delay_microseconds = 0")
    bare.hold(backend)
    ids = [f"{number:032x}" for number in range(1, 6)]
    for number, request_id in enumerate(ids):
        mine = encode_tensor("x", np.full((1, 4), number, np.float32))
        bare.link.publish(bare.binary(request_id, inputs=(mine,)))
    wait_until(lambda: worker.pipeline.prepared == 5)
    backend.gate.set()
    replies = {reply.id: reply for reply in (bare.read() for _ in range(6))}
    for number, request_id in enumerate(ids):
        assert np.frombuffer(replies[request_id].outputs[0].data, np.float32)[0] == number
    assert backend.runs == [1, 5]


def test_a_delay_gathers_a_batch(url: str, serve: Serve, gated: Gated, bare: Any) -> None:
    """With `max_queue_delay` requests wait for others until the batch is full."""
    model, backend = gated(config="max_batch_size = 2")
    slow = replace(model.config, dynamic_batching=DynamicBatching(max_queue_delay_microseconds=20_000_000))
    serve(url, replace(model, config=slow))
    bare.link.publish(bare.binary())
    bare.link.publish(bare.binary("cd" * 16))
    assert {bare.read().outcome for _ in range(2)} == {Outcome.OK}
    assert backend.runs == [2]


def test_a_flood_leaves_room_for_another_client(
    url: str, gated_worker: GatedWorker, bare: Any, unique: Callable[[str], str]
) -> None:
    """When the worker is full, a client that has less than its share is taken in, and the flood's last is refused."""
    worker, backend = gated_worker(config="max_batch_size = 1", capacity=6)
    backend.gate.clear()
    flood = [f"{number:032x}" for number in range(6)]
    for request_id in flood:
        bare.link.publish(bare.binary(request_id))
    assert backend.entered.acquire(timeout=PATIENCE_S)
    wait_until(lambda: worker.pipeline.prepared == 5)  # what a thread is at work on is nobody's to take out
    with Client(url, name=unique("client"), options=PATIENT) as client:
        mine = client.submit("echo", {"x": X}, timeout=30)
        refused = bare.read()
        assert (refused.outcome, refused.id) == (Outcome.REJECTED, flood[-1])
        backend.gate.set()
        assert mine.result(30).outcome is Outcome.OK
        assert client.counters().retries == 0
    assert [bare.read().id for _ in range(5)] == flood[:5]


@pytest.mark.parametrize(
    ("levels", "order"), [("priority_levels = 3\ndefault_priority_level = 2", [3, 1, 2]), ("", [1, 2, 3])]
)
def test_priorities_as_configured(gated_worker: GatedWorker, bare: Any, levels: str, order: list[int]) -> None:
    """With levels, 1 goes first and 0 is the default level; without them `priority` changes nothing."""
    worker, backend = gated_worker(config=f"max_batch_size = 1\n[dynamic_batching]\n{levels}")
    bare.hold(backend)
    for number, priority in ((1, 0), (2, 3), (3, 1)):
        bare.link.publish(bare.binary(f"{number:032x}", priority=priority))
    wait_until(lambda: worker.pipeline.prepared == 3)
    backend.gate.set()
    assert [int(bare.read().id, 16) for _ in range(4)][1:] == order


def test_a_queue_is_as_long_as_configured(gated_worker: GatedWorker, bare: Any) -> None:
    """Beside the one that runs `max_queue_size` wait; one more is refused."""
    policy = "default_queue_policy = { max_queue_size = 2 }"
    worker, backend = gated_worker(config=f"max_batch_size = 1\n[dynamic_batching]\n{policy}")
    bare.hold(backend)
    for number in range(2):
        bare.link.publish(bare.binary(f"{number:032x}"))
    wait_until(lambda: worker.pipeline.prepared == 2)
    reply = bare.ask(bare.binary("cd" * 16))
    assert (reply.outcome, reply.id) == (Outcome.REJECTED, "cd" * 16)
    assert reply.error
    assert "2 requests are queued" in reply.error.message
    backend.gate.set()
    assert {bare.read().outcome for _ in range(3)} == {Outcome.OK}


def test_a_queue_gives_a_deadline(gated_worker: GatedWorker, bare: Any) -> None:
    """`default_timeout_microseconds` holds for requests without a deadline, and for those that would wait longer."""
    policy = "default_queue_policy = { default_timeout_microseconds = 1 }"
    _, backend = gated_worker(config=f"[dynamic_batching]\n{policy}")
    assert bare.ask(bare.binary()).outcome is Outcome.EXPIRED
    assert bare.ask(bare.binary("cd" * 16, timeout_us=10_000_000)).outcome is Outcome.EXPIRED
    assert backend.runs == []


def test_replies_of_a_stream_keep_its_order(gated_worker: GatedWorker, bare: Any) -> None:
    """With `preserve_ordering` and frames of one source, replies come as the frames were sent, whatever is quicker."""
    gated_worker(config="max_batch_size = 2\n[dynamic_batching]\npreserve_ordering = true", threads=4)
    ids = [f"{number:032x}" for number in range(40)]
    for number, request_id in enumerate(ids):
        capture = Capture(source="camera", sequence=number)
        tensor = encode_tensor("x", X, "raw" if number % 3 else "lz4")
        bare.link.publish(bare.binary(request_id, inputs=(tensor,), capture=capture))
    assert [bare.read().id for _ in ids] == ids


@pytest.mark.broker
def test_four_workers_share_the_work_over_mosquitto(
    broker_url: str, serve: Serve, write_echo: WriteEcho, unique: Callable[[str], str]
) -> None:
    """Competing workers take turns, and each request is answered once."""
    model = unique("echo")
    repository = write_echo(model, delay_ms=100)  # beside which a busy machine's delays are small: no worker looks slow
    workers = [serve(broker_url, repository, model) for _ in range(4)]
    with Client(broker_url, name=unique("client"), options=PATIENT) as client:
        results = [f.result(60) for f in [client.submit(model, {"x": X}, timeout=60) for _ in range(200)]]
        counts = {worker.name: sum(result.worker == worker.name for result in results) for worker in workers}
        assert min(counts.values()) >= 30, counts
        assert client.counters().outcomes[Outcome.OK] == client.counters().submitted == 200
        assert client.counters().late == 0


def test_the_state_follows_the_work(gated_worker: GatedWorker, bare: Any, seen: list[tuple[str, Message]]) -> None:
    """Depth and counters are published while they change, at most every two seconds, and not while nothing happens."""
    worker, backend = gated_worker()
    now = 100.0
    worker._announcer._clock = lambda: now

    def figures() -> list[tuple[int, int]]:
        payloads = [message.payload for topic, message in seen if topic == TOPICS.worker_state(worker.name)]
        states = [WorkerState.from_json(payload) for payload in payloads]
        return [(state.depth, state.counters.get("ok", 0)) for state in states]

    worker.refresh()
    wait_until(lambda: figures() == [(0, 0)])  # as it started
    bare.hold(backend, "1" * 32)
    worker.refresh()
    wait_until(lambda: figures() == [(0, 0), (1, 0)])
    backend.gate.set()
    assert bare.read().outcome is Outcome.OK
    wait_until(lambda: worker.depth == 0)
    now += 1.9
    worker.refresh()  # too early
    now += 0.2
    worker.refresh()
    wait_until(lambda: len(figures()) > 2)
    assert figures()[2:] == [(0, 1)]
    now += 100
    worker.refresh()  # nothing has changed
    assert bare.ask(bare.binary("2" * 32)).outcome is Outcome.OK
    assert len(figures()) == 3
