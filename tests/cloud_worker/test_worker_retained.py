"""Retained requests and cancellations: a broker gives them to each worker that comes, so none may run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from mqinfer import Outcome
from mqinfer.broker import make_link
from mqinfer.broker.link import ConnectionHandler, Link, Message, MessageHandler
from mqinfer.broker.memory import MemoryBroker, MemoryLink
from mqinfer.broker.paho.link import PahoLink
from mqinfer.broker.paho.loop import Loop
from mqinfer.broker.threaded.link import LinkThread
from mqinfer.cloud_worker.serving.options import WorkerOptions
from mqinfer.cloud_worker.serving.worker import Worker
from mqinfer.codecs import encode_tensor
from mqinfer.models.loading import LoadedModel
from mqinfer.protocol.control import Cancellation
from mqinfer.protocol.topics import Topics
from tests.patience import wait_until

Gated = Callable[..., tuple[LoadedModel, Any]]
Connect = Callable[[str, Message, ConnectionHandler], Link]
TOPICS = Topics()
RETAINED = "dropped_retained"
CRASH = encode_tensor("x", np.full((1, 4), 666, np.float32))


class DeafLink(MemoryLink):
    """A link to a broker that ignores Retain Handling, as MQTT 3.1.1 has none."""

    def subscribe(self, topic_filter: str, handler: MessageHandler, *, share: str | None = None, **_: bool) -> None:
        """Receive what the broker kept, whatever was asked for."""
        super().subscribe(topic_filter, handler, share=share)


class Mqtt311(Loop):
    """What a link's thread does that begins with MQTT 3.1.1."""

    def __init__(self, thread: LinkThread, *arguments: Any) -> None:
        super().__init__(thread, *arguments)
        thread.version5 = False


@pytest.fixture(params=["memory", "memory without retain handling", "mqtt 5", "mqtt 3.1.1"])
def connect(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Connect:
    """Make links to one broker, of each kind in turn."""
    kind = str(request.param)
    if "memory" in kind:
        broker = MemoryBroker()
        make = DeafLink if "without" in kind else MemoryLink
        return lambda name, will, handler: make(broker, client_id=name, will=will, on_connection=handler)
    url = request.getfixturevalue("broker_url")
    if kind == "mqtt 3.1.1":
        monkeypatch.setattr("mqinfer.broker.paho.link.Loop", Mqtt311)
    return lambda name, will, handler: make_link(url, client_id=name, will=will, on_connection=handler)


@pytest.fixture
def serves(connect: Connect, gated: Gated, unique: Callable[[str], str]) -> Iterator[Any]:
    """A worker that is not started, its back end, its link and connections, and the link of a client that retains."""
    model, backend = gated(unique("echo"))
    links: list[Link] = []
    connections: list[bool] = []

    def connect_worker(name: str, will: Message, handler: ConnectionHandler) -> Link:
        def note(connected: bool) -> None:  # noqa: FBT001 - the link's signature
            connections.append(connected)
            handler(connected)

        links.append(connect(name, will, note))
        return links[0]

    worker = Worker(model, connect_worker, WorkerOptions(unique("worker")))
    link = connect(unique("vandal"), Message("nobody", b""), lambda _: None)
    link.open()
    with ExitStack() as stack:
        stack.callback(link.close)
        yield worker, backend, (links[0], connections), link, stack


def drop(link: Link) -> None:
    """Cut a worker's connection; it comes back."""
    if isinstance(link, MemoryLink):
        link.drop()
        link.restore()
    else:
        assert isinstance(link, PahoLink)
        link.cut()


def topics_of(worker: Worker, client: str) -> list[str]:
    """Return every topic on which a client may publish for a worker."""
    model = worker.card.name
    return [
        TOPICS.infer(model, client),
        TOPICS.infer(model, client, "1"),
        TOPICS.lane(worker.name, model, client),
        TOPICS.cancel(model, client),
    ]


@pytest.mark.broker
def test_what_the_broker_kept_is_counted_and_never_run(
    serves: Any, bare_on: Callable[[Link, str], Any], unique: Callable[[str], str]
) -> None:
    """Published before the worker connects, while it is connected and across its reconnect: each runs once at most.

    What is published while the worker is there reaches it like any other message and runs; kept by the broker, it never
    runs again.
    """
    worker, backend, (workers_link, connections), link, stack = serves
    bare = bare_on(link, unique("vandal"))
    model = worker.card.name
    before, at_once, cancel = [*topics_of(worker, bare.name)[:3]], [], topics_of(worker, bare.name)[3]
    for number, topic in enumerate(before):
        request = bare.binary(f"{number:032x}", model=model, inputs=(CRASH,))
        link.publish(replace(request, topic=topic, retain=True))
        stack.callback(link.publish, Message(topic, b"", retain=True))
    ids = tuple(f"{number:032x}" for number in range(10, 13))
    link.publish(Message(cancel, Cancellation(ids).to_json(), retain=True))
    stack.callback(link.publish, Message(cancel, b"", retain=True))

    worker.start()
    stack.callback(worker.stop)
    assert bare.ask(bare.binary("ab" * 16, model=model)).outcome is Outcome.OK
    assert backend.runs == [1]
    kept = worker.statistics().counters.get(RETAINED, 0)

    for number, topic in enumerate(before, 10):  # not cancelled: that cancellation was dropped
        request = bare.binary(f"{number:032x}", model=model)
        at_once.append(bare.ask(replace(request, topic=topic, retain=True)).outcome)
    assert at_once == [Outcome.OK] * 3
    assert backend.runs == [1] * 4

    drop(workers_link)
    wait_until(lambda: connections == [True, False, True])
    assert bare.ask(bare.binary("cd" * 16, model=model)).outcome is Outcome.OK
    assert backend.runs == [1] * 5
    wait_until(lambda: worker.statistics().counters["ok"] == 5)
    if kept:  # a broker that does not leave them out: the same again, each counted
        assert kept >= 2  # the lane and the cancel topic at least; share members get them from some brokers
        wait_until(lambda: worker.statistics().counters[RETAINED] == 2 * kept)
