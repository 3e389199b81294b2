"""What is below a client: its link can be cut, its clock moved, and its requests cancelled with a reason."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, cast

import numpy as np
import pytest
from msgspec.structs import replace

from mqinfer import Capture, ClientOptions, InferResult, Outcome
from mqinfer.broker import make_link
from mqinfer.broker.link import ConnectionHandler, Link, Message, MessageHandler
from mqinfer.broker.memory import MemoryBroker, MemoryLink
from mqinfer.client.dispatch.pending import Settle
from mqinfer.client.request import make_request
from mqinfer.client.requester import Requester
from mqinfer.codecs import encode_tensor
from mqinfer.errors import Cancelled, Corrupted, Expired, LinkError, MessageTooLarge, MqinferError, NotAuthorized
from mqinfer.protocol.checksum import checksum
from mqinfer.protocol.datatypes import Array
from mqinfer.protocol.envelope import decode_request, encode_response
from mqinfer.protocol.states import ServedModel, WorkerState, WorkerStatus
from mqinfer.protocol.topics import Topics
from mqinfer.protocol.types import InferRequest, InferResponse, RequestedOutput
from tests.client.conftest import Serve, WriteEcho
from tests.patience import PATIENCE_S, wait_until

pytestmark = pytest.mark.usefixtures("patient")

Check = Callable[..., None]
X = np.arange(8, dtype=np.float32).reshape(2, 4)


def request_to(model: str = "manual") -> InferRequest:
    """Make a request as `make_request` does."""
    return InferRequest("", model, (encode_tensor("x", X),))


def link_of(requester: Requester) -> MemoryLink:
    """Return the in-memory link below a requester."""
    assert isinstance(requester.link, MemoryLink)
    return requester.link


def ask(
    requester: Requester, timeout: float = PATIENCE_S, model: str = "manual", array: Array = X
) -> Future[InferResult]:
    """Submit a request; return the future of its result."""
    result: Future[InferResult] = Future()
    requester.submit(make_request(model, {"x": array}, {}), timeout, result.set_result)
    return result


Make = Callable[..., Requester]


@pytest.fixture
def make(unique: Callable[[str], str], check_books: Check) -> Iterator[Make]:
    """Make requesters, at a URL or at a broker in memory; at the end they are closed, and their books are right."""
    made: list[Requester] = []

    def make(
        at: str | MemoryBroker,
        clock: Callable[[], float] = time.monotonic,
        options: ClientOptions | None = None,
        link: type[MemoryLink] = MemoryLink,
        name: str = "",
    ) -> Requester:
        name = name or unique("client")

        def connect(handler: ConnectionHandler) -> Link:
            if isinstance(at, str):
                return make_link(at, client_id=name, on_connection=handler)
            return link(at, client_id=name, on_connection=handler)

        made.append(Requester(connect, name, Topics(), options or ClientOptions(), clock))
        made[-1].open()
        return made[-1]

    yield make
    for each in made:
        each.close()
        check_books(each.counters())


@pytest.fixture
def requester(url: str, make: Make) -> Requester:
    """What is below a client: its link can be cut, and its requests cancelled with a reason."""
    return make(url)


@pytest.fixture
def narrow(make: Make) -> Requester:
    """A requester at a broker with a small Maximum Packet Size."""
    return make(MemoryBroker(max_packet_size=4096))


def test_a_message_above_the_brokers_limit_is_refused_before_it_is_sent(narrow: Requester) -> None:
    """Both sizes are named, and the link goes on."""
    with pytest.raises(MessageTooLarge, match="4096"):
        ask(narrow, array=np.zeros((64, 64), np.float32)).result(PATIENCE_S).raise_for_outcome()


def test_a_message_that_can_never_be_sent_is_refused_also_without_a_connection(narrow: Requester) -> None:
    """By the Maximum Packet Size of the last connection; it is not counted, and what is smaller waits."""
    link_of(narrow).drop()
    with pytest.raises(MessageTooLarge, match="4096"):
        ask(narrow, array=np.zeros((64, 64), np.float32))
    result = ask(narrow, 0.01)
    assert result.result(PATIENCE_S).outcome is Outcome.EXPIRED
    assert narrow.counters().submitted == 1


def test_many_queued_requests_that_can_not_be_sent_each_get_an_outcome(make: Make) -> None:
    """The broker's limit is smaller when the connection is back: a thousand end one after the other, later ones too."""
    broker = MemoryBroker()
    narrow = make(broker)
    link_of(narrow).drop()
    results = [ask(narrow, 60, array=np.zeros((64, 64), np.float32)) for _ in range(1000)]
    broker.max_packet_size = 4096
    link_of(narrow).restore()
    for result in results:
        error = result.result(PATIENCE_S).error
        assert error is not None
        assert error.code == MessageTooLarge.code
    with pytest.raises(MessageTooLarge):
        ask(narrow, array=np.zeros((64, 64), np.float32))
    assert ask(narrow, 0.01).result(PATIENCE_S).outcome is Outcome.EXPIRED
    assert narrow.counters().outcomes[Outcome.ERROR] == 1000


HALF = "\udc80"
"""Half of a surrogate pair: what `os.fsdecode` makes of a file name that is no UTF-8."""


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (replace(request_to(), capture=Capture(source="caf" + HALF)), "parameters.source.*not Unicode"),
        (replace(request_to(), capture=Capture(frame_id=HALF)), "parameters.frame_id.*not Unicode"),
        (replace(request_to(), parameters={"weather": HALF}), "parameters.weather.*not Unicode"),
        (replace(request_to(), parameters={HALF: 1}), r"parameters.\\udc80.*not Unicode"),
        (replace(request_to(), parameters={"number": 1 << 64}), "parameters.number.*can't be packed"),
        (replace(request_to(), parameters={"thing": cast(str, object())}), "parameters.thing.*can't be packed"),
        (replace(request_to(), parameters={"source": "x"}), "'source' is a field"),
        (replace(request_to(), inputs=(replace(request_to().inputs[0], name=HALF),)), r"inputs\[0\].name.*not Unicode"),
        (replace(request_to(), outputs=(RequestedOutput(HALF),)), r"outputs\[0\].name.*not Unicode"),
        (replace(request_to(), capture=Capture(source="x" * 5000)), "parameters.source.*5000 bytes; at most 4096"),
        (replace(request_to(), parameters={f"{n}": "x" * 100 for n in range(1000)}), "header of .* at most 65536"),
        (replace(request_to(), model_version="1/#"), "version '1/#'"),
        (replace(request_to(), model_version=HALF), "version"),
        (replace(request_to(), model_name=HALF), "model"),
        (replace(request_to(), model_name="a\0"), "model"),
        (
            replace(request_to(), inputs=(replace(request_to().inputs[0], data=memoryview(bytes(8))[::2]),)),
            "contiguous",
        ),
    ],
)
@pytest.mark.parametrize("connected", [True, False])
def test_what_can_never_be_sent_is_refused_at_once(
    requester: Requester,
    asked: InferRequest,
    words: str,
    connected: bool,  # noqa: FBT001  a parameter of the test
) -> None:
    """By the field's name, with or without a connection; nothing is counted, and the next request works."""
    if not connected:
        link_of(requester).drop()
    with pytest.raises(MqinferError, match=words):
        requester.submit(asked, 10.0, lambda _: None)
    assert requester.counters().submitted == 0


def test_text_that_a_payload_can_carry_is_sent(requester: Requester, hand: Any) -> None:
    """NUL and control characters are forbidden in topics and properties of MQTT alone; none of this gets there."""
    source = "\0\x07\n\U0001f697"
    requester.submit(replace(request_to(), capture=Capture(source=source)), 10.0, lambda _: None)
    assert hand.next().capture.source == source


def test_a_defect_on_the_timers_thread_leaves_nothing_pending(url: str, make: Make) -> None:
    """It would keep no deadline any more: everything pending ends, and the client accepts no more, and says why."""
    threads: list[int] = []

    def clock() -> float:
        if threads and threading.get_ident() not in threads:
            raise ZeroDivisionError("a defect")
        return 0.0

    requester = make(url, clock)
    link_of(requester).drop()
    result = ask(requester, 60)
    threads.append(threading.get_ident())
    with suppress(LinkError):  # the timer may have looked at the clock by then
        ask(requester, 30)  # an earlier deadline wakes the timer
    assert result.result(PATIENCE_S).outcome is Outcome.CANCELLED
    with pytest.raises(LinkError, match=r"timer failed.*a defect.*make a new client"):
        ask(requester)


@pytest.fixture
def timeless(url: str, make: Make) -> Requester:
    """A client whose clock stands still: nothing is sent again for want of a reply."""
    return make(url, lambda: 0.0)


def test_a_damaged_reply_is_not_believed_and_the_request_is_sent_again(timeless: Requester, hand: Any) -> None:
    """At once, whatever the reply says, where its Correlation Data tells whose it is; else nothing happens."""
    results: Future[InferResult] = Future()
    timeless.submit(request_to(), 5.0, results.set_result)
    first = hand.next()
    payload = encode_response(InferResponse(first.id, "manual", outputs=(encode_tensor("y", X),)))
    stated, damaged = checksum((payload,)), payload[:-64] + bytes(64)
    assert damaged != payload
    for correlation in (None, b"", b"of nobody"):
        hand.send(first, damaged, user_properties=(stated,), correlation_data=correlation)
    hand.send(first, damaged, user_properties=(stated,), correlation_data=bytes.fromhex(first.id))
    second = hand.next()
    assert (second.id, second.attempt) == (first.id, 2)
    assert not results.done()
    hand.send(second, payload, user_properties=(stated,))
    result = results.result(PATIENCE_S)
    np.testing.assert_array_equal(result.outputs["y"], X)
    counters = timeless.counters()
    assert (result.attempts, counters.malformed, counters.retries) == (2, 4, 1)


def test_a_request_that_came_damaged_is_sent_again_without_a_pause(timeless: Requester, hand: Any) -> None:
    """The worker said so; its being busy would have to wait for the clock."""
    results: Future[InferResult] = Future()
    timeless.submit(request_to(), 5.0, results.set_result)
    hand.refuse(hand.next(), Corrupted("bits flipped"))
    hand.answer(hand.next(), {"y": X})
    assert results.result(PATIENCE_S).outcome is Outcome.OK


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit, asyncio.CancelledError])
def test_the_callers_fault_stops_no_thread(
    requester: Requester, hand: Any, error: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    """Code of the caller raises on an outcome, on each thread that hands one over: the next outcome comes there."""

    def raises(result: InferResult) -> None:
        raise error(result.id)

    def everywhere(settle: Settle, timeout: float) -> None:
        requester.submit(request_to(), timeout, settle)
        hand.answer(hand.next(), {"y": X})  # on the link's thread
        requester.submit(request_to(), timeout, settle)
        hand.answer(hand.next(), {"y": X}, "lz4")  # on a decoder
        requester.submit(request_to("nobody"), 1e-6, settle)  # on the timer's thread, or this one
        assert requester.cancel(requester.submit(request_to("nobody"), timeout, settle))  # on this one

    everywhere(raises, 60.0)
    everywhere(raises, 60.0)
    results: queue.SimpleQueue[InferResult] = queue.SimpleQueue()
    everywhere(results.put, 60.0)
    found = sorted(results.get(timeout=PATIENCE_S).outcome for _ in range(4))
    assert found == sorted([Outcome.OK, Outcome.OK, Outcome.EXPIRED, Outcome.CANCELLED])
    requester.submit(request_to("nobody"), 60.0, raises)
    requester.submit(request_to("nobody"), 60.0, results.put)
    requester.close()
    assert results.get(timeout=PATIENCE_S).outcome is Outcome.CANCELLED
    assert len([each for each in caplog.records if "caller's code raised" in each.getMessage()]) == 9


@pytest.mark.parametrize("error", [ValueError, SystemExit])
def test_a_watchers_fault_stops_no_thread(requester: Requester, hand: Any, error: type[BaseException]) -> None:
    """Each watcher is called at each change, whatever another one raises, and the requests go on."""
    seen: queue.SimpleQueue[bool] = queue.SimpleQueue()

    def raises() -> None:
        raise error

    for watcher in (raises, lambda: seen.put(requester.connected), raises):
        requester.watch(watcher)
    link_of(requester).drop()
    link_of(requester).restore()
    assert [seen.get(timeout=PATIENCE_S) for _ in range(2)][-1]
    result = ask(requester)
    hand.answer(hand.next(), {"y": X})
    assert result.result(PATIENCE_S).outcome is Outcome.OK
    requester.give_up(NotAuthorized("refused from now on"))
    assert not seen.get(timeout=10)


def test_a_reply_is_decoded_where_no_thread_can_be_started(
    requester: Requester, hand: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine without one more thread the link's own thread decodes it."""

    def start(thread: threading.Thread) -> None:
        raise RuntimeError(f"can't start new thread {thread.name}")

    result = ask(requester)
    request = hand.next()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        hand.answer(request, {"y": X}, "lz4")
        assert result.result(PATIENCE_S).outcome is Outcome.OK


def test_a_lost_connection_loses_no_request(url: str, make: Make, serve: Serve, write_echo: WriteEcho) -> None:
    """The client's connection is cut ten times under load: every request ends as ok, exactly once."""
    serve(url, write_echo(delay_ms=1))
    requester = make(url, options=ClientOptions(window=8))
    results = [ask(requester, 60, "echo", np.full((1, 4), n, np.float32)) for n in range(200)]
    for cut in range(10):
        results[cut * 20].result(60)
        link_of(requester).drop()
        link_of(requester).restore()
    for number, result in enumerate(results):
        assert result.result(60).outputs["x"][0, 0] == number
    assert requester.counters().outcomes[Outcome.OK] == 200


def test_requests_wait_for_the_connection(requester: Requester, hand: Any) -> None:
    """What is asked while the link is down goes out when it is up again; without that it expires, saying so."""
    link_of(requester).drop()
    result = ask(requester, 60)
    with pytest.raises(Expired, match="before it could be sent"):
        ask(requester, 0.01).result(PATIENCE_S).raise_for_outcome()
    link_of(requester).restore()
    hand.answer(hand.next(), {"y": X})
    assert result.result(PATIENCE_S).outcome is Outcome.OK


def test_deadlines_and_retries_go_by_the_clock_that_was_given(url: str, make: Make) -> None:
    """With a clock that stands still nothing expires; when it jumps, everything does."""
    now = [0.0]
    requester = make(url, lambda: now[0])
    link_of(requester).drop()
    results: Future[InferResult] = Future()
    requester.submit(request_to(), 5.0, results.set_result)
    assert requester.counters().pending == 1
    now[0] = 5.0
    # A new request makes the client look at the clock again.
    requester.submit(request_to(), 1.0, lambda _: None)
    assert results.result(PATIENCE_S).outcome is Outcome.EXPIRED
    requester.close()
    outcomes = requester.counters().outcomes
    assert (outcomes[Outcome.EXPIRED], outcomes[Outcome.CANCELLED]) == (1, 1)


def test_a_connection_that_has_failed_for_good(requester: Requester, hand: Any) -> None:
    """What is pending ends as cancelled, with the reason; what is asked afterwards raises it; its reply is late."""
    result = ask(requester, 60)
    request = hand.next()
    requester.give_up(NotAuthorized("refused from now on"))
    with pytest.raises(Cancelled, match="ended for good: refused from now on"):
        result.result(PATIENCE_S).raise_for_outcome()
    with pytest.raises(NotAuthorized, match="refused from now on"):
        ask(requester, 60)
    hand.answer(request, {"y": X})
    requester.close()
    assert requester.counters().late == 1


def test_a_request_can_be_cancelled(requester: Requester, hand: Any) -> None:
    """It has that outcome once; a second time there is nothing to cancel, and its reply is late."""
    results: Future[InferResult] = Future()
    request_id = requester.submit(request_to(), 10, results.set_result)
    request = hand.next()
    assert requester.cancel(request_id)
    assert not requester.cancel(request_id)
    assert results.result(PATIENCE_S).outcome is Outcome.CANCELLED
    hand.answer(request, {"y": X})
    requester.close()
    assert requester.counters().late == 1


def lane_of(hand: Any, worker: str) -> queue.SimpleQueue[InferRequest]:
    """Take the requests on a worker's lane; nobody takes those on the model's channel any more."""
    requests: queue.SimpleQueue[InferRequest] = queue.SimpleQueue()
    hand.link.unsubscribe(Topics().infer_filter("manual"), share="workers")
    hand.link.subscribe(
        Topics().lane.filter(worker=worker), lambda message: requests.put(decode_request(message.joined().payload))
    )
    return requests


def publish_state(link: Link, of: str, payload: bytes) -> None:
    """Publish a worker's state, retained, as any worker can under its own name."""
    link.publish(Message(Topics().worker_state(of), payload, retain=True))


def test_no_worker_speaks_for_another(url: str, make: Make, hand: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A state that names another than its topic removes no lane and makes none; what is no state changes nothing."""
    caplog.set_level(logging.WARNING, logger="mqinfer.client")
    ready = WorkerState("w-1", WorkerStatus.READY, 1, (ServedModel("manual"),), 8)
    lane = lane_of(hand, "w-1")
    publish_state(hand.link, "w-1", ready.to_json())
    forged = [
        b"{",
        replace(ready, status=WorkerStatus.LOST).to_json(),
        replace(ready, worker="no/such\0#").to_json(),
        replace(ready, worker="w-2", models=(ServedModel("no/such\0#"),)).to_json(),
        replace(ready, incarnation=2**64 - 1).to_json(),
    ]
    for payload in forged * 20:
        publish_state(hand.link, "w-2", payload)
    requester = make(url)
    for payload in forged * 20:
        publish_state(hand.link, "w-2", payload)
    for number in range(20):
        result = ask(requester)
        hand.answer(lane.get(timeout=PATIENCE_S), {"y": X + number}, worker="w-1")
        assert result.result(PATIENCE_S).outcome is Outcome.OK
    requester.close()
    counters = requester.counters()
    assert counters.bad_states == 101
    assert len([record for record in caplog.records if "w-2" in record.getMessage()]) == 1


def test_a_state_that_is_removed_takes_the_lane_with_it(url: str, make: Make, hand: Any) -> None:
    """An empty payload: what the worker had goes over the model's channel."""
    lane = lane_of(hand, "w-1")
    ready = WorkerState("w-1", WorkerStatus.READY, 1, (ServedModel("manual"),), 8)
    publish_state(hand.link, "w-1", ready.to_json())
    requester = make(url)
    result = ask(requester)
    lane.get(timeout=PATIENCE_S)
    channel = type(hand)(hand.link, "manual")
    publish_state(hand.link, "w-1", b"")
    channel.answer(channel.next(), {"y": X})
    assert result.result(PATIENCE_S).attempts >= 2
    requester.close()
    assert requester.counters().bad_states == 0


def test_no_number_in_a_state_stops_the_client(url: str, make: Make, hand: Any) -> None:
    """A service time of 300,000 years, and the largest of all else: the request is answered, and so is the next."""
    lane = lane_of(hand, "w-1")
    most = 2**63 - 1
    models = (ServedModel("manual"), *(ServedModel(f"m{number}") for number in range(1000)))
    state = WorkerState("w-1", WorkerStatus.READY, most, models, most, most, most, {"ok": most})
    publish_state(hand.link, "w-1", state.to_json())
    requester = make(url)
    for _ in range(2):
        result = ask(requester)
        hand.answer(lane.get(timeout=PATIENCE_S), {"y": X}, worker="w-1")
        assert result.result(PATIENCE_S).outcome is Outcome.OK
    for _ in range(2):  # the timer runs still
        assert ask(requester, 0.1, "nobody").result(PATIENCE_S).outcome is Outcome.EXPIRED
    requester.close()


def test_a_reply_on_another_topic_or_kept_by_the_broker_is_dropped(requester: Requester, hand: Any) -> None:
    """Each is counted by its reason; the request waits for its own."""
    result = ask(requester)
    request = hand.next()
    own = encode_response(InferResponse(request.id, "manual", outputs=(encode_tensor("y", X),)))
    other = Topics().result("other", requester.name, request.id)
    hand.link.publish(Message(other, own))
    hand.send(request, encode_response(InferResponse(request.id, "other")))
    hand.send(request, encode_response(InferResponse("f" * 32, "manual")))
    hand.answer(request, {"y": X})
    assert result.result(PATIENCE_S).outcome is Outcome.OK
    counters = requester.counters()
    assert (counters.mismatched, counters.late) == (2, 1)


class OldLink(MemoryLink):
    """A link over MQTT 3.1.1: what the broker kept comes, whatever was asked for."""

    def subscribe(
        self, topic_filter: str, handler: MessageHandler, *, share: str | None = None, retained: bool = True
    ) -> None:
        """Subscribe without the option."""
        super().subscribe(topic_filter, handler, share=share, retained=retained or True)


def test_replies_that_the_broker_kept_are_dropped(make: Make) -> None:
    """Whoever publishes replies with RETAIN reaches nobody with them, also where the broker sends them."""
    broker = MemoryBroker()
    topic = Topics().result("manual", "kept", "ab" * 16)
    sender = MemoryLink(broker, client_id="sender")
    sender.open()
    sender.publish(Message(topic, encode_response(InferResponse("ab" * 16, "manual")), retain=True))
    requester = make(broker, name="kept", link=OldLink)
    assert ask(requester, 0.01).result(PATIENCE_S).outcome is Outcome.EXPIRED
    sender.close()
    wait_until(lambda: requester.counters().retained == 1)
    assert requester.counters().late == 0


def test_a_servers_reply_to_another_connection_of_this_name_is_no_damage(
    timeless: Requester, caplog: pytest.LogCaptureFixture
) -> None:
    """It is left to who has asked, without a warning; what stands where workers reply is counted as before."""
    topics, name = timeless.topics, timeless.name
    timeless.link.publish(Message(topics.control_result(name, 16 * "ab"), b"[]"))
    timeless.link.publish(Message(topics.result("any", name, 16 * "ab"), b"[]"))
    wait_until(lambda: timeless.counters().malformed > 0)
    assert timeless.counters().malformed == 1
    assert len(caplog.records) == 1
    assert "results/any/" in caplog.text
