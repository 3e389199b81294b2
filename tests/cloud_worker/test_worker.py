from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import lz4.block
import numpy as np
import pytest

from mqinfer import Client, Outcome
from mqinfer.broker import make_link
from mqinfer.broker.link import Link, Message
from mqinfer.broker.memory_link import MemoryLink
from mqinfer.cloud_worker.options import WorkerOptions
from mqinfer.cloud_worker.worker import Worker
from mqinfer.codecs import encode_tensor
from mqinfer.models.config import DynamicBatching
from mqinfer.models.loading import LoadedModel
from mqinfer.protocol.card_json import card_from_json
from mqinfer.protocol.checksum import CHECKSUM, checksum
from mqinfer.protocol.envelope import CONTENT_TYPE, decode_response, encode_request
from mqinfer.protocol.errors import BrokerUnreachable
from mqinfer.protocol.oip_json import HEADER_LENGTH
from mqinfer.protocol.topics import Topics
from mqinfer.protocol.types import Capture, EncodedTensor, InferRequest, InferResponse
from mqinfer.protocol.worker_state import ServedModel, WorkerState, WorkerStatus

Serve = Callable[..., Worker]
WriteEcho = Callable[..., Path]
Gated = Callable[..., tuple[LoadedModel, Any]]
TOPICS = Topics()
X = np.arange(4, dtype=np.float32).reshape(1, 4)
DATA = '"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [0, 1, 2, 3]}]'


def binary(bare: Any, request_id: str = "ab" * 16, *, model: str = "echo", **changes: Any) -> Message:
    """Make a request in the binary form, as mqinfer's own clients send it."""
    tensors = changes.pop("inputs", (encode_tensor("x", X),))
    request = InferRequest(request_id, model, tensors, response_topic=TOPICS.result(model, bare.name, request_id))
    request = replace(request, **changes)
    return Message(
        TOPICS.infer(model, bare.name),
        encode_request(request),
        content_type=CONTENT_TYPE,
        response_topic=request.response_topic,
        correlation_data=bytes.fromhex(request_id),
    )


def text(bare: Any, body: str, request_id: str = "1", **changes: Any) -> Message:
    """Make a request in JSON, as `mosquitto_pub` would."""
    message = Message(
        TOPICS.infer("echo", bare.name), body.encode(), response_topic=TOPICS.result("echo", bare.name, request_id)
    )
    return replace(message, **changes)


def read(message: Message) -> InferResponse:
    """Read a binary reply."""
    return decode_response(message.payload)


def ask(bare: Any, message: Message) -> InferResponse:
    """Send a message and wait for the reply."""
    bare.link.publish(message)
    return read(bare.next())


@pytest.fixture
def seen(url: str, unique: Callable[[str], str]) -> Iterator[list[tuple[str, Message]]]:
    """Everything retained below the root, as it came."""
    link = make_link(url, client_id=unique("watcher"))
    link.open()
    messages: list[tuple[str, Message]] = []
    link.subscribe("mqinfer/v1/+/+/state", lambda message: messages.append((message.topic, message)))
    link.subscribe(TOPICS.cards(), lambda message: messages.append((message.topic, message)))
    yield messages
    link.close()


def until(is_so: Callable[[], bool]) -> None:
    """Wait for something that a worker's thread does and tells nobody."""
    for _ in range(10_000):
        if is_so():
            return
        threading.Event().wait(0.001)
    raise AssertionError("it did not come to pass")


def settle(link: Link) -> None:
    """Wait until a link in memory has handed over everything that it has."""
    assert isinstance(link, MemoryLink)
    link._wait_for_events()


def test_state_and_card_are_retained_in_their_order(
    url: str, unique: Callable[[str], str], seen: list[tuple[str, Message]], gated: Gated
) -> None:
    """Card and `ready` once requests can come in, then `draining` and `stopped`, all with the same boot number."""
    model, _ = gated()
    subscriptions_at_ready: list[bool] = []
    name = unique("worker")

    def connect(client_id: str, will: Message, handler: Callable[[bool], None]) -> Link:
        assert WorkerState.from_json(will.payload).status is WorkerStatus.LOST
        assert (will.topic, will.retain) == (TOPICS.worker_state(name), True)
        link = make_link(url, client_id=client_id, will=will, on_connection=handler)
        assert isinstance(link, MemoryLink)
        publish = link.publish

        def watched(message: Message, *rest: Any) -> None:
            if b'"ready"' in bytes(message.payload):
                subscriptions_at_ready.append(len(link._subscriptions) == 5)
            publish(message, *rest)

        link.publish = watched  # type: ignore[method-assign,assignment]
        return link

    worker = Worker(model, connect, WorkerOptions(name))
    worker.start()
    worker.stop()
    until(lambda: any(b'"stopped"' in bytes(message.payload) for _, message in seen))
    states = [WorkerState.from_json(message.payload) for topic, message in seen if topic.endswith("/state")]
    cards = [card_from_json(message.payload) for topic, message in seen if topic.endswith("/card")]
    assert [state.status for state in states] == [WorkerStatus.READY, WorkerStatus.DRAINING, WorkerStatus.STOPPED]
    assert len({state.boot for state in states}) == 1
    assert {(state.worker, state.models, state.capacity) for state in states} == {
        (name, (ServedModel("echo", "1"),), 64)
    }
    assert cards[0] == model.card
    assert all(subscriptions_at_ready)


def test_a_lost_worker_is_said_to_be_lost_and_comes_back(
    url: str, serve: Serve, gated: Gated, seen: list[tuple[str, Message]], bare: Any
) -> None:
    """The will says `lost` with the boot number of the state before; a reconnection says `ready` again."""
    worker = serve(url, gated()[0])
    link = worker._link
    assert isinstance(link, MemoryLink)
    link.drop()
    link.restore()
    assert ask(bare, binary(bare)).outcome is Outcome.OK
    until(lambda: sum(topic.endswith("/state") for topic, _ in list(seen)) >= 3)  # the watcher has a thread of its own
    states = [WorkerState.from_json(message.payload) for topic, message in list(seen) if topic.endswith("/state")]
    assert [state.status for state in states][:3] == [WorkerStatus.READY, WorkerStatus.LOST, WorkerStatus.READY]
    assert len({state.boot for state in states}) == 1


@pytest.mark.parametrize("where", ["shared", "version", "lane"])
def test_every_channel_is_answered(url: str, serve: Serve, gated: Gated, bare: Any, where: str) -> None:
    """The model's channel, its version's channel and the worker's lane lead to the same model."""
    worker = serve(url, gated()[0])
    topic = {
        "shared": TOPICS.infer("echo", bare.name),
        "version": TOPICS.infer("echo", bare.name, "1"),
        "lane": TOPICS.lane(worker.name, "echo", bare.name),
    }[where]
    reply = ask(bare, replace(binary(bare), topic=topic))
    assert (reply.outcome, reply.worker, reply.load.depth) == (Outcome.OK, worker.name, 1)
    np.testing.assert_array_equal(np.frombuffer(reply.outputs[0].data, np.float32), X[0])


def test_a_lane_asked_for_another_model_or_version(url: str, serve: Serve, gated: Gated, bare: Any) -> None:
    """What a lane's worker does not serve is said by name."""
    worker = serve(url, gated()[0])
    for model, version in (("other", None), ("echo", "7")):
        message = binary(bare, model=model, model_version=version)
        reply = ask(bare, replace(message, topic=TOPICS.lane(worker.name, model, bare.name)))
        assert reply.error
        assert reply.error.code == "model_not_found"


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
    url: str, serve: Serve, gated: Gated, bare: Any, response_topic: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """A reply topic that is missing or not the sender's own is not answered, and counted; the next request works."""
    model, backend = gated()
    worker = serve(url, model)
    topic = response_topic and response_topic.replace("BARE", bare.name)
    strange: list[Message] = []
    for topic_filter in ("mqinfer/v1/results/+/somebody/+", "evil"):
        bare.link.subscribe(topic_filter, strange.append)
    message = binary(bare)
    request = InferRequest("ab" * 16, "echo", (encode_tensor("x", X),), response_topic=topic)
    with caplog.at_level(logging.CRITICAL, "mqinfer"):
        bare.link.publish(replace(message, response_topic=topic, payload=encode_request(request)))
        assert ask(bare, binary(bare, "cd" * 16)).outcome is Outcome.OK
    assert worker.counters() == {"dropped_bad_topic": 1, "ok": 1}
    assert len(backend.runs) == 1
    assert strange == []


def test_the_headers_reply_topic_serves_a_link_without_properties(
    url: str, serve: Serve, gated: Gated, bare: Any
) -> None:
    """Over MQTT 3.1.1 everything stands in the header."""
    serve(url, gated()[0])
    message = binary(bare)
    plain = Message(message.topic, message.payload)
    assert ask(bare, plain).outcome is Outcome.OK


def test_a_request_that_comes_twice_runs_once(url: str, serve: Serve, gated: Gated, bare: Any) -> None:
    """While it runs the second copy is ignored; afterwards it gets the same reply from memory."""
    model, backend = gated()
    worker = serve(url, model)
    backend.gate.clear()
    message = binary(bare)
    bare.link.publish(message)
    assert backend.entered.acquire(timeout=10)
    bare.link.publish(message)
    bare.link.publish(binary(bare, "cd" * 16))
    until(lambda: worker.counters().get("duplicates") == 1)
    backend.gate.set()
    first = bare.next()
    assert read(bare.next()).id == "cd" * 16
    bare.link.publish(message)
    assert bytes(bare.next().payload) == bytes(first.payload)
    assert backend.runs == [1, 1]
    assert worker.counters() == {"ok": 2, "duplicates": 2}


def test_ids_of_different_clients_are_different(
    url: str, serve: Serve, gated: Gated, bare: Any, unique: Callable[[str], str]
) -> None:
    """The same id from another client is another request."""
    model, backend = gated()
    serve(url, model)
    assert ask(bare, binary(bare)).outcome is Outcome.OK
    other = make_link(url, client_id=unique("other"))
    other.open()
    other.publish(replace(binary(bare), topic=TOPICS.infer("echo", "other")))  # foreign reply topic: not answered
    other.close()
    assert ask(bare, binary(bare, "cd" * 16)).outcome is Outcome.OK
    assert backend.runs == [1, 1]


def test_a_busy_worker_refuses_at_once_and_the_client_tries_again(
    url: str, serve: Serve, gated: Gated, bare: Any, unique: Callable[[str], str]
) -> None:
    """Above its capacity a worker answers `rejected` without a run; a client's request comes again and is served."""
    model, backend = gated()
    worker = serve(url, model, capacity=1)
    backend.gate.clear()
    with Client(url, name=unique("client")) as client:
        running = client.submit("echo", {"x": X})
        assert backend.entered.acquire(timeout=10)
        reply = ask(bare, binary(bare))
        assert reply.outcome is Outcome.REJECTED
        assert reply.id == "ab" * 16
        assert reply.error
        assert "1 requests in hand" in reply.error.message
        retried = client.submit("echo", {"x": X}, timeout=30)
        while worker.counters().get("rejected", 0) < 3:
            bare.link.publish(binary(bare))
            bare.next()
        backend.gate.set()
        assert running.result(10).outcome is retried.result(30).outcome is Outcome.OK
        assert ask(bare, binary(bare)).outcome is Outcome.OK


def test_expired_requests_are_not_run(url: str, serve: Serve, gated: Gated, bare: Any) -> None:
    """A request whose time is over is answered before it is decoded."""
    model, backend = gated()
    serve(url, model)
    broken = replace(encode_tensor("x", X, "lz4"), data=b"broken")
    reply = ask(bare, binary(bare, timeout_us=0, inputs=(broken,)))
    assert reply.outcome is Outcome.EXPIRED
    assert ask(bare, binary(bare, "cd" * 16, timeout_us=10_000_000)).outcome is Outcome.OK
    assert backend.runs == [1]


def test_requests_that_expire_in_the_queue_are_not_run(
    url: str, gated: Gated, bare: Any, unique: Callable[[str], str]
) -> None:
    """The deadline is looked at again when the batch is about to run."""
    model, backend = gated()
    now = [0.0]

    def connect(name: str, will: Message, handler: Callable[[bool], None]) -> Link:
        return make_link(url, client_id=name, will=will, on_connection=handler)

    worker = Worker(model, connect, WorkerOptions(unique("worker")), clock=lambda: now[0])
    worker.start()
    backend.gate.clear()
    bare.link.publish(binary(bare))
    assert backend.entered.acquire(timeout=10)
    bare.link.publish(binary(bare, "cd" * 16, timeout_us=1_000_000))
    until(lambda: len(worker._crew._batcher) == 1)
    now[0] = 2.0
    backend.gate.set()
    outcomes = {reply.id: reply for reply in (read(bare.next()), read(bare.next()))}
    assert outcomes["ab" * 16].outcome is Outcome.OK
    late = outcomes["cd" * 16]
    assert late.outcome is Outcome.EXPIRED
    assert late.error
    assert "in the queue" in late.error.message
    assert backend.runs == [1]
    worker.stop()


def test_waiting_requests_share_a_run(url: str, serve: Serve, gated: Gated, bare: Any) -> None:
    """What comes while one batch runs is the next batch, and each request gets its own rows."""
    model, backend = gated(config="[dynamic_batching]\nmax_queue_delay_microseconds = 0")
    worker = serve(url, model)
    backend.gate.clear()
    bare.link.publish(binary(bare))
    assert backend.entered.acquire(timeout=10)
    ids = [f"{number:032x}" for number in range(1, 6)]
    for number, request_id in enumerate(ids):
        mine = encode_tensor("x", np.full((1, 4), number, np.float32))
        bare.link.publish(binary(bare, request_id, inputs=(mine,)))
    until(lambda: len(worker._crew._batcher) == 5)
    backend.gate.set()
    replies = {reply.id: reply for reply in (read(bare.next()) for _ in range(6))}
    for number, request_id in enumerate(ids):
        assert np.frombuffer(replies[request_id].outputs[0].data, np.float32)[0] == number
    assert backend.runs == [1, 5]


def test_a_delay_gathers_a_batch(url: str, serve: Serve, gated: Gated, bare: Any) -> None:
    """With `max_queue_delay` requests wait for others until the batch is full."""
    model, backend = gated(config="max_batch_size = 2")
    slow = replace(model.config, dynamic_batching=DynamicBatching(max_queue_delay_microseconds=20_000_000))
    serve(url, replace(model, config=slow))
    bare.link.publish(binary(bare))
    bare.link.publish(binary(bare, "cd" * 16))
    assert {read(bare.next()).outcome for _ in range(2)} == {Outcome.OK}
    assert backend.runs == [2]


def test_a_flood_leaves_room_for_another_client(
    url: str, serve: Serve, gated: Gated, bare: Any, unique: Callable[[str], str]
) -> None:
    """When the worker is full, a client that has less than its share is taken in, and the flood's last is refused."""
    model, backend = gated(config="max_batch_size = 1")
    worker = serve(url, model, capacity=6)
    backend.gate.clear()
    flood = [f"{number:032x}" for number in range(6)]
    for request_id in flood:
        bare.link.publish(binary(bare, request_id))
    assert backend.entered.acquire(timeout=10)
    until(lambda: worker._crew.depth == 6)
    with Client(url, name=unique("client")) as client:
        mine = client.submit("echo", {"x": X}, timeout=30)
        refused = read(bare.next())
        assert (refused.outcome, refused.id) == (Outcome.REJECTED, flood[-1])
        backend.gate.set()
        assert mine.result(30).outcome is Outcome.OK
        assert client.counters().retries == 0
    assert [read(bare.next()).id for _ in range(5)] == flood[:5]


@pytest.mark.parametrize(
    ("levels", "order"), [("priority_levels = 3\ndefault_priority_level = 2", [3, 1, 2]), ("", [1, 2, 3])]
)
def test_priorities_as_configured(
    url: str, serve: Serve, gated: Gated, bare: Any, levels: str, order: list[int]
) -> None:
    """With levels, 1 goes first and 0 is the default level; without them `priority` changes nothing."""
    model, backend = gated(config=f"max_batch_size = 1\n[dynamic_batching]\n{levels}")
    worker = serve(url, model)
    backend.gate.clear()
    bare.link.publish(binary(bare))
    assert backend.entered.acquire(timeout=10)
    for number, priority in ((1, 0), (2, 3), (3, 1)):
        bare.link.publish(binary(bare, f"{number:032x}", priority=priority))
    until(lambda: len(worker._crew._batcher) == 3)
    backend.gate.set()
    assert [int(read(bare.next()).id, 16) for _ in range(4)][1:] == order


def test_a_queue_is_as_long_as_configured(url: str, serve: Serve, gated: Gated, bare: Any) -> None:
    """Beside the one that runs `max_queue_size` wait; one more is refused."""
    policy = "default_queue_policy = { max_queue_size = 2 }"
    model, backend = gated(config=f"max_batch_size = 1\n[dynamic_batching]\n{policy}")
    worker = serve(url, model)
    backend.gate.clear()
    bare.link.publish(binary(bare))
    assert backend.entered.acquire(timeout=10)
    for number in range(2):
        bare.link.publish(binary(bare, f"{number:032x}"))
    until(lambda: len(worker._crew._batcher) == 2)
    reply = ask(bare, binary(bare, "cd" * 16))
    assert (reply.outcome, reply.id) == (Outcome.REJECTED, "cd" * 16)
    assert reply.error
    assert "2 requests wait" in reply.error.message
    backend.gate.set()
    assert {read(bare.next()).outcome for _ in range(3)} == {Outcome.OK}


def test_a_queue_gives_a_deadline(url: str, serve: Serve, gated: Gated, bare: Any) -> None:
    """`default_timeout_microseconds` holds for requests without a deadline, and for those that would wait longer."""
    policy = "default_queue_policy = { default_timeout_microseconds = 1 }"
    model, backend = gated(config=f"[dynamic_batching]\n{policy}")
    serve(url, model)
    assert ask(bare, binary(bare)).outcome is Outcome.EXPIRED
    assert ask(bare, binary(bare, "cd" * 16, timeout_us=10_000_000)).outcome is Outcome.EXPIRED
    assert backend.runs == []


def test_replies_of_a_stream_keep_its_order(url: str, serve: Serve, gated: Gated, bare: Any) -> None:
    """With `preserve_ordering` and frames of one source, replies come as the frames were sent, whatever is quicker."""
    model, _ = gated(config="max_batch_size = 2\n[dynamic_batching]\npreserve_ordering = true")
    serve(url, model, threads=4)
    ids = [f"{number:032x}" for number in range(40)]
    for number, request_id in enumerate(ids):
        capture = Capture(source="camera", sequence=number)
        tensor = encode_tensor("x", X, "raw" if number % 3 else "lz4")
        bare.link.publish(binary(bare, request_id, inputs=(tensor,), capture=capture))
    assert [read(bare.next()).id for _ in ids] == ids


# --- JSON, by bare MQTT ---


@pytest.mark.parametrize("content_type", [None, "application/json", "application/json; charset=utf-8"])
def test_json_is_answered_in_json(url: str, serve: Serve, gated: Gated, bare: Any, content_type: str | None) -> None:
    """A plain publication with the Open Inference Protocol's JSON, with and without its Content Type."""
    serve(url, gated()[0])
    bare.link.publish(text(bare, "  {" + DATA + ', "id": "7"}', content_type=content_type, correlation_data=b"mine"))
    reply = bare.next()
    body = json.loads(bytes(reply.payload))
    assert (reply.content_type, reply.correlation_data) == ("application/json", b"mine")
    assert (body["id"], body["model_name"], body["outputs"][0]["data"]) == ("7", "echo", [0, 1, 2, 3])


def test_json_asks_for_top_classes(url: str, serve: Serve, gated: Gated, bare: Any) -> None:
    """The Open Inference Protocol's own place for it: a parameter of the requested output."""
    serve(url, gated()[0])
    wanted = '"outputs": [{"name": "x", "parameters": {"classification": 2}}]'
    bare.link.publish(text(bare, "{" + DATA + ", " + wanted + "}"))
    (output,) = json.loads(bytes(bare.next().payload))["outputs"]
    assert output == {"name": "x", "datatype": "BYTES", "shape": [1, 2], "data": ["3.0:3", "2.0:2"]}


@pytest.mark.parametrize("identity", ['"id": "1", ', ""])
def test_json_under_the_same_id_is_answered_anew(
    url: str, serve: Serve, gated: Gated, bare: Any, identity: str
) -> None:
    """A script that uses one id, or none, for everything gets an answer to each of its questions."""
    serve(url, gated()[0])
    for number in (1, 2):
        bare.link.publish(text(bare, "{" + identity + DATA.replace("[0, 1", f"[{number}, 1") + "}"))
        body = json.loads(bytes(bare.next().payload))
        assert body["outputs"][0]["data"] == [number, 1, 2, 3]


def test_json_with_a_binary_tail(url: str, serve: Serve, gated: Gated, bare: Any) -> None:
    """The tensor stands behind the JSON, in the request and in the reply."""
    serve(url, gated()[0])
    head = json.dumps(
        {
            "id": "1",
            "parameters": {"binary_data_output": True},
            "inputs": [
                {"name": "x", "datatype": "FP32", "shape": [1, 4], "parameters": {"binary_data_size": X.nbytes}}
            ],
        }
    )
    message = text(bare, head, user_properties=((HEADER_LENGTH, str(len(head))),))
    bare.link.publish(replace(message, payload=head.encode() + X.tobytes()))
    reply = bare.next()
    length = int(dict(reply.user_properties)[HEADER_LENGTH])
    assert json.loads(bytes(reply.payload)[:length])["outputs"][0]["parameters"]["binary_data_size"] == X.nbytes
    np.testing.assert_array_equal(np.frombuffer(bytes(reply.payload)[length:], np.float32), X[0])


@pytest.mark.parametrize(
    ("body", "length", "code"),
    [
        ("{", None, "bad_envelope"),
        ("{}", None, "bad_tensor"),
        ("{" + DATA + "}", "x", "bad_envelope"),
        ("{" + DATA + "}", "9" * 5000, "bad_envelope"),
        ("{" + DATA + "}", "100000", "bad_envelope"),
        ("{" + DATA.replace("FP32", "FP99") + "}", None, "bad_tensor"),
        ("{" + DATA.replace("[1, 4]", "[9999999999, 9999999999]") + "}", None, "limit_exceeded"),
        ("{" + DATA.replace("3]", "3, 4]") + "}", None, "bad_tensor"),
    ],
)
def test_bad_json_is_answered_by_its_error(
    url: str, serve: Serve, gated: Gated, bare: Any, body: str, length: str | None, code: str
) -> None:
    """The reply says in JSON what is wrong, and the next request works."""
    serve(url, gated()[0])
    properties = () if length is None else ((HEADER_LENGTH, length),)
    bare.link.publish(text(bare, body, user_properties=properties, content_type="application/json"))
    reply = json.loads(bytes(bare.next().payload))
    assert reply["parameters"]["error_code"] == code, reply
    bare.link.publish(text(bare, "{" + DATA + "}"))
    assert "outputs" in json.loads(bytes(bare.next().payload))


# --- bad input, binary ---


def header(bare: Any, old: bytes, new: bytes) -> bytes:
    """Change bytes of a good request's header, of the same length."""
    payload = bytes(binary(bare).payload)
    assert payload.count(old) == 1
    assert len(old) == len(new)
    return payload.replace(old, new)


LZ4_BOMB = EncodedTensor(
    "x", encode_tensor("x", X).datatype, (25_000_000_000, 4), "lz4", lz4.block.compress(b"a" * 64, store_size=False)
)
LZ4_LIAR = replace(LZ4_BOMB, shape=(1, 4), data=lz4.block.compress(bytes(1 << 20), store_size=False))


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (lambda _: b"", "bad_envelope"),
        (lambda _: b"MQI0" + bytes(60), "bad_envelope"),
        (lambda _: b"MQI1" + (1 << 31).to_bytes(4, "little") + bytes(56), "bad_envelope"),
        (lambda _: b"MQI1" + b"\x04\x00\x00\x00" + b"\xc1\xc1\xc1\xc1" + bytes(52), "bad_envelope"),
        (lambda bare: bytes(binary(bare).payload)[:-64], "bad_tensor"),
        (lambda bare: binary(bare, inputs=(LZ4_BOMB,)).payload, "limit_exceeded"),
        (lambda bare: binary(bare, inputs=(LZ4_LIAR,)).payload, "bad_encoding"),
        (lambda bare: binary(bare, inputs=(replace(LZ4_LIAR, encoding="jpeg"),)).payload, "bad_encoding"),
        (lambda bare: binary(bare, inputs=(replace(LZ4_LIAR, encoding="zip"),)).payload, "bad_encoding"),
        (
            lambda bare: binary(bare, inputs=(replace(LZ4_LIAR, shape=(1 << 62, 1 << 62), data=b""),)).payload,
            "limit_exceeded",
        ),
    ],
)
def test_bad_messages_are_answered_by_their_error(
    url: str, serve: Serve, gated: Gated, bare: Any, make: Callable[[Any], bytes], code: str
) -> None:
    """Wrong magic, a header beyond the payload, an overflowing shape, LZ4 bombs: a typed reply, and on it goes."""
    serve(url, gated()[0])
    reply = ask(bare, replace(binary(bare), payload=make(bare)))
    assert (reply.id, reply.outcome) == ("ab" * 16, Outcome.ERROR)
    assert reply.error
    assert reply.error.code == code, reply.error
    assert ask(bare, binary(bare, "cd" * 16)).outcome is Outcome.OK


# --- damage on the way ---


def test_a_damaged_request_is_not_run_and_not_blamed(url: str, serve: Serve, gated: Gated, bare: Any) -> None:
    """Whatever its bytes say by now: it is rejected, so that it is sent again; then it runs under the same id."""
    model, backend = gated()
    worker = serve(url, model)
    good = binary(bare)
    payload = bytes(good.payload)
    stated = replace(good, user_properties=(checksum((payload,)),))
    for place in (0, 5, 20, len(payload) - 1):
        damaged = bytearray(payload)
        damaged[place] ^= 1
        reply = ask(bare, replace(stated, payload=bytes(damaged)))
        assert (reply.id, reply.outcome) == ("ab" * 16, Outcome.REJECTED)
        assert reply.error
        assert reply.error.code == "corrupted"
    assert backend.runs == []
    assert ask(bare, stated).outcome is Outcome.OK
    assert worker.counters() == {"rejected": 4, "corrupted": 4, "ok": 1}


def test_a_damaged_request_is_answered_nowhere_but_where_any_other_would_be(
    url: str, serve: Serve, gated: Gated, bare: Any
) -> None:
    """Its properties may be damaged as well, so the Response Topic is checked as ever."""
    worker = serve(url, gated()[0])
    wrong = (CHECKSUM, "0" * 8)
    for topic in (None, "mqinfer/v1/results/echo/bard/1", "mqinfer/v1/state"):
        bare.link.publish(replace(binary(bare), response_topic=topic, user_properties=(wrong,)))
    assert ask(bare, binary(bare)).outcome is Outcome.OK
    assert worker.counters() == {"dropped_corrupted": 3, "corrupted": 3, "ok": 1}


@pytest.mark.parametrize("make", [binary, lambda bare: text(bare, "{" + DATA + "}")])
def test_every_reply_carries_its_checksum(url: str, serve: Serve, gated: Gated, bare: Any, make: Any) -> None:
    """Results and errors, in both forms; a request in JSON that has one is held to it."""
    serve(url, gated()[0])
    for request in (
        make(bare),
        replace(make(bare), payload=b"{"),
        replace(make(bare), user_properties=((CHECKSUM, ""),)),
    ):
        bare.link.publish(request)
        reply = bare.next()
        assert checksum((reply.payload,)) in reply.user_properties
    assert b"corrupted" in bytes(reply.payload)


def test_a_reply_above_the_brokers_limit_is_an_error_reply(url: str, serve: Serve, gated: Gated, bare: Any) -> None:
    """The sender learns that there was a result and why it could not come; the reply is counted once."""
    worker = serve(url, gated("echo", ("x", "FP32", [-1, 1000]))[0])
    wide = encode_tensor("x", np.zeros((1, 1000), np.float32), "lz4")
    bare.link._broker.max_packet_size = 2000
    reply = ask(bare, binary(bare, inputs=(wide,)))
    assert reply.error
    assert reply.error.code == "message_too_large"
    assert worker.counters() == {"error": 1}


def test_an_answer_that_does_not_fit_at_all_is_counted(
    url: str, serve: Serve, gated: Gated, bare: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Where not even the error fits through, the worker says so to its log and goes on."""
    model, backend = gated()
    worker = serve(url, model)
    backend.gate.clear()
    bare.link.publish(binary(bare))
    assert backend.entered.acquire(timeout=10)
    limit, bare.link._broker.max_packet_size = bare.link._broker.max_packet_size, 200
    with caplog.at_level(logging.CRITICAL, "mqinfer"):
        backend.gate.set()
        assert worker._crew.drain(10)
    bare.link._broker.max_packet_size = limit
    assert worker.counters() == {"dropped_message_too_large": 1}
    assert ask(bare, binary(bare, "cd" * 16)).outcome is Outcome.OK


def test_a_defect_is_answered_and_leaves_nothing_behind(
    url: str, serve: Serve, gated: Gated, bare: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """What should never be raised costs one request, which is told so and may come again."""
    worker = serve(url, gated()[0])
    prepare = worker._service.prepare

    def broken(_: InferRequest) -> Any:
        raise ZeroDivisionError

    worker._service.prepare = broken  # type: ignore[method-assign,assignment]
    with caplog.at_level(logging.CRITICAL, "mqinfer"):
        reply = ask(bare, binary(bare))
    assert reply.error
    assert (reply.error.code, "ZeroDivisionError" in reply.error.message) == ("internal", True)
    worker._service.prepare = prepare  # type: ignore[method-assign]
    assert ask(bare, binary(bare, "cd" * 16)).outcome is Outcome.OK
    assert worker._crew.depth == 0


# --- stopping ---


def test_draining_answers_everything_in_hand(url: str, serve: Serve, gated: Gated, bare: Any) -> None:
    """Stopping waits for the run and for all that waits behind it."""
    model, backend = gated()
    worker = serve(url, model)
    backend.gate.clear()
    for number in range(5):
        bare.link.publish(binary(bare, f"{number:032x}"))
    assert backend.entered.acquire(timeout=10)
    settle(worker._link)
    stopper = threading.Thread(target=worker.stop)
    stopper.start()
    backend.gate.set()
    assert {read(bare.next()).outcome for _ in range(5)} == {Outcome.OK}
    stopper.join(10)


def test_what_can_not_be_drained_in_time_is_turned_away(
    url: str, serve: Serve, gated: Gated, bare: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """After the time-out the run in hand is still finished, and the rest is answered `rejected`."""
    model, backend = gated(config="max_batch_size = 1")
    worker = serve(url, model, threads=1)
    backend.gate.clear()
    for number in range(4):
        bare.link.publish(binary(bare, f"{number:032x}"))
    assert backend.entered.acquire(timeout=10)
    settle(worker._link)
    with caplog.at_level(logging.CRITICAL, "mqinfer"):
        stopper = threading.Thread(target=worker.stop, args=(0.0,))
        stopper.start()
        until(lambda: worker._crew._closing)
        backend.gate.set()
        stopper.join(10)
    outcomes = [read(bare.next()).outcome for _ in range(4)]
    assert sorted(outcomes) == [Outcome.OK, *3 * [Outcome.REJECTED]]


def test_a_reply_that_can_not_be_sent_is_kept_for_the_retry(url: str, serve: Serve, gated: Gated, bare: Any) -> None:
    """A worker that lost its connection while it ran answers the retry from memory."""
    model, backend = gated()
    worker = serve(url, model)
    link = worker._link
    assert isinstance(link, MemoryLink)
    backend.gate.clear()
    bare.link.publish(binary(bare))
    assert backend.entered.acquire(timeout=10)
    link.drop()
    backend.gate.set()
    assert worker._crew.drain(10)
    link.restore()
    settle(link)
    assert ask(bare, binary(bare)).outcome is Outcome.OK
    assert backend.runs == [1]
    assert worker.counters()["replies_held_back"] == 1


def test_a_worker_that_can_not_connect_leaves_nothing_behind(gated: Gated) -> None:
    """The error is raised, and no thread is left (the fixture looks)."""
    model, _ = gated()

    def connect(name: str, will: Message, handler: Callable[[bool], None]) -> Link:
        return make_link("mqtt://127.0.0.1:1", client_id=name, will=will, on_connection=handler)

    worker = Worker(model, connect, WorkerOptions("w"))
    with pytest.raises(BrokerUnreachable):
        worker.start(2)


@pytest.mark.broker
def test_four_workers_share_the_work_over_mosquitto(
    broker_url: str, serve: Serve, write_echo: WriteEcho, unique: Callable[[str], str]
) -> None:
    """Competing workers take turns, and each request is answered once."""
    model = unique("echo")
    repository = write_echo(model, delay_ms=5)
    workers = [serve(broker_url, repository, model) for _ in range(4)]
    with Client(broker_url, name=unique("client")) as client:
        results = [f.result(60) for f in [client.submit(model, {"x": X}, timeout=60) for _ in range(200)]]
        counts = {worker.name: sum(result.worker == worker.name for result in results) for worker in workers}
        assert min(counts.values()) >= 40, counts
        assert client.counters().outcomes[Outcome.OK] == client.counters().submitted == 200
        assert client.counters().late == 0
