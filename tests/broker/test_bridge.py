"""A bridge: clients at one broker, workers at another."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.faults.traffic import EchoTraffic
from benchmarks.faults.workers import Workers
from mqinfer.broker.address import BrokerAddress
from mqinfer.broker.bridge import Bridge
from mqinfer.broker.bridge.far_workers import FarWorkers
from mqinfer.broker.bridge.lost_models import LostModels
from mqinfer.broker.bridge.own_states import OwnStates
from mqinfer.broker.connect import make_link
from mqinfer.broker.link import Ack, ConnectionHandler, Link, Message, ReasonCode, Withdraw
from mqinfer.broker.mosquitto.configuration import render
from mqinfer.broker.mosquitto.server import MosquittoServer
from mqinfer.broker.presence import make_client_id
from mqinfer.cli.broker import add_bridge
from mqinfer.cli.exit_codes import ExitCode
from mqinfer.client import Client
from mqinfer.cloud_worker.serving.worker import Worker
from mqinfer.metrics.samples import Samples
from mqinfer.protocol.card import MAX_CARD_BYTES, ModelCard, card_to_json
from mqinfer.protocol.errors import BrokerUnreachable, LimitExceeded, MessageTooLarge, NotConnected
from mqinfer.protocol.states import (
    ClientState,
    ProcessStatus,
    ServedModel,
    ServerState,
    WorkerState,
    WorkerStatus,
)
from mqinfer.protocol.topics import Topics
from tests.broker.heard import Heard, Inbox
from tests.commands import command, mqinfer
from tests.patience import LONG_SILENCE, PATIENCE_S, PATIENT, wait_until
from tests.ports import free_port

Unique = Callable[[str], str]
X = np.ones((1, 4), np.float32)


def side(url: str | BrokerAddress, will: Message | None, on_connection: ConnectionHandler) -> Link:
    """Make a link of a bridge to one of its brokers."""
    return make_link(url, client_id=make_client_id("bridge"), will=will, on_connection=on_connection)


def make_bridge(near: str, far: str, topics: Topics, site: str = "site") -> Bridge:
    """Make a bridge between two brokers without logins."""
    return Bridge(partial(side, near), partial(side, far), site, topics)


@contextmanager
def opened(url: str | BrokerAddress) -> Iterator[Link]:
    """Open a link for the length of a block."""
    link = make_link(url, client_id=make_client_id("test"))
    link.open()
    try:
        yield link
    finally:
        link.close()


@pytest.fixture
def brokers(unique: Unique) -> tuple[str, str]:
    """Two brokers in memory: the site's and the far one."""
    return f"memory://{unique('near')}", f"memory://{unique('far')}"


def hear(link: Link, topic_filter: str) -> Inbox:
    """Subscribe, and keep what comes."""
    inbox = Inbox()
    link.subscribe(topic_filter, inbox)
    return inbox


def state(worker: str, status: WorkerStatus = WorkerStatus.READY, incarnation: int = 1) -> bytes:
    """Return a worker's state."""
    return WorkerState(worker, status, incarnation).to_json()


def keep(link: Link, topic: str, payload: bytes) -> None:
    """Have a broker keep a message."""
    link.publish(Message(topic, payload, retain=True))


@pytest.fixture
def sides(brokers: tuple[str, str]) -> Iterator[tuple[Link, Link]]:
    """A link to each broker."""
    with opened(brokers[0]) as near, opened(brokers[1]) as far:
        yield near, far


def test_requests_and_what_is_kept(
    brokers: tuple[str, str], sides: tuple[Link, Link], serve: Callable[..., Worker], write_echo: Callable[..., Path]
) -> None:
    """A client at the site asks a far worker over its lane; card and states are known on both sides, for 60 s."""
    topics, (near, far) = Topics(), sides
    serve(brokers[1], write_echo("echo"), name="gpu-0")
    cards, states, far_clients = (
        hear(near, topics.card("echo")),
        hear(near, topics.worker_state("gpu-0")),
        hear(far, topics.client_state("car-1")),
    )
    with make_bridge(*brokers, topics) as bridge, Client(brokers[0], name="car-1", options=PATIENT) as client:
        assert client.infer("echo", {"x": X}).outputs["x"].tolist() == X.tolist()
        assert cards.wait_for(1)[0].expiry_s in range(55, 61)
        assert states.wait_for(1)[0].expiry_s is None  # its end is told by a will
        keep(near, topics.client_state("car-1"), ClientState("car-1", ProcessStatus.READY, 1).to_json())
        assert far_clients.wait_for(1)[0].user_properties == (("bridge", "site"),)
        wait_until(lambda: bridge.workers == 1)
        wait_until(lambda: bridge.counters()["to_far"]["carried"] >= 2)
    assert b'"lost"' in bytes(states.wait_until(lambda got: len(got) > 1)[-1].payload)


def test_a_worker_that_is_lost(brokers: tuple[str, str], sides: tuple[Link, Link]) -> None:
    """Two bridges state it once each, as far as its broker does, and do not answer each other."""
    topics, (near, far) = Topics(), sides
    topic = topics.worker_state("gpu-0")
    keep(far, topic, state("gpu-0"))
    states = hear(near, topic)
    with make_bridge(*brokers, topics) as one, make_bridge(*brokers, topics) as other:
        wait_until(lambda: one.workers == other.workers == 1)
        keep(far, topic, state("gpu-0", WorkerStatus.LOST))
        wait_until(lambda: one.workers == other.workers == 0)
        states.wait_until(lambda got: any(b'"lost"' in bytes(each.payload) for each in got))
        keep(far, topics.worker_state("gpu-1"), state("gpu-1"))
        wait_until(lambda: one.workers == other.workers == 1)
        keep(far, topic, state("gpu-0", incarnation=0))  # started again, on a machine whose clock was set back
        wait_until(lambda: one.workers == other.workers == 2)
        assert 1 <= sum(b'"lost"' in bytes(each.payload) for each in states.items) <= 4


def test_models_of_workers_that_are_lost(
    brokers: tuple[str, str], sides: tuple[Link, Link], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their channels are taken for a while, for a worker that serves and can't be stated yet; then no longer."""
    topics, (near, far) = Topics(), sides
    taken = hear(far, topics.channel.filter(model="m"))
    serving = WorkerState("gpu-0", WorkerStatus.READY, 1, (ServedModel("m"),))
    with make_bridge(*brokers, topics) as bridge:

        def lose() -> None:
            keep(far, topics.worker_state("gpu-0"), serving.to_json())
            wait_until(lambda: bridge.workers == 1)
            keep(far, topics.worker_state("gpu-0"), state("gpu-0", WorkerStatus.LOST))
            wait_until(lambda: bridge.workers == 0)

        lose()
        assert ask_model(near, topics) == ReasonCode.SUCCESS
        taken.wait_for(1)
        monkeypatch.setattr("mqinfer.broker.bridge.lost_models.RETURN_S", 0.1)
        lose()
        wait_until(lambda: ask_model(near, topics) == ReasonCode.NO_MATCHING_SUBSCRIBERS)


def test_a_connection_that_is_lost_before_it_answers(
    brokers: tuple[str, str], sides: tuple[Link, Link], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one serves at once: nothing waits for the answer of one that is gone."""
    topics, far = Topics(), sides[1]
    monkeypatch.setattr("mqinfer.broker.bridge.bridge._ANSWER_S", 2 * PATIENCE_S)
    with make_bridge(*brokers, topics) as bridge:
        link: Any = bridge._far
        asked, publish = threading.Event(), link.publish

        def publish_unanswered(message: Message, _: Ack) -> Withdraw:
            asked.set()
            withdraw: Withdraw = publish(message)
            return withdraw

        with monkeypatch.context() as patch:
            patch.setattr(link, "publish", publish_unanswered)
            link.drop()
            link.restore()
            assert asked.wait(PATIENCE_S)
        link.drop()
        link.restore()
        keep(far, topics.worker_state("gpu-0"), state("gpu-0"))
        wait_until(lambda: bridge.workers == 1)


def test_requests_over_a_channel_when_the_far_broker_is_lost(
    brokers: tuple[str, str], sides: tuple[Link, Link]
) -> None:
    """Those without a reply are turned away, so that their clients ask again; those that were answered are not."""
    topics, (near, far) = Topics(), sides
    serving = WorkerState("gpu-0", WorkerStatus.READY, 1, (ServedModel("m"),))
    keep(far, topics.worker_state("gpu-0"), serving.to_json())
    requests, replies = hear(far, topics.channel.filter(model="m")), hear(near, topics.result.filter())
    with make_bridge(*brokers, topics) as bridge:
        wait_until(lambda: ask_model(near, topics) == ReasonCode.SUCCESS)
        for number in ("1", "2"):
            where = topics.result("m", "car-1", number)
            further = (("name", "x" * 1000),) * 50
            near.publish(Message(topics.infer("m", "car-1"), b"{", response_topic=where, user_properties=further))
        requests.wait_until(lambda got: any((each.response_topic or "").endswith("/2") for each in got))
        assert not any(each.user_properties for each in bridge._unanswered.values())  # of 1,000 nothing large is kept
        far.publish(Message(topics.result("m", "car-1", "1"), b"answer"))
        replies.wait_for(1)
        link: Any = bridge._far
        link.drop()
        replies.wait_for(2)
        link.restore()
        wait_until(lambda: bridge.workers == 1)
    assert [(each.topic[-1], b'"rejected"' in bytes(each.payload)) for each in replies.items] == [
        ("1", False),
        ("2", True),
    ]


def ask_model(link: Link, topics: Topics) -> int:
    """Ask a model something, and return the broker's reason code."""
    codes = Heard[int]()
    link.publish(Message(topics.infer("m", "car-1"), b"x"), codes)
    return codes.wait_for(1)[0]


def test_how_long_models_are_taken_for_lost() -> None:
    """Each for 15 s from its last loss, and 1000 at most."""
    now = 100.0
    lost = LostModels(lambda: now)
    assert (lost.names(), lost.ends_at) == (set(), math.inf)
    lost.add(["a", "b"])
    now += 10
    lost.add(["b"])
    assert (lost.names(), lost.ends_at) == ({"a", "b"}, 115.0)
    now += 5
    assert (lost.names(), lost.ends_at) == ({"b"}, 125.0)
    lost.add(f"m-{number}" for number in range(2000))
    assert len(lost.names()) == 1000
    now += 15
    assert lost.names() == set()


def test_metrics(brokers: tuple[str, str]) -> None:
    """Prometheus reads its workers and messages under the names in the documents."""
    samples, text = Samples(), (Path(__file__).parents[2] / "docs/reference/metrics.md").read_text(encoding="utf-8")
    with make_bridge(*brokers, Topics()) as bridge:
        bridge.to_far.drop(Message("x", b""), MessageTooLarge("x"))
        add_bridge(bridge, samples)
    found = {
        each.name: [(sample.name, sample.labels, sample.value) for sample in each.samples]
        for each in samples.families()
    }
    labels = {"direction": "to_far", "outcome": "dropped_message_too_large"}
    assert found["mqinfer_bridge_messages"] == [("mqinfer_bridge_messages_total", labels, 1)]
    assert found["mqinfer_bridge_workers"] == [("mqinfer_bridge_workers", {}, 0)]
    assert all(f"`{sample}`" in text for family in found.values() for sample, *_ in family)


def test_each_side_keeps_its_own_names(brokers: tuple[str, str], sides: tuple[Link, Link]) -> None:
    """A worker or a server of the site is not replaced by a far one of that name; once it is gone that one comes."""
    topics, (near, far) = Topics(), sides
    topic = topics.worker_state("gpu-0")
    for link, incarnation in ((near, 1), (far, 2)):
        keep(link, topic, state("gpu-0", incarnation=incarnation))
        keep(link, topics.control_state("gpu"), ServerState("gpu", ProcessStatus.READY, incarnation).to_json())
        keep(link, topics.client_state("car-1"), ClientState("car-1", ProcessStatus.READY, incarnation).to_json())
    keep(far, topics.worker_state("gpu-1"), state("gpu-1"))
    workers, servers = hear(near, topics.worker_state.filter()), hear(near, topics.control_state("gpu"))
    clients = hear(far, topics.client_state("car-1"))
    with make_bridge(*brokers, topics):
        workers.wait_until(lambda got: any(each.topic.endswith("gpu-1/state") for each in got))
        keep(near, topic, b"")
        workers.wait_until(lambda got: b'"boot":2' in bytes(got[-1].payload))
        assert [b'"boot":1' in bytes(each.payload) for each in (*servers.items, *clients.items)] == [True, False]


def test_hostile_cards_and_states(brokers: tuple[str, str], sides: tuple[Link, Link]) -> None:
    """What is no card or state, too large, of another name or of one that is none is counted and goes nowhere."""
    topics, (near, far) = Topics(), sides
    root = topics.root
    control = WorkerState("gpu-0", WorkerStatus.READY, 1, (ServedModel("control"),))
    grows = b'{"worker":"gpu-0","status":"ready","boot":1,"models":[' + b'{"name":"m"},' * 4000 + b'{"name":"m"}]}'
    evil = [
        (topics.card("m"), b"{"),
        (topics.card("m"), b" " * (MAX_CARD_BYTES + 1)),
        (topics.card("m"), b'{"name": "other"}'),
        (f"{root}/models/{'x' * 300}/card", b"{}"),
        (topics.control_state("gpu"), b"[" * 10_000),
        (topics.control_state("gpu"), ServerState("other", ProcessStatus.READY, 1).to_json()),
        (topics.worker_state("gpu-0"), state("gpu-1")),
        (topics.worker_state("gpu-0"), control.to_json()),
        (topics.worker_state("gpu-0"), b"x" * 70_000),
        (topics.worker_state("gpu-0"), grows),
        (f"{root}/workers/é/state", state("gpu-0")),
    ]
    inbox = hear(near, f"{root}/#")
    with make_bridge(*brokers, topics) as bridge:
        for topic, payload in evil:
            keep(far, topic, payload)
        keep(far, topics.worker_state("gpu-2"), state("gpu-2"))
        inbox.wait_until(lambda got: any(each.topic == topics.worker_state("gpu-2") for each in got))
        counters = bridge.counters()["to_near"]
    assert sum(n for what, n in counters.items() if what.startswith("dropped")) == len(evil)
    assert {each.topic for each in inbox.items} == {topics.worker_state("gpu-2"), topics.worker_state("site")}


def test_a_server_that_is_called_all(brokers: tuple[str, str], sides: tuple[Link, Link]) -> None:
    """It does not take the orders to all servers with it when it goes."""
    topics, (near, far) = Topics(), sides
    states = hear(near, topics.control_state("all"))
    with make_bridge(*brokers, topics):
        keep(far, topics.control_state("all"), ServerState("all", ProcessStatus.READY, 1).to_json())
        states.wait_for(1)
        keep(far, topics.control_state("all"), b"")
        states.wait_for(2)
        orders = hear(far, topics.control.filter(server="all", path="+/#"))
        wait_until(lambda: ask_all(near, topics) == ReasonCode.SUCCESS)
        orders.wait_for(1)


def ask_all(link: Link, topics: Topics) -> int:
    """Ask every server something, and return the broker's reason code."""
    codes = Heard[int]()
    link.publish(Message(topics.control("all", "op", "repository/index"), b""), codes)
    return codes.wait_for(1)[0]


def test_hostile_requests(brokers: tuple[str, str], sides: tuple[Link, Link]) -> None:
    """Names that are none reach no far worker, and no reply goes where the sender may not have one."""
    topics, (near, far) = Topics(), sides
    lane = topics.lane.filter(worker="gpu-0")
    keep(far, topics.worker_state("gpu-0"), state("gpu-0"))
    inbox, requests = hear(near, topics.worker_state("gpu-0")), hear(far, lane)
    with make_bridge(*brokers, topics) as bridge:
        inbox.wait_for(1)
        replies = hear(near, f"{topics.root}/results/#")
        for client in ("é", "x" * 300, "..", ""):
            near.publish(Message(f"{topics.root}/workers/gpu-0/infer/m/{client}", b"x", response_topic="a"))
        far.unsubscribe(lane)
        for where in ("elsewhere", topics.result("m", "car-2", "1"), topics.result("m", "car-1", "1")):
            near.publish(Message(topics.lane("gpu-0", "m", "car-1"), b" {", response_topic=where))
        (reply,) = replies.wait_for(1)
        assert reply.topic == topics.result("m", "car-1", "1")
        assert b'"rejected"' in bytes(reply.payload)
        wait_until(lambda: bridge.counters()["to_far"] == {"dropped_bad_topic": 4, "dropped_rejected": 3})
    assert not requests.items


def test_nothing_goes_round(brokers: tuple[str, str], sides: tuple[Link, Link]) -> None:
    """Two bridges that make a circle carry each message once, and name no worker of a side on that side again."""
    topics, (near, far) = Topics(), sides
    preview, topic = topics.preview("car-1", "front"), topics.worker_state("gpu-0")
    inboxes = [hear(link, f"{topics.root}/#") for link in sides]
    with make_bridge(*brokers, topics) as one, make_bridge(brokers[1], brokers[0], topics, "back") as back:
        near.publish(Message(preview, b"x"))
        keep(far, topic, state("gpu-0"))
        inboxes[0].wait_until(lambda got: any(each.topic == topic for each in got))
        wait_until(lambda: back.counters()["to_far"]["dropped_rejected"] == 1)
        wait_until(lambda: [each.topic for inbox in inboxes for each in inbox.items].count(preview) == 2)
        wait_until(lambda: one.workers == 1)
        assert back.workers == 0


def test_a_model_on_both_sides(
    brokers: tuple[str, str], serve: Callable[..., Worker], write_echo: Callable[..., Path]
) -> None:
    """In a circle of two bridges a request over the shared channel is answered, or refused at once and asked again."""
    topics, repository = Topics(), write_echo("echo")
    for url, name in zip(brokers, ("here", "there"), strict=True):
        serve(url, repository, name=name)
    options = replace(PATIENT, lanes=False)
    with make_bridge(*brokers, topics) as one, make_bridge(brokers[1], brokers[0], topics, "back") as back:
        wait_until(lambda: one.workers == back.workers == 1)
        with Client(brokers[0], options=options) as client:
            for _ in range(20):
                assert client.infer("echo", {"x": X}, timeout=30).outputs["x"].tolist() == X.tolist()


def test_more_than_it_carries(
    monkeypatch: pytest.MonkeyPatch, brokers: tuple[str, str], sides: tuple[Link, Link]
) -> None:
    """States beyond the most, here 20, and workers beyond 8 are counted and left out; the others are carried."""
    monkeypatch.setattr("mqinfer.broker.bridge.own_states._MOST", 20)
    monkeypatch.setattr("mqinfer.broker.bridge.far_workers._MOST_WORKERS", 8)
    topics, (near, far) = Topics(), sides
    inbox, clients = hear(near, topics.worker_state.filter()), hear(far, topics.client_state.filter())
    with make_bridge(*brokers, topics) as bridge:
        for number in range(21):
            keep(near, topics.client_state(f"c-{number}"), ClientState(f"c-{number}", ProcessStatus.READY, 1).to_json())
        wait_until(lambda: bridge.counters()["to_far"]["dropped_limit_exceeded"] == 1)
        for number in range(9):
            keep(far, topics.worker_state(f"w-{number}"), state(f"w-{number}"))
        wait_until(lambda: bridge.workers == 8)
        wait_until(lambda: bridge.counters()["to_near"]["dropped_limit_exceeded"] == 1)
        for each, most in ((inbox, 8), (clients, 20)):
            each.wait_until(lambda got: len({each.topic for each in got}) > most)  # noqa: B023 - it ends here
    for each, most in ((inbox, 8), (clients, 20)):
        assert len({each.topic for each in each.items}) == most + 1  # and the question at the start


def test_most_far_workers() -> None:
    """Of 257 the last is refused; one that is known may change."""
    workers = FarWorkers(Topics(), "site", lambda *_: pytest.fail("none is carried here"), lambda _: None, bool)
    for number in (*range(256), 7):
        workers.learn(f"w-{number}", WorkerState(f"w-{number}", WorkerStatus.READY, 1))
    with pytest.raises(LimitExceeded, match="256 workers at most"):
        workers.learn("w-256", WorkerState("w-256", WorkerStatus.READY, 1))


def test_a_worker_that_the_site_has_no_room_for(brokers: tuple[str, str], sides: tuple[Link, Link]) -> None:
    """Its connection fails again and again; cards come, and that others are lost is stated, all the same."""
    topics, (near, far) = Topics(), sides
    states, cards = hear(near, topics.worker_state.filter()), hear(near, topics.card.filter())
    refused = Heard[str]()

    def connect(will: Message | None, on_connection: ConnectionHandler) -> Link:
        link = side(brokers[0], will, on_connection)
        if will is not None and b'"gpu-0"' not in bytes(will.payload):

            def refuse(_: float) -> None:
                refused(bytes(will.payload).decode())
                raise BrokerUnreachable("the broker takes no more connections")

            link.open = refuse  # type: ignore[method-assign, assignment]
        return link

    with Bridge(connect, partial(side, brokers[1]), "site", topics) as bridge:
        keep(far, topics.worker_state("gpu-0"), state("gpu-0"))
        wait_until(lambda: bridge.workers == 1)
        for number in range(1, 9):
            keep(far, topics.worker_state(f"gpu-{number}"), state(f"gpu-{number}"))
        refused.wait_for(8)
        keep(far, topics.card("m"), card_to_json(ModelCard(name="m", platform="")))
        cards.wait_for(1)
        keep(far, topics.worker_state("gpu-0"), state("gpu-0", WorkerStatus.LOST))
        wait_until(lambda: bridge.workers == 0)
        states.wait_until(lambda got: any(b'"lost"' in bytes(each.payload) for each in got))


def test_a_state_that_changes_where_all_are_new() -> None:
    """It takes the place of the one before, also where there is no room for one more."""
    states = OwnStates()
    for number in (*range(2000), 7):
        states.note(Message(f"s/{number}", b"%d" % number), is_there=True, travels=True)
    assert "s/7" in states
    assert len(states.take()) == 2000
    with pytest.raises(LimitExceeded):
        states.note(Message("s/2000", b"x"), is_there=True, travels=True)


def test_more_clients_than_it_follows(brokers: tuple[str, str], sides: tuple[Link, Link]) -> None:
    """Of 1,001 clients the one that asked first is forgotten, and known again when it asks again."""
    topics, (near, far) = Topics(), sides
    keep(far, topics.worker_state("gpu-0"), state("gpu-0"))
    ready, results = hear(near, topics.worker_state("gpu-0")), hear(near, topics.result.filter())

    def answer(request: Message) -> None:
        far.publish(Message(request.response_topic or "", b"{}"))

    far.subscribe(topics.lane.filter(worker="gpu-0"), answer)
    with make_bridge(*brokers, topics):
        ready.wait_for(1)
        for number in (*range(1001), 0):
            where = topics.result("m", f"c-{number}", "1")
            near.publish(Message(topics.lane("gpu-0", "m", f"c-{number}"), b"x", response_topic=where))
            results.wait_until(lambda got, where=where: got[-1:] and got[-1].topic == where)  # type: ignore[misc]
    assert len(results.items) == 1002


@pytest.mark.broker
def test_a_lost_worker_and_a_cut(tmp_path: Path, unique: Unique) -> None:
    """All requests are answered, those too that were in flight when a worker was killed or the bridge was cut."""
    topics = Topics(unique("bridge"))
    with (
        MosquittoServer() as near,
        MosquittoServer() as far,
        Workers(tmp_path, far.url, (5, 5), topics) as workers,
        make_bridge(near.url, far.url, topics) as bridge,
        EchoTraffic(near.url, topics, silence=LONG_SILENCE) as client,
    ):
        client.burst(100)
        client.served()
        client.burst(100)
        workers.kill(0)
        client.served()
        bridge._far.cut()  # type: ignore[attr-defined]
        client.burst(100)
        client.served()
        wait_until(lambda: bridge.counters()["to_far"]["carried"] >= 300)


def small(largest: int) -> Callable[[int], str]:
    """Return a configuration of a Mosquitto that takes no larger packet."""
    return lambda port: render(port).replace("max_packet_size 67108864", f"max_packet_size {largest}")


@pytest.mark.broker
@pytest.mark.parametrize("where", ["site", "far"])
def test_too_large_for_the_other_side(
    unique: Unique, serve: Callable[..., Worker], write_echo: Callable[..., Path], where: str
) -> None:
    """A request that the far broker does not take fails by name, and so does a reply that the site's does not."""
    topics = Topics(unique("bridge"))
    sizes = [small(100_000) if each == where else None for each in ("site", "far")]
    with MosquittoServer(configuration=sizes[0]) as near, MosquittoServer(configuration=sizes[1]) as far:
        assert "max_packet_size 100000" in "".join(each(1) for each in sizes if each)
        model = write_echo("echo", ("x", "FP32", [-1, -1]))
        serve(far.url, model, name="gpu-0", topics=topics)
        with (
            make_bridge(near.url, far.url, topics),
            Client(near.url, root=topics.root, options=PATIENT) as client,
        ):
            assert client.infer("echo", {"x": X}).outputs["x"].tolist() == X.tolist()
            with pytest.raises(MessageTooLarge):
                client.infer(
                    "echo", {"x": np.zeros((8, 20_000), np.float32)}, encoding="lz4" if where == "site" else "raw"
                )


@pytest.mark.broker
def test_a_far_broker_that_is_silent(unique: Unique) -> None:
    """A bridge holds 4096 messages for it, counts the others by reason, and carries on once it answers again."""
    topics = Topics(unique("bridge"))
    with (
        MosquittoServer() as near,
        MosquittoServer() as far,
        make_bridge(near.url, far.url, topics) as bridge,
        opened(near.url) as client,
        opened(far.url) as watcher,
    ):
        inbox = hear(watcher, topics.previews.filter())
        os.kill(far.pid, signal.SIGSTOP)
        try:
            for number in range(5000):
                client.publish(Message(topics.preview("car-1", "front"), b"%d" % number))
            wait_until(lambda: sum(bridge.counters()["to_far"].values()) >= 5000 - 4096)
        finally:
            os.kill(far.pid, signal.SIGCONT)
        inbox.wait_for(1)
        assert set(bridge.counters()["to_far"]) <= {"carried", "dropped_rejected", "dropped_not_connected"}

        def passes() -> bool:  # of the three that were connected to it each notices at its own time
            with suppress(NotConnected):
                client.publish(Message(topics.preview("car-1", "front"), b"last"))
            return bytes(inbox.items[-1].payload) == b"last"

        wait_until(passes)


def test_a_far_broker_that_is_away(brokers: tuple[str, str]) -> None:
    """The command names the broker that does not answer, and ends so that a service manager tries again."""
    url = f"mqtt://127.0.0.1:{free_port()}"
    ended = mqinfer("broker", "bridge", brokers[0], url, "--site", "plant")
    assert ended.returncode == ExitCode.FAILED
    assert url in ended.stderr
    assert mqinfer("broker", "bridge", *brokers, "--site", "a/b").returncode == ExitCode.USAGE


def with_logins(near: Any, far: Any, logins: tuple[str, str]) -> list[str]:
    """Return the command line of a bridge between two brokers with access rules."""
    line = command("broker", "bridge", str(near.address(logins[0])), str(far.address(logins[1])), "--site", "plant")
    for prefix, login in (("--", near.logins[logins[0]]), ("--far-", far.logins[logins[1]])):
        for name in ("ca_file", "cert_file", "key_file"):
            line += [f"{prefix}{name.replace('_', '-')}", str(getattr(login, name))]
    return [*line, "--group", near.folder.group()]


@pytest.mark.broker
def test_what_the_roles_of_a_bridge_allow(
    secured: Any, small: Any, serve: Callable[..., Worker], write_echo: Callable[..., Path]
) -> None:
    """With the roles `bridge` and `site` a vehicle is served, and previews, orders and states come through."""
    repository, topics = write_echo("echo"), Topics()
    serve(secured.address("w"), repository, name="w.0", group=secured.folder.group())
    process = subprocess.Popen(with_logins(small, secured, ("br", "st")), stderr=subprocess.PIPE, text=True)
    assert process.stderr
    try:
        assert "ready" in process.stderr.readline()
        with (
            Client(small.address("car-1"), options=PATIENT) as client,
            opened(secured.address("dash")) as dashboard,
            opened(secured.address("w")) as server,
            opened(small.address("car-1")) as vehicle,
            opened(small.address("op")) as operator,
        ):
            assert client.infer("echo", {"x": X}).outputs["x"].tolist() == X.tolist()
            previews, orders = (
                hear(dashboard, topics.previews.filter()),
                hear(server, topics.control.filter(server="w")),
            )
            vehicle.publish(Message(topics.preview("car-1", "front"), b"x"))
            previews.wait_for(1)
            states = hear(operator, topics.control_state("w"))
            keep(server, topics.control_state("w"), ServerState("w", ProcessStatus.READY, 1).to_json())
            states.wait_for(1)
            operator.publish(Message(topics.control("w", "op", "repository/index"), b"", response_topic="x"))
            orders.wait_until(lambda got: got[-1].topic.endswith("repository/index"))
            keep(server, topics.control_state("w"), b"")
    finally:
        process.terminate()
        _, end = process.communicate(timeout=60)
    assert '"to_near": {"carried"' in end
    assert process.returncode == 0


@pytest.mark.broker
@pytest.mark.parametrize("logins", [("st", "st"), ("br", "br"), ("car-1", "st")])
def test_logins_of_other_roles(secured: Any, small: Any, logins: tuple[str, str]) -> None:
    """A bridge whose login has another role ends at once, before it takes a request, and names the role."""
    ended = subprocess.run(
        with_logins(small, secured, logins), capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == ExitCode.REFUSED
    assert ("role `bridge`" if logins[0] != "br" else "role `site`") in ended.stderr
