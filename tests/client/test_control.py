from __future__ import annotations

import asyncio
import json
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest

from mqinfer.broker import make_link
from mqinfer.broker.link import Message
from mqinfer.client import AsyncClient
from mqinfer.client.control import AsyncControl, ControlClient, ControlReply, check_replies
from mqinfer.client.control.question import Question
from mqinfer.protocol.control import Call, Operation
from mqinfer.protocol.errors import BadEnvelope, Expired, ModelNotFound, ModelNotLoadable, NoWorker
from mqinfer.protocol.states import ProcessStatus, ServerState
from mqinfer.protocol.topics import Topics
from tests.asynchronous import in_loop

INDEX = Call(Operation.INDEX)


class FakeServer:
    """Says that it is there, and leaves each order to the test."""

    def __init__(self, url: str, name: str) -> None:
        self.name, self.topics = name, Topics()
        self.orders: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self.link = make_link(url, client_id=name)
        self.link.open()
        for target in (name, "all"):
            self.link.subscribe(self.topics.control.filter(server=target), self.orders.put)
        self.say(ProcessStatus.READY)

    def say(self, status: ProcessStatus, *, incarnation: int = 1) -> None:
        """Publish its state."""
        state = ServerState(self.name, status, incarnation).to_json()
        self.link.publish(Message(self.topics.control_state(self.name), state, retain=True))

    def order(self) -> Message:
        """Wait for the next order."""
        while (order := self.orders.get(timeout=10)).topic == self.topics.control_state(self.name):
            pass
        return order

    def answer(self, order: Message, reply: Any, *, correlation: bytes | None = None, raw: bytes = b"") -> None:
        """Reply to an order."""
        assert order.response_topic
        self.link.publish(
            Message(
                order.response_topic,
                raw or json.dumps(reply).encode(),
                correlation_data=correlation or order.correlation_data,
                user_properties=(("server", self.name),),
            )
        )


StartServer = Callable[[str], FakeServer]


@pytest.fixture
def start(url: str) -> Iterator[StartServer]:
    """Start servers on that broker."""
    with ExitStack() as stack:

        def make(name: str) -> FakeServer:
            server = FakeServer(url, name)
            stack.callback(server.link.close)
            return server

        yield make


@pytest.fixture
def site(url: str, start: StartServer) -> Iterator[Callable[..., Any]]:
    """Make servers by name on that broker: `site("one", "two")` gives a client and the servers."""
    with ExitStack() as stack:

        def make(*names: str) -> tuple[ControlClient, list[FakeServer]]:
            servers = [start(name) for name in names]
            return stack.enter_context(ControlClient(url, name="operator")), servers

        yield make


def asking(control: ControlClient, call: Call, **options: Any) -> Callable[[], Any]:
    """Ask from a thread; the result gives the replies, or the error."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(control.ask(call, **options))
        except Exception as error:  # noqa: BLE001  handed to the test
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()

    def result() -> Any:
        thread.join(30)
        return found[0]

    return result


def test_every_server_answers(site: Callable[..., Any]) -> None:
    """An order for all is complete when each server that says it is there has answered, in the servers' order."""
    control, (one, two) = site("one", "two")
    result = asking(control, INDEX, timeout=20)
    two.answer(two.order(), [{"name": "m"}])
    one.answer(one.order(), {"error": "no such folder", "code": "config_error"})
    first, second = result()
    assert (first.server, first.content, str(first.error)) == ("one", None, "server one: no such folder")
    assert (second.server, second.content, second.error) == ("two", [{"name": "m"}], None)
    result = asking(control, INDEX, server="one", timeout=20)
    one.answer(one.order(), {"error": "no " * 1_000_000})
    assert len(str(result()[0].error)) == 4000


def test_a_named_server_alone_is_asked(site: Callable[..., Any]) -> None:
    """The order carries what the protocol wants, and its reply alone is waited for."""
    control, (one, two) = site("one", "two")
    result = asking(control, Call(Operation.LOAD, "m"), body={"parameters": {}}, server="two", timeout=20)
    order = two.order()
    assert order.topic == "mqinfer/v1/control/two/operator/repository/models/m/load"
    assert (order.qos, order.retain, order.expiry_s) == (1, False, 20)
    assert order.response_topic == one.topics.control_result("operator", (order.correlation_data or b"").hex())
    two.answer(order, {}, correlation=b"of another order")
    two.answer(order, {}, raw=b"no JSON")
    two.answer(order, {"versions": ["1"]})
    assert [reply.content for reply in result()] == [{"versions": ["1"]}]


def test_no_server_speaks_for_another(site: Callable[..., Any]) -> None:
    """Neither a reply nor a state that names another server counts, nor one that names two, or a name of no rule."""
    control, (one, two) = site("one", "two")
    control.wait_for("one")
    one.link.publish(Message(one.topics.control_state("one"), ServerState("two", ProcessStatus.LOST, 2).to_json()))
    result = asking(control, INDEX, server="one", timeout=20)
    order = one.order()
    two.answer(order, [{"name": "false"}])
    for false in ([{"server": "two"}], {"server": "no/such\0#"}, [{"server": "one"}, {"server": "two"}]):
        one.answer(order, false)
    one.answer(order, [{"name": "m", "server": "one"}])
    assert result() == [ControlReply("one", [{"name": "m", "server": "one"}])]
    result = asking(control, INDEX, server="one", timeout=20)
    one.order()
    one.link.publish(Message(one.topics.control_state("one"), b"", retain=True))
    (gone,) = result()
    assert isinstance(gone.error, NoWorker)


def test_a_server_that_goes_or_keeps_silent(site: Callable[..., Any]) -> None:
    """One that is lost meanwhile is not waited for; one that says nothing is named when the time is over."""
    control, (one, _two) = site("one", "two")
    result = asking(control, INDEX, server="one", timeout=20)
    one.order()
    one.say(ProcessStatus.LOST)
    (reply,) = result()
    assert isinstance(reply.error, NoWorker)
    assert str(reply.error) == "server one is lost"
    (silent,) = control.ask(INDEX, timeout=0.05)
    assert isinstance(silent.error, Expired)
    assert "server two has not replied" in str(silent.error)


def test_a_server_that_starts_meanwhile_is_not_waited_for(site: Callable[..., Any], start: StartServer) -> None:
    """A call belongs to the servers that were ready when it was sent: one that starts later has not received it."""
    control, (one,) = site("one")
    result = asking(control, Call(Operation.LOAD, "m"), timeout=20)
    order = one.order()
    start("late")
    control.wait_for("late")
    one.answer(order, {"versions": ["1"]})
    assert [reply.server for reply in result()] == ["one"]


@in_loop
async def test_an_asyncio_call_waits_for_no_server_that_starts_meanwhile(url: str, start: StartServer) -> None:
    """A call over an asyncio client belongs to the same servers."""
    one = start("one")
    async with AsyncClient(url) as client:
        asked = asyncio.create_task(AsyncControl(client).ask(Call(Operation.LOAD, "m"), timeout=20))
        order = await asyncio.to_thread(one.order)
        start("late")
        assert await client.connection.registry.until(lambda: "late" in client.connection.registry.known.servers, 20)
        one.answer(order, {"versions": ["1"]})
        assert [reply.server for reply in await asked] == ["one"]


def test_a_server_that_is_started_anew_has_lost_the_call(site: Callable[..., Any]) -> None:
    """A later start of the same name replies to nothing that the earlier one was asked."""
    control, (one,) = site("one")
    result = asking(control, Call(Operation.LOAD, "m"), timeout=20)
    one.order()
    one.say(ProcessStatus.READY, incarnation=2)
    (reply,) = result()
    assert isinstance(reply.error, NoWorker)
    assert "server one was started anew" in str(reply.error)


def test_a_reply_that_was_lost_is_asked_for(site: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each silent server is asked for its reply, by its name; a call that changes nothing is left to its caller."""
    monkeypatch.setattr(Question, "again_s", 0.05)
    control, (one, two) = site("one", "two")
    result = asking(control, Call(Operation.LOAD, "m"), timeout=20)
    lost, order = one.order(), two.order()
    two.answer(order, {"versions": ["1"]})
    again = one.order()
    assert (again.topic, again.response_topic) == ("mqinfer/v1/control/one/operator/reply", None)
    assert again.correlation_data == lost.correlation_data
    one.answer(lost, {"versions": ["1"]})
    assert [reply.server for reply in result()] == ["one", "two"]
    asked = Question(None, 10)
    asked.message(Topics(), "operator", INDEX, None)
    ready = {"one": ServerState("one", ProcessStatus.READY, 1)}
    asked.acked(0, ready)
    assert asked.again(Topics(), "operator", ready) == []


@in_loop
async def test_an_asyncio_call_asks_for_a_lost_reply(
    url: str, start: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over an asyncio client as well."""
    monkeypatch.setattr(Question, "again_s", 0.05)
    one = start("one")
    async with AsyncClient(url) as client:
        asked = asyncio.create_task(AsyncControl(client).load("m"))
        lost, again = await asyncio.to_thread(one.order), await asyncio.to_thread(one.order)
        assert again.topic.endswith("/reply")
        one.answer(lost, {"versions": ["1"]})
        assert [reply.server for reply in await asked] == ["one"]


def test_states_that_come_behind_the_acknowledgement() -> None:
    """Of many kept states a broker holds some back: a server whose kept state comes late was asked, a new one not."""
    servers = {"one": ServerState("one", ProcessStatus.READY, 1)}
    question = Question(None, 300)
    question.acked(0, servers)
    for name in ("kept", "new"):
        servers[name] = ServerState(name, ProcessStatus.READY, 1)
    question.was_ready(servers["kept"])
    for server in ("one", "kept"):
        assert not question.is_complete(servers)
        topic = Topics().control_result("operator", question.request.hex())
        assert question.replied(Message(topic, b"{}", user_properties=(("server", server),)))
    assert question.is_complete(servers)
    assert [reply.server for reply in question.outcome(servers, "operator")] == ["kept", "one"]


def test_nobody_is_there(site: Callable[..., Any]) -> None:
    """No server at all, and none of that name, are said with those that there are."""
    control, _ = site()
    with pytest.raises(NoWorker, match="no server is ready"):
        control.ask(INDEX, timeout=5)
    with pytest.raises(NoWorker, match="'x' was not ready"):
        control.wait_for("x", timeout=0.01)


def test_nobody_of_that_name_is_there(site: Callable[..., Any]) -> None:
    """The broker tells at once that nobody listens there."""
    control, _ = site("one")
    control.wait_for("one")
    with pytest.raises(NoWorker, match=r"no server 'two' .*ready: one"):
        control.ask(INDEX, server="two", timeout=20)


def test_replies_that_are_no_text_are_dropped(site: Callable[..., Any]) -> None:
    """Half a surrogate pair in an error, which no terminal could show, and JSON without end: the good reply counts."""
    control, (one,) = site("one")
    result = asking(control, INDEX, server="one", timeout=20)
    order = one.order()
    for bad in (b'{"error": "\\ud800"}', b"[" * 100_000, b"\xff"):
        one.answer(order, None, raw=bad)
    one.answer(order, [])
    assert result() == [ControlReply("one", [])]


@pytest.mark.parametrize("content", [None, [], {}, {"workers": 3}, {"workers": [3]}, {"workers": {}}])
def test_a_reply_of_another_form(site: Callable[..., Any], content: Any) -> None:
    """It is an error that names the server, whatever stands where the answer should be."""
    control, (one,) = site("one")
    with ThreadPoolExecutor(1) as pool:
        drained = pool.submit(control.drain, "one", timeout=20)
        one.answer(one.order(), content)
        with pytest.raises(BadEnvelope, match="reply of server one"):
            drained.result(20)


def test_what_counts_as_done() -> None:
    """Who does not have the model does not count while another has it; any other failure does, by name."""
    done = ControlReply("one", {})
    lacks = ControlReply("two", error=ModelNotFound("server two: no such model"))
    broken = ControlReply("three", error=ModelNotLoadable("server three: truncated"))
    assert check_replies([done, lacks]) == [done]
    with pytest.raises(ModelNotFound, match="server two"):
        check_replies([lacks])
    with pytest.raises(ModelNotLoadable, match=r"^server three: truncated; without the model: two$"):
        check_replies([done, lacks, broken])


def test_the_reason_comes_first_and_once() -> None:
    """Of many servers without a model a load names a few, behind why the others could not load it."""
    lacks = [
        ControlReply(f"s{n:02}", error=ModelNotFound(f"server s{n:02}: no such model; it has: a, b")) for n in range(60)
    ]
    broken = [ControlReply(name, error=ModelNotLoadable(f"server {name}: truncated")) for name in ("y", "z")]
    with pytest.raises(ModelNotLoadable) as found:
        check_replies([*lacks, *broken])
    assert str(found.value).startswith("servers y, z: truncated; without the model: s00, s01, ")
    assert str(found.value).endswith(" and 36 more")
    with pytest.raises(ModelNotFound, match=r"^server s00: no such model; it has: a, b; without the model: s01, "):
        check_replies(lacks)
