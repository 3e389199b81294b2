"""Results of other clients over the in-memory link and over Mosquitto, for threads and for asyncio."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from mqinfer import AsyncClient, Capture, Client, DropReason, SeenPreview, SeenResult, Watch
from mqinfer.broker import make_link
from mqinfer.broker.link import Link, Message
from mqinfer.broker.memory import MemoryBroker, MemoryLink
from mqinfer.broker.mosquitto.server import MosquittoServer
from mqinfer.client.watching.feed import WatchFeed, WatchSettings
from mqinfer.cloud_worker.serving.worker import Worker
from mqinfer.codecs import encode_tensor
from mqinfer.errors import BadTopic, Cancelled, ConfigError, NotAuthorized
from mqinfer.protocol.checksum import checksum
from mqinfer.protocol.envelope import encode_response
from mqinfer.protocol.topics import Topics
from mqinfer.protocol.types import InferResponse
from tests.asynchronous import in_loop
from tests.patience import wait_until

T = Topics()
X = np.arange(8, dtype=np.float32).reshape(2, 4)
WAIT = 60.0


@pytest.fixture(params=["memory", pytest.param("mosquitto", marks=pytest.mark.broker)])
def site(request: pytest.FixtureRequest, unique: Callable[[str], str]) -> str:
    """URL of a broker."""
    return f"memory://{unique('broker')}" if request.param == "memory" else str(request.getfixturevalue("broker_url"))


class Publisher:
    """Publishes results and previews as workers and edges do."""

    def __init__(self, link: Link, model: str) -> None:
        self.link, self.model = link, model

    def send(self, topic: str, payload: bytes, **properties: Any) -> None:
        """Publish any bytes."""
        self.link.publish(Message(topic, payload, **properties))

    def result(self, client: str, number: int, *, size: int = 8, **how: Any) -> InferResponse:
        """Publish a result."""
        request, outputs = f"{number:032x}", (encode_tensor("y", np.zeros((1, size), np.uint8)),)
        capture = Capture("/camera", number, 1000 + number)
        reply = replace(InferResponse(request, self.model, "1", outputs=outputs, worker="w.0", capture=capture), **how)
        payload = encode_response(reply)
        self.send(T.result(self.model, client, request), payload, user_properties=(checksum([payload]),))
        return reply

    def preview(self, client: str, number: int, model: str | None = None, **how: Any) -> None:
        """Publish a preview."""
        reply = InferResponse(
            f"{number:032x}",
            model or self.model,
            outputs=(encode_tensor("preview", np.zeros((4, 6, 3), np.uint8), "jpeg"),),
            capture=Capture("/camera", number, 1000 + number),
            parameters={"picture_width": 12, "picture_height": 8},
        )
        self.send(T.preview(client, "/camera"), encode_response(replace(reply, **how)), qos=0)


@pytest.fixture
def publisher(site: str, unique: Callable[[str], str]) -> Iterator[Publisher]:
    """A link that publishes results of a model of this test's own."""
    with ExitStack() as stack:
        link = make_link(site, client_id=unique("publisher"))
        link.open()
        stack.callback(link.close)
        yield Publisher(link, unique("model"))


@pytest.fixture
def client(site: str, unique: Callable[[str], str]) -> Iterator[Client]:
    """A client at this test's broker."""
    with Client(site, name=unique("recorder")) as made:
        yield made


def sequences(watch: Watch[SeenResult], count: int) -> list[int | None]:
    """Take as many results, and return their sequence numbers."""
    found = []
    for _ in range(count):
        seen = watch.next(WAIT)
        assert seen
        found.append(seen.response.capture.sequence)
    return found


def test_results_of_others(client: Client, publisher: Publisher) -> None:
    """They come in order with client, request and time; the books are right; `next` returns None after its time."""
    with client.watch(publisher.model) as results:
        for number in range(5):
            publisher.result(f"car-{number % 2}", number)
        seen = [results.next(WAIT) for _ in range(5)]
        assert [(each.client, each.response.capture.sequence) for each in seen if each] == [
            (f"car-{number % 2}", number) for number in range(5)
        ]
        assert seen[0]
        assert seen[0].request_id == "0" * 32
        assert seen[0].received_ns > 10**18
        assert seen[0].decode().outputs["y"].shape == (1, 8)
        assert results.next(0.01) is None
        assert not results.has_ended
        counters = results.counters()
        assert (counters.received, counters.yielded, counters.dropped) == (5, 5, {})
        with pytest.raises(ConfigError):
            results.next(0)


def test_real_results(
    client: Client,
    site: str,
    write_echo: Callable[..., Path],
    serve: Callable[..., Worker],
    unique: Callable[[str], str],
) -> None:
    """What a worker replies to a client is what a watch sees; the client's own results come, too."""
    model = unique("echo")
    serve(site, write_echo(model), model)
    with client.watch(model) as results, Client(site, name=unique("car")) as car:
        own = [each.infer(model, {"x": X}) for each in (car, client)]
        for caller, result in zip((car, client), own, strict=True):
            seen = results.next(WAIT)
            assert seen
            assert (seen.client, seen.request_id) == (caller.name, result.id)
            decoded = seen.decode()
            np.testing.assert_array_equal(decoded.outputs["x"], X)
            assert (decoded.worker, decoded.model_hash) == (result.worker, result.model_hash)
            assert decoded.timings.inference == result.timings.inference


def test_one_client_and_all_models(client: Client, publisher: Publisher, unique: Callable[[str], str]) -> None:
    """`client` narrows the subscription; without a model those of all come, and no replies of servers."""
    car = unique("car")
    with client.watch(publisher.model, client=car) as one, client.watch(client=car) as every:
        publisher.send(T.control_result(car, "r1"), b"{}")
        publisher.result(unique("other"), 1)
        publisher.result(car, 2)
        assert sequences(one, 1) == [2]
        assert sequences(every, 1) == [2]
        assert every.counters().ignored == 1
        assert one.counters().received == 1


def test_previews(client: Client, publisher: Publisher, unique: Callable[[str], str]) -> None:
    """They come among the results where they are asked for, those of the model alone, and never else."""
    car = unique("car")
    with (
        client.watch(publisher.model, with_previews=True, client=car) as both,
        client.watch(publisher.model, client=car) as plain,
    ):
        publisher.preview(car, 1, model="another")
        publisher.preview(car, 1)
        publisher.send(T.preview(car, "/camera"), bytes(300_000), qos=0)
        publisher.result(car, 1)
        found = {type(each): each for each in (both.next(WAIT), both.next(WAIT))}
        assert set(found) == {SeenPreview, SeenResult}
        preview = found[SeenPreview]
        assert isinstance(preview, SeenPreview)
        assert (preview.picture, preview.response.capture.sequence, preview.decode().shape) == ((12, 8), 1, (4, 6, 3))
        wait_until(lambda: both.counters().dropped == {DropReason.TOO_LARGE: 1})
        assert both.counters().ignored == 1
        assert sequences(plain, 1) == [1]
        assert plain.counters().received == 1


def test_a_slow_consumer(client: Client, publisher: Publisher) -> None:
    """Nobody takes: count and bytes stay within their bounds, the oldest are dropped and counted, the newest stay."""
    with (
        client.watch(publisher.model, buffer=8) as few,
        client.watch(publisher.model, buffer_bytes=100_000) as small,
    ):
        for number in range(200):
            publisher.result("car", number, size=10_000)
        wait_until(lambda: few.counters().received == small.counters().received == 200)
        assert few.counters().buffered == 8
        assert few.counters().dropped == {DropReason.OVERFLOW: 192}
        assert sequences(few, 8) == list(range(192, 200))
        assert small.counters().buffered_bytes <= 100_000
        assert 1 <= small.counters().buffered <= 9
        assert small.counters().buffered + small.counters().dropped[DropReason.OVERFLOW] == 200


def test_a_flood_of_bytes_takes_bounded_memory(
    client: Client, publisher: Publisher, takes_at_most: Callable[[int], Any]
) -> None:
    """100 MB that nobody takes leave the buffer at its bound."""
    with client.watch(publisher.model, buffer_bytes=2_000_000) as results, takes_at_most(40_000_000):
        for number in range(100):
            publisher.result("car", number, size=1_000_000)
            wait_until(lambda expected=number + 1: results.counters().received == expected)  # type: ignore[misc]
        assert results.counters().dropped == {DropReason.OVERFLOW: 99}


def test_what_is_dropped(client: Client, publisher: Publisher) -> None:
    """Each broken message is counted under its reason, and the next good one comes all the same."""
    payload = encode_response(InferResponse("r1", publisher.model))
    topic = T.result(publisher.model, "car", "r1")
    with client.watch(publisher.model) as results:
        publisher.send(topic, b"junk")
        publisher.send(topic, payload, user_properties=(("xxh3", "0" * 16),))
        publisher.send(T.result(publisher.model, "car", "r2"), payload)
        publisher.send(f"mqinfer/v1/results/{publisher.model}/CAR/r1", payload)
        publisher.result("car", 9)
        assert sequences(results, 1) == [9]
        assert results.counters().dropped == {
            DropReason.UNREADABLE: 1,
            DropReason.CORRUPTED: 1,
            DropReason.TOPIC_MISMATCH: 2,
        }


def test_the_end(client: Client, publisher: Publisher) -> None:
    """Closing the client ends the iteration of a thread that waits; what was buffered comes before."""
    results = client.watch(publisher.model)
    publisher.result("car", 1)
    wait_until(lambda: results.counters().received == 1)
    found: list[int | None] = []
    waiting = threading.Event()

    def iterate() -> None:
        for each in results:
            found.append(each.response.capture.sequence)
            waiting.set()

    thread = threading.Thread(target=iterate)
    thread.start()
    assert waiting.wait(WAIT)
    client.close()
    thread.join(WAIT)
    assert not thread.is_alive()
    assert found == [1]
    assert results.has_ended
    assert results.next() is None
    results.close()
    with pytest.raises(Cancelled):
        client.watch(publisher.model)


def test_what_was_buffered_can_be_taken_after_the_end(client: Client, publisher: Publisher) -> None:
    """`close` drops nothing."""
    with client.watch(publisher.model) as results:
        publisher.result("car", 1)
        wait_until(lambda: results.counters().received == 1)
    assert [each.response.capture.sequence for each in results] == [1]


def test_wrong_arguments(client: Client) -> None:
    """Names and bounds are checked before anything is sent; an unknown option is an error."""
    for model, name in (("+", None), ("#", None), ("seg", "+"), ("seg", "a/b"), ("control", None)):
        with pytest.raises(BadTopic):
            client.watch(model, client=name)
    for options in ({"buffer": 0}, {"buffer_bytes": 0}, {"buffer": float("nan")}):
        with pytest.raises(ConfigError):
            client.watch("seg", **options)
    with pytest.raises(TypeError):
        client.watch("seg", bufer=3)  # type: ignore[call-overload]


@in_loop
async def test_asyncio(site: str, publisher: Publisher, unique: Callable[[str], str]) -> None:
    """`async with` and `async for`; `next` returns None after its time, and the end of the client ends the watch."""
    async with AsyncClient(site, name=unique("recorder")) as client:
        async with client.watch(publisher.model, buffer=100) as results:
            publisher.send(T.result(publisher.model, "car", "r1"), b"junk")
            for number in range(3):
                publisher.result("car", number)
            found = []
            async for each in results:
                found.append(each.response.capture.sequence)
                if len(found) == 3:
                    break
            assert await results.next(0.01) is None
            assert results.counters().dropped == {DropReason.UNREADABLE: 1}
        open_one = client.watch(publisher.model)
        await open_one.open()
        task = asyncio.ensure_future(anext(open_one, None))
        await asyncio.sleep(0)
        await client.close()
        assert await asyncio.wait_for(task, WAIT) is None
        assert open_one.has_ended
    assert found == [0, 1, 2]


@in_loop
async def test_the_first_next_connects(site: str, publisher: Publisher, unique: Callable[[str], str]) -> None:
    """A watch that was not opened connects by itself; a preview is among the results where it is asked for."""
    async with AsyncClient(site, name=unique("recorder")) as client:
        both = client.watch(publisher.model, with_previews=True)
        assert await both.next(0.01) is None
        publisher.preview("car", 1)
        publisher.result("car", 1)
        found = {type(await both.next(WAIT)), type(await both.next(WAIT))}
        await both.close()
        assert found == {SeenPreview, SeenResult}


@in_loop
async def test_a_flood_leaves_room_for_other_tasks(
    site: str, publisher: Publisher, unique: Callable[[str], str]
) -> None:
    """A task that waits for a good result among hundreds of broken ones lets the others run."""
    turns = 0
    async with AsyncClient(site, name=unique("recorder")) as client, client.watch(publisher.model) as results:
        for _ in range(100):
            publisher.send(T.result(publisher.model, "car", "r1"), b"junk")
        publisher.result("car", 1)
        await asyncio.to_thread(wait_until, lambda: results.counters().received == 101)
        task = asyncio.ensure_future(results.next(WAIT))
        while not task.done():
            turns += 1
            await asyncio.sleep(0)
        assert task.result()
    assert turns > 50


class Refusing(MemoryLink):
    """A link whose broker refuses to let it read."""

    def subscribe(self, topic_filter: str, *_: Any, **__: Any) -> None:
        """Refuse."""
        raise NotAuthorized(f"the broker refuses the subscription {topic_filter!r}")


def test_a_broker_that_refuses() -> None:
    """The error names the login that may read results, and the connection is closed."""
    links: list[Refusing] = []

    def connect(handler: Any) -> Link:
        links.append(Refusing(MemoryBroker(), on_connection=handler))
        return links[0]

    feed = WatchFeed(connect, T, WatchSettings("seg"))
    with pytest.raises(NotAuthorized, match=r"login of a dashboard .* mqinfer broker add DIR dashboard NAME"):
        feed.open(1.0)
    assert not links[0].connected
    assert feed.has_ended


def test_a_lost_connection() -> None:
    """The watch goes on with the next connection; the loss is counted, and the clock is the test's."""
    broker, links = MemoryBroker(), list[MemoryLink]()

    def connect(handler: Any) -> Link:
        links.append(MemoryLink(broker, on_connection=handler))
        return links[-1]

    feed = WatchFeed(connect, T, WatchSettings("seg"), clock_ns=lambda: 42)
    feed.open(WAIT)
    results: Watch[SeenResult] = Watch(feed)
    other = MemoryLink(broker)
    other.open()
    publisher = Publisher(other, "seg")
    publisher.result("car", 1)
    assert sequences(results, 1) == [1]
    links[0].drop()
    publisher.result("car", 2)
    links[0].restore()
    wait_until(lambda: links[0].connected)
    publisher.result("car", 3)
    seen = results.next(WAIT)
    assert seen
    assert (seen.response.capture.sequence, seen.received_ns) == (3, 42)
    assert results.counters().disconnected == 1
    results.close()
    other.close()


@pytest.mark.broker
def test_a_broker_that_starts_again(unique: Callable[[str], str]) -> None:
    """After Mosquitto was killed and started again the watch has subscribed again by itself."""
    with MosquittoServer() as server, Client(server.url, name=unique("recorder")) as client, client.watch() as results:
        server.kill()
        wait_until(lambda: results.counters().disconnected == 1)
        server.start()
        link = make_link(server.url, client_id=unique("publisher"))
        link.open(WAIT)
        publisher, number = Publisher(link, "seg"), iter(range(10**6))

        def has_come() -> bool:
            publisher.result("car", next(number))
            return results.next(0.05) is not None

        wait_until(has_come)
        link.close()
