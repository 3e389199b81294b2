"""What a client knows of a site: the pure registry, and when it is complete on a real and an in-memory broker."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqinfer.broker import make_link
from mqinfer.broker.link import Link, Message
from mqinfer.broker.memory import MemoryLink
from mqinfer.broker.paho.link import PahoLink
from mqinfer.client import AsyncClient, ClientOptions
from mqinfer.client.dispatch.dispatcher import Dispatcher
from mqinfer.client.registry import Registry
from mqinfer.protocol.card import ModelCard, card_to_json
from mqinfer.protocol.states import ProcessStatus, ServedModel, ServerState, WorkerState, WorkerStatus
from mqinfer.protocol.topics import Topics
from tests.asynchronous import in_loop
from tests.clock import Clock

READY, DRAINING, LOST = WorkerStatus.READY, WorkerStatus.DRAINING, WorkerStatus.LOST
STOPPED, CRASHED = WorkerStatus.STOPPED, WorkerStatus.CRASHED


def card(model: str, version: str = "1") -> ModelCard:
    """Make a card without tensors."""
    return ModelCard(name=model, versions=(version,), platform="test")


def worker(name: str, status: WorkerStatus, version: str = "1", *, boot: int = 1, default: bool = True) -> WorkerState:
    """Make the state of a worker of the model `m`."""
    return WorkerState(name, status, boot, (ServedModel("m", version, default),))


def test_a_model_is_known_by_its_card_or_its_workers() -> None:
    """A card names a version that may have no worker; a version without a card has one."""
    registry = Registry(Clock())
    models = registry.models
    assert (models.knows("m"), dict(models.versions("m")), models.is_ready("m")) == (False, {}, False)
    registry.put_card("m", card("m", "2"))
    assert (models.knows("m"), dict(models.versions("m")), models.is_ready("m")) == (True, {"2": False}, False)
    registry.put_worker("a", worker("a", READY, "1", default=False))
    assert dict(models.versions("m")) == {"1": True, "2": False}
    assert (models.is_ready("m"), models.is_ready("m", "1"), models.is_ready("m", "2")) == (False, True, False)
    registry.put_worker("b", worker("b", READY, "2"))
    assert models.is_ready("m")
    assert models.is_ready("m", "2")


def test_what_a_worker_serves_is_found_by_worker_model_and_version() -> None:
    """Precision and back end are those of the worker that answered; of one that has ended nothing is known."""
    registry = Registry(Clock())
    for name, precision in (("a", "fp32"), ("b", "int8")):
        registry.put_worker(name, WorkerState(name, READY, 1, (ServedModel("m", "1", precision=precision),)))
    found = [registry.served(*key) for key in (("a", "m", "1"), ("b", "m", "1"))]
    assert [each.precision for each in found if each] == ["fp32", "int8"]
    unknown = [("c", "m", "1"), ("a", "n", "1"), ("a", "m", "2")]
    assert [registry.served(*key) for key in unknown] == [None, None, None]
    registry.put_worker("a", WorkerState("a", STOPPED, 1))
    assert registry.served("a", "m", "1") is None


def test_a_swap_and_a_restart_are_no_unload() -> None:
    """While a worker drains, is lost or crashed the model stays known; once card and workers are gone it was known."""
    clock = Clock()
    registry = Registry(clock)
    models = registry.models
    registry.put_card("m", card("m"))
    registry.put_worker("a", worker("a", READY))
    for status in (DRAINING, LOST, CRASHED):
        clock.now += 1
        registry.put_worker("a", worker("a", status))
        assert (models.knows("m"), models.is_ready("m")) == (True, False)
    clock.now += 1
    assert models.unserved_for("m") == models.unserved_for("m", "1") == 3
    registry.put_worker("a", worker("a", READY, boot=2))
    assert (models.is_ready("m"), models.unserved_for("m")) == (True, 0)
    registry.put_worker("a", worker("a", STOPPED, boot=2))
    assert (models.knows("m"), models.was_known("m")) == (True, False)  # its card is there
    registry.put_card("m", None)
    assert (models.knows("m"), models.was_known("m")) == (False, True)
    assert (models.was_known("never"), registry.workers) == (False, {})


def test_the_will_of_a_predecessor_is_not_about_its_successor() -> None:
    """A state of another start that is not `ready` is ignored; so is a crash of a worker that is gone already."""
    registry = Registry(Clock())
    registry.put_worker("a", worker("a", READY, boot=2))
    for status in (LOST, DRAINING, STOPPED, CRASHED):
        registry.put_worker("a", worker("a", status, boot=1))
        assert registry.models.is_ready("m")
    registry.put_worker("b", worker("b", CRASHED))
    assert set(registry.workers) == {"a"}


def _registry() -> Callable[[WorkerState], object]:
    registry = Registry(Clock())
    return lambda state: registry.put_worker(state.worker, state)


def _dispatcher() -> Callable[[WorkerState], object]:
    dispatcher = Dispatcher("client")
    return lambda state: dispatcher.update(state, 0.0)


@pytest.mark.parametrize("make", [_registry, _dispatcher])
def test_a_state_costs_the_same_however_many_workers_there_are(
    make: Callable[[], Callable[[WorkerState], object]],
) -> None:
    """What is served is counted, not looked for anew in every worker's state: else many states take their square."""
    put, calls = make(), 0

    def count(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    def state(number: int, status: WorkerStatus, version: str = "1") -> WorkerState:
        return WorkerState(f"w{number}", status, 1, (ServedModel("m", version, share=5),))

    costs = []
    for workers in (10, 200):
        for number in range(workers):
            put(state(number, READY))
        calls = 0
        sys.setprofile(count)
        try:
            put(state(0, DRAINING))
            put(state(0, READY, "2"))
        finally:
            sys.setprofile(None)
        costs.append(calls)
    assert costs[0] == costs[1]


def test_figures_change_no_revision() -> None:
    """A state whose figures alone differ is kept, and nothing has to be asked again for it."""
    registry = Registry(Clock())
    registry.put_worker("a", worker("a", READY))
    revision = registry.revision
    registry.put_worker("a", WorkerState("a", READY, 1, (ServedModel("m", "1"),), depth=7))
    assert (registry.revision, registry.workers["a"].depth) == (revision, 7)
    registry.put_worker("a", worker("a", READY, "2"))
    assert registry.revision > revision


def test_what_is_not_sent_again_is_gone() -> None:
    """After a loss the old knowledge holds until the marker is back; then only what this connection has brought."""
    registry = Registry(Clock())
    models = registry.models
    for name in ("a", "b"):
        registry.put_worker(name, worker(name, READY, name.replace("a", "1").replace("b", "2")))
        registry.put_card(name, card(name))
        registry.put_server(name, ServerState(name, ProcessStatus.READY, 1))
    registry.finish()
    registry.begin()
    assert (registry.is_complete, set(registry.cards), set(models.versions("m"))) == (False, {"a", "b"}, {"1", "2"})
    registry.put_card("b", card("b"))
    registry.put_worker("b", worker("b", READY, "2"))
    registry.put_server("b", ServerState("b", ProcessStatus.CLAIMING, 2))
    registry.finish()
    assert (registry.is_complete, set(registry.cards), dict(models.versions("m"))) == (True, {"b"}, {"2": True})
    assert (registry.servers, models.was_known("a")) == ({}, True)


EVENTS = st.tuples(
    st.sampled_from(["put", "remove", "card", "no card", "begin", "finish"]),
    st.sampled_from(["a", "b", "c"]),
    st.sampled_from(list(WorkerStatus)),
    st.sampled_from(["1", "2"]),
    st.integers(1, 2),
    st.booleans(),
)


@given(st.lists(EVENTS, max_size=30))
def test_what_is_derived_follows_from_the_states(events: list[Any]) -> None:
    """Whatever comes in whatever order, the versions are those that the states and the card name."""
    registry = Registry(Clock())
    models = registry.models
    for event, name, status, version, boot, default in events:
        match event:
            case "put":
                registry.put_worker(name, worker(name, status, version, boot=boot, default=default))
            case "remove":
                registry.put_worker(name, None)
            case "card":
                registry.put_card("m", card("m", version))
            case "no card":
                registry.put_card("m", None)
            case _:
                getattr(registry, event)()
        states = registry.workers.values()
        served = [(each.version, state.status is READY) for state in states for each in state.models]
        versions = {version: any(ready for each, ready in served if each == version) for version, _ in served}
        if found := registry.card("m"):
            versions.setdefault(found.version, False)
        assert models.versions("m") == versions
        assert models.knows("m") == bool(versions)
        assert models.is_ready("m") == any(s.status is READY and each.default for s in states for each in s.models)


@pytest.fixture(params=["memory", pytest.param("mosquitto", marks=pytest.mark.broker)])
def any_url(request: pytest.FixtureRequest, unique: Callable[[str], str]) -> str:
    """URL of an in-memory broker, and of Mosquitto."""
    if request.param == "memory":
        return f"memory://{unique('broker')}"
    url: str = request.getfixturevalue("broker_url")
    return url


@pytest.fixture
def site(any_url: str, unique: Callable[[str], str]) -> Iterator[tuple[Link, Topics]]:
    """A link, and a topic root of this test's own; a card, a worker and a server are kept there."""
    topics = Topics(unique("root"))
    with ExitStack() as stack:
        link = make_link(any_url, client_id=unique("site"))
        link.open()
        stack.callback(link.close)
        states = {
            topics.card("m"): card_to_json(card("m")),
            topics.worker_state("w.0"): worker("w.0", READY).to_json(),
            topics.control_state("w"): ServerState("w", ProcessStatus.READY, 1).to_json(),
        }
        for topic, payload in states.items():
            link.publish(Message(topic, payload, retain=True))
            stack.callback(link.publish, Message(topic, b"", retain=True))
        yield link, topics


@pytest.mark.parametrize("lanes", [True, False])
@in_loop
async def test_it_is_known_when_everything_has_come(any_url: str, site: tuple[Link, Topics], *, lanes: bool) -> None:
    """Once it is complete, cards, workers and servers are there, and what is not there does not exist."""
    _, topics = site
    async with AsyncClient(any_url, root=topics.root, options=ClientOptions(lanes=lanes)) as client:
        registry = client.connection.registry
        assert not registry.is_complete
        assert await registry.wait_until_complete()
        assert registry.known.is_complete  # by the marker, not by a pause
        assert (set(registry.known.cards), dict(registry.known.models.versions("m"))) == ({"m"}, {"1": True})
        assert [state.status for state in registry.known.servers.values()] == [ProcessStatus.READY]
        assert not registry.known.models.knows("other")


@in_loop
async def test_changes_come_as_they_happen(any_url: str, site: tuple[Link, Topics]) -> None:
    """A removed card and a stopped worker are known without being asked for; a damaged state changes nothing."""
    link, topics = site
    async with AsyncClient(any_url, root=topics.root) as client:
        registry = client.connection.registry
        await registry.wait_until_complete()
        link.publish(Message(topics.worker_state("w.0"), b"{"))
        link.publish(Message(topics.card("m"), b"{"))
        link.publish(Message(topics.control_state("w"), b"{"))
        assert registry.known.models.is_ready("m")
        link.publish(Message(topics.card("m"), b"", retain=True))
        link.publish(Message(topics.worker_state("w.0"), worker("w.0", STOPPED).to_json(), retain=True))
        assert await registry.until(lambda: not registry.known.models.knows("m"), 30)
        assert (registry.known.models.was_known("m"), registry.is_complete) == (True, True)


@in_loop
async def test_what_went_while_the_link_was_down_is_gone_after_it(any_url: str, site: tuple[Link, Topics]) -> None:
    """Without a connection nothing is complete; with the next one a card that was removed meanwhile is unknown."""
    link, topics = site
    async with AsyncClient(any_url, root=topics.root) as client:
        registry, own = client.connection.registry, client.connection.requester.link
        await registry.wait_until_complete()
        lost = []
        registry.watch(lambda: lost.append(registry.is_complete))
        assert isinstance(own, MemoryLink | PahoLink)
        if isinstance(own, MemoryLink):
            own.drop()
        else:
            own.cut()
        assert await registry.until(lambda: False in lost, 30)
        link.publish(Message(topics.card("m"), b"", retain=True))
        link.publish(Message(topics.worker_state("w.0"), b"", retain=True))
        if isinstance(own, MemoryLink):
            own.restore()
        assert await registry.until(lambda: registry.known.is_complete and registry.is_complete, 60)
        assert await registry.until(lambda: not registry.known.models.knows("m"), 30)
