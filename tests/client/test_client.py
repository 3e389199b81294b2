from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis.extra import numpy as hnp
from msgspec.structs import replace

from mqinfer import Capture, Client, ClientOptions, InferResult, Outcome
from mqinfer.broker.link import Message
from mqinfer.client.request import Input
from mqinfer.codecs import encode_tensor
from mqinfer.errors import (
    BadEncoding,
    BadTensor,
    BadTopic,
    BrokerUnreachable,
    Cancelled,
    Expired,
    ModelFailed,
    ModelNotFound,
    MqinferError,
    Rejected,
)
from mqinfer.protocol.card import ModelCard, card_to_json
from mqinfer.protocol.topics import Topics
from mqinfer.protocol.types import InferResponse
from tests.client.conftest import MakeClient, Serve, WriteEcho
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.usefixtures("patient")

X = np.arange(8, dtype=np.float32).reshape(2, 4)


def test_a_result_says_what_where_and_how_long(url: str, client: Client, serve: Serve, write_echo: WriteEcho) -> None:
    """Outputs, model, version, hash, worker, capture and the time split come back."""
    worker = serve(url, write_echo(delay_ms=5))
    capture = Capture("/camera", 7, 1_700_000_000_123_456_789, "front")
    result = client.infer("echo", {"x": X}, capture=capture)
    np.testing.assert_array_equal(result.outputs["x"], X)
    assert (result.outcome, result.error, result.attempts) == (Outcome.OK, None, 1)
    assert (result.model_name, result.model_version, result.worker) == ("echo", "1", worker.name)
    assert result.model_hash.startswith("sha256:")
    assert result.stage == "worker"
    assert result.capture == capture
    assert result.bytes_sent >= X.nbytes
    assert result.timings.inference >= 5_000_000
    assert result.timings.transmission > 0
    assert result.timings.total == result.timings.server + result.timings.client_queue + result.timings.transmission


def test_a_worker_states_its_times_where_it_is_asked(
    url: str, client: Client, serve: Serve, write_echo: WriteEcho
) -> None:
    """When it received the request and when it replied; without the option, nothing."""
    serve(url, write_echo(delay_ms=5))
    assert client.infer("echo", {"x": X}).parameters == {}
    before = time.time_ns()
    result = client.infer("echo", {"x": X}, timestamps=True)
    received, sent = (int(result.parameters[name]) for name in ("received_time_ns", "sent_time_ns"))
    assert before <= received <= sent <= time.time_ns()
    assert sent - received >= result.timings.inference


@given(array=hnp.arrays(hnp.scalar_dtypes().filter(lambda t: t.kind in "fiub" and t.itemsize <= 8), (2, 3)))
def test_any_array_comes_back_as_it_went(array: np.ndarray[Any, Any], echo_of: Callable[[str], Client]) -> None:
    """Each datatype makes the round trip, byte by byte."""
    name = array.dtype.newbyteorder("=").name
    result = echo_of(name).infer(f"echo-{name}", {"x": array})
    np.testing.assert_array_equal(result.outputs["x"], array)


@pytest.fixture
def echo_of(url: str, client: Client, serve: Serve, write_echo: WriteEcho) -> Callable[[str], Client]:
    """A client, with an echo model of a datatype started when it is first asked for."""
    known: set[str] = set()
    words = {"float": "FP", "bool": "BOOL", "int": "INT", "uint": "UINT"}

    def get(name: str) -> Client:
        if name not in known:
            kind = name.rstrip("0123456789")
            datatype = words[kind] + name[len(kind) :]
            serve(url, write_echo(f"echo-{name}", ("x", datatype, [-1, 3])), f"echo-{name}")
            known.add(name)
        return client

    return get


def test_each_output_has_its_codec_and_its_top_classes(
    url: str, client: Client, serve: Serve, write_echo: WriteEcho
) -> None:
    """By name; without a list of outputs, those come that the options name."""
    serve(url, write_echo("echo", ("x", "FP32", [-1, 4]), ("m", "UINT8", [-1, 40])))
    arrays: dict[str, Input] = {"x": X, "m": np.ones((len(X), 40), np.uint8)}
    result = client.infer("echo", arrays, output_encoding={"m": "mask", "x": "lz4"})
    np.testing.assert_array_equal(result.outputs["x"], X)
    assert result.outputs["m"].all()
    result = client.infer("echo", arrays, classification={"x": 1}, output_encoding="lz4")
    assert list(result.outputs) == ["x"]
    assert result.outputs["x"].tolist() == [[f"{row.max():.6f}:{row.argmax()}".encode()] for row in X]


@pytest.mark.parametrize("encoding", ["raw", "lz4", "shuffle-lz4", "lz4:9"])
@pytest.mark.parametrize("output_encoding", [None, "lz4", "shuffle-lz4"])
@pytest.mark.usefixtures("echo")
def test_encodings_of_both_ways(client: Client, encoding: str, output_encoding: str | None) -> None:
    """Codecs of inputs and outputs are chosen on their own."""
    result = client.infer("echo", {"x": X}, encoding=encoding, output_encoding=output_encoding, outputs=["x"])
    np.testing.assert_array_equal(result.outputs["x"], X)


def test_strings_make_the_round_trip(url: str, client: Client, serve: Serve, write_echo: WriteEcho) -> None:
    """BYTES tensors hold strings of any length, empty ones too."""
    serve(url, write_echo("echo", ("text", "BYTES", [-1])))
    words = np.array([b"", "ü".encode(), b"\x00\xff" * 300], object)
    assert list(client.infer("echo", {"text": words}).outputs["text"]) == list(words)


@pytest.mark.usefixtures("echo")
def test_an_encoded_tensor_goes_under_the_name_that_it_is_given(client: Client) -> None:
    """The mapping's key says which input it is, whatever the tensor was called before."""
    result = client.infer("echo", {"x": encode_tensor("other", X, "lz4")})
    np.testing.assert_array_equal(result.outputs["x"], X)


def test_versions_are_asked_by_number(url: str, client: Client, serve: Serve, write_echo: WriteEcho) -> None:
    """A version has its own channel; without one the newest answers."""
    policy = "version_policy = { all = {} }"
    write_echo(version=1, config=policy)
    repository = write_echo(version=2, config=policy)
    old, new = (serve(url, repository, version=version) for version in (1, 2))
    assert client.infer("echo", {"x": X}, version=1).worker == old.name
    assert client.infer("echo", {"x": X}, version="2").model_version == "2"
    assert {client.infer("echo", {"x": X}).worker for _ in range(4)} == {new.name}


def test_the_card_is_there_for_whoever_asks(url: str, client: Client, serve: Serve, write_echo: WriteEcho) -> None:
    """A client reads a model's card; an unknown name is answered with the names that there are."""
    labels = "".join(f'[[classes]]\nname = "{name}"\ncolour = [1, 2, 3]\n' for name in ("road", "sky", "car", "sign"))
    serve(url, write_echo(config=labels))
    card = client.card("echo")
    assert (card.name, card.inputs[0].shape, card.classes[0].name) == ("echo", (-1, 4), "road")
    with pytest.raises(ModelNotFound, match=r"'ecko'.*models on this broker: echo.*mqinfer worker"):
        client.card("ecko", timeout=0.01)


def test_a_card_is_believed_on_its_own_topic_alone(client: Client, hand: Any) -> None:
    """A card that names another model than its topic is neither model's card."""
    own, false = (ModelCard(name="own", versions=("1",), platform=platform) for platform in ("mine", "another"))
    hand.link.publish(Message(Topics().card("own"), card_to_json(own), retain=True))
    hand.link.publish(Message(Topics().card("other"), card_to_json(false), retain=True))
    assert client.card("own").platform == "mine"
    hand.link.publish(Message(Topics().card("other"), card_to_json(false), retain=True))
    with pytest.raises(ModelNotFound, match=r"models on this broker: own\)"):
        client.card("other", timeout=0.01)


def test_a_worker_that_comes_late_is_found(url: str, client: Client, serve: Serve, write_echo: WriteEcho) -> None:
    """A request that finds no worker is sent again until there is one."""
    future = client.submit("echo", {"x": X}, timeout=30)
    serve(url, write_echo())
    result = future.result(30)
    assert result.outcome is Outcome.OK


@pytest.mark.parametrize(
    ("inputs", "options", "error", "words"),
    [
        ({"x": X.astype(np.float64)}, {}, BadTensor, "has datatype FP64; expected FP32"),
        ({"x": X[:, :3]}, {}, BadTensor, r"has shape \[2, 3\]; expected \[-1, 4\]"),
        ({"y": X}, {}, BadTensor, r"takes the inputs \['x'\], not \['y'\]"),
        ({}, {}, BadTensor, "takes the inputs"),
        ({"x": X}, {"outputs": ["z"]}, BadTensor, r"has the outputs \['x'\], not \['z'\]"),
        ({"x": X}, {"output_encoding": "jpeg"}, BadEncoding, "jpeg takes UINT8"),
        ({"x": X}, {"output_encoding": "zip"}, BadEncoding, "unknown encoding 'zip'"),
        ({"x": np.zeros((9, 4), np.float32)}, {}, BadTensor, "at most 8"),
    ],
)
@pytest.mark.usefixtures("echo")
def test_the_workers_refusal_is_raised_by_its_class(
    client: Client, inputs: dict[str, Any], options: dict[str, Any], error: type[MqinferError], words: str
) -> None:
    """What is wrong with a request is said by class and words, and the next request works."""
    with pytest.raises(error, match=words):
        client.infer("echo", inputs, **options)
    np.testing.assert_array_equal(client.infer("echo", {"x": X}).outputs["x"], X)


@pytest.mark.parametrize(
    ("model", "inputs", "options", "error"),
    [
        ("Bad Name", {"x": X}, {}, BadTopic),
        ("echo/+", {"x": X}, {}, BadTopic),
        ("echo", {"x": X}, {"version": "01"}, BadTopic),
        ("echo", {"x": X}, {"encoding": "zip"}, BadEncoding),
        ("echo", {"x": X.astype(np.complex64)}, {}, BadTensor),
    ],
)
def test_what_can_not_be_sent_is_said_at_once(
    client: Client, model: str, inputs: dict[str, Any], options: dict[str, Any], error: type[MqinferError]
) -> None:
    """A request that can't be made is no request: the counters stay in balance (checked at the end)."""
    with pytest.raises(error):
        client.infer(model, inputs, **options)
    assert client.counters().pending == 0


def test_a_failing_model_raises_model_failed(url: str, client: Client, serve: Serve, write_echo: WriteEcho) -> None:
    """The engine's error comes back by class, and the next request works."""
    serve(url, write_echo(fail_every=2))
    client.infer("echo", {"x": X})
    with pytest.raises(ModelFailed, match="run 2"):
        client.infer("echo", {"x": X})
    client.infer("echo", {"x": X})


def test_a_slow_model_expires(url: str, client: Client, serve: Serve, write_echo: WriteEcho) -> None:
    """The client gives up at the deadline, and the reply that comes later is counted as late."""
    serve(url, write_echo(delay_ms=200))
    with pytest.raises(Expired, match=r"no reply within 0.05 s and 1 attempt"):
        client.infer("echo", {"x": X}, timeout=0.05)
    assert client.infer("echo", {"x": X}, timeout=10).outcome is Outcome.OK
    assert client.counters().late == 1


def test_closing_cancels_what_is_unanswered(url: str, make_client: MakeClient, hand: Any) -> None:
    """Requests in flight, resting and waiting all end as cancelled; a later one is refused."""
    client = make_client(url, options=ClientOptions(window=1))
    futures = [client.submit("manual", {"x": X}) for _ in range(3)]
    hand.next()
    client.close()
    for future in futures:
        with pytest.raises(Cancelled, match="closed before"):
            future.result(PATIENCE_S)
    with pytest.raises(Cancelled, match="make a new one"):
        client.infer("manual", {"x": X})
    assert client.counters().outcomes[Outcome.CANCELLED] == 3


def test_nobody_listens_at_the_address() -> None:
    """A wrong address is said by name, and no thread is left."""
    with pytest.raises(BrokerUnreachable, match=r"127\.0\.0\.1:1"):
        Client("mqtt://127.0.0.1:1", connect_timeout=2)


def test_a_wrong_name(url: str) -> None:
    """A client's name keeps the naming rules."""
    with pytest.raises(BadTopic, match="client 'Front Camera'"):
        Client(url, name="Front Camera")


@pytest.mark.parametrize("window", [1, 3, 16])
def test_many_threads_share_one_client(
    url: str, make_client: MakeClient, serve: Serve, write_echo: WriteEcho, window: int
) -> None:
    """Hundreds of requests from many threads through a smaller window: each caller gets its own answer."""
    serve(url, write_echo(delay_ms=0.2))
    client = make_client(url, options=ClientOptions(window=window))

    def ask(number: int) -> bool:
        mine = np.full((1 + number % 3, 4), number, np.float32)
        return np.array_equal(client.infer("echo", {"x": mine}, timeout=60).outputs["x"], mine)

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(ask, range(300)))
    counters = client.counters()
    assert counters.outcomes[Outcome.OK] == counters.submitted == 300


def test_the_window_holds(url: str, make_client: MakeClient, hand: Any) -> None:
    """No more than the window is sent; every reply lets the next one go, in the order of asking."""
    client = make_client(url, options=ClientOptions(window=2))
    futures = [client.submit("manual", {"x": np.full(1, n, np.int64)}) for n in range(5)]
    first, second = hand.next(), hand.next()
    assert hand.requests.empty()
    hand.answer(second, {"y": X})
    third = hand.next()
    assert hand.requests.empty()
    for request in (first, third):
        hand.answer(request, {"y": X})
    for _ in range(2):
        hand.answer(hand.next(), {"y": X})
    assert all(future.result(PATIENCE_S).outcome is Outcome.OK for future in futures)


def test_a_future_that_is_cancelled_does_not_disturb(client: Client, hand: Any) -> None:
    """The reply to a future that its owner has cancelled is taken in all the same."""
    future = client.submit("manual", {"x": X})
    request = hand.next()
    assert future.cancel()
    hand.answer(request, {"y": X})
    with pytest.raises(CancelledError):
        future.result(0)
    other = client.submit("manual", {"x": X})
    hand.answer(hand.next(), {"y": X})
    assert other.result(PATIENCE_S).outcome is Outcome.OK


def test_unreadable_replies_are_counted_and_the_next_one_is_taken(client: Client, hand: Any) -> None:
    """Bytes that are no reply cost nothing but a count."""
    future = client.submit("manual", {"x": X})
    request = hand.next()
    for payload in (b"", b"nonsense", b"MQI1\xff\xff\xff\xff", b"MQI1" + bytes(60)):
        hand.send(request, payload)
    hand.answer(request, {"y": X})
    assert future.result(PATIENCE_S).outcome is Outcome.OK
    assert client.counters().malformed == 4


def test_a_reply_whose_tensor_can_not_be_decoded_is_an_error(client: Client, hand: Any) -> None:
    """The caller learns that there was a reply, and what is wrong with it."""
    future = client.submit("manual", {"x": X})
    tensor = encode_tensor("y", X, "lz4")
    request = hand.next()
    broken = replace(tensor, data=bytes(memoryview(tensor.data))[:-1])
    hand.reply(request, InferResponse(request.id, "manual", outputs=(broken,)))
    with pytest.raises(BadEncoding, match="the reply can't be decoded"):
        future.result(PATIENCE_S)


def test_duplicates_and_strangers_are_counted_as_late(client: Client, hand: Any) -> None:
    """The first reply is taken, the second and one for an id that never was are counted."""
    future = client.submit("manual", {"x": X})
    request = hand.next()
    hand.answer(request, {"y": X})
    hand.answer(request, {"y": X}, "lz4")
    future.result(PATIENCE_S)
    other = client.submit("manual", {"x": X})
    second = hand.next()
    hand.reply(second, InferResponse("0" * 32, "manual"))
    hand.answer(second, {"y": X})
    other.result(PATIENCE_S)
    client.close()
    assert client.counters().late == 2


def test_a_busy_answer_is_tried_again(client: Client, hand: Any) -> None:
    """Rejected is no outcome while there is patience: the request comes again under the same id, with its attempt."""
    future = client.submit("manual", {"x": X})
    first = hand.next()
    hand.refuse(first, Rejected("busy"))
    second = hand.next()
    assert (second.id, second.attempt) == (first.id, 2)
    assert second.timeout_us is not None
    assert first.timeout_us is not None
    assert second.timeout_us < first.timeout_us
    hand.answer(second, {"y": X})
    assert future.result(PATIENCE_S).attempts == 2
    assert client.counters().retries == 1


def test_a_full_table_holds_the_caller_until_there_is_room(url: str, make_client: MakeClient, hand: Any) -> None:
    """`submit` waits when `max_pending` requests are pending, and goes on with the next outcome."""
    client = make_client(url, options=ClientOptions(max_pending=2))
    waiting = [client.submit("manual", {"x": X}) for _ in range(2)]
    done: Future[Future[InferResult]] = Future()
    thread = threading.Thread(target=lambda: done.set_result(client.submit("manual", {"x": X})))
    thread.start()
    first = hand.next()
    hand.next()
    assert hand.requests.empty()
    assert not done.done()
    hand.answer(first, {"y": X})
    thread.join(PATIENCE_S)
    third = hand.next()
    hand.answer(third, {"y": X})
    assert done.result(10).result(PATIENCE_S).outcome is Outcome.OK
    assert waiting[0].result(PATIENCE_S).outcome is Outcome.OK


def test_a_full_table_holds_nobody_beyond_the_timeout(url: str, make_client: MakeClient, hand: Any) -> None:
    """Who finds no room within the timeout is told so in time."""
    client = make_client(url, options=ClientOptions(max_pending=1))
    client.submit("manual", {"x": X}, timeout=60)
    hand.next()
    with pytest.raises(Expired, match="1 requests are pending"):
        client.infer("manual", {"x": X}, timeout=0.02)


def test_closing_frees_who_waits_for_room(url: str, make_client: MakeClient, hand: Any) -> None:
    """A caller that waits for room is told that the client was closed."""
    client = make_client(url, options=ClientOptions(max_pending=1))
    client.submit("manual", {"x": X}, timeout=60)
    hand.next()
    raised: Future[BaseException | None] = Future()
    thread = threading.Thread(target=lambda: raised.set_result(_raised(client)))
    thread.start()
    client.close()
    thread.join(PATIENCE_S)
    assert isinstance(raised.result(0), Cancelled)


def _raised(client: Client) -> BaseException | None:
    try:
        client.submit("manual", {"x": X}, timeout=60)
    except MqinferError as error:
        return error
    return None
