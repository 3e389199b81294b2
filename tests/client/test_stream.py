"""Streams of live frames: one outcome for each frame, in the order of putting, by either policy and on either side."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from mqinfer import AsyncClient, Capture, Client, ClientOptions, InferResult, Outcome, Policy, Stream
from mqinfer.broker.memory import MemoryLink
from mqinfer.errors import BadTensor, Cancelled, ConfigError, Expired, LinkError, MqinferError, NameTaken, Rejected
from tests.asynchronous import in_loop
from tests.client.conftest import MakeClient, Serve, WriteEcho

pytestmark = pytest.mark.usefixtures("patient")

X = np.arange(4, dtype=np.float32).reshape(1, 4)


def frame(number: int) -> dict[str, Any]:
    """The inputs of a frame."""
    return {"x": np.full((1, 4), number, np.float32)}


def capture(number: int) -> Capture:
    """Where it came from."""
    return Capture("/camera", number)


def sequences(results: list[InferResult]) -> list[int | None]:
    """The frames' numbers in the order of reading."""
    return [result.capture.sequence for result in results]


def check(results: list[InferResult], count: int) -> None:
    """Assert one outcome for each frame, in order, and that each result is its own frame's."""
    assert sequences(results) == list(range(count))
    for number, result in enumerate(results):
        if result.outcome is Outcome.OK:
            np.testing.assert_array_equal(result.outputs["x"], frame(number)["x"])
        else:
            assert not result.outputs
            assert result.error is not None


@contextmanager
def putting(stream: Stream, count: int) -> Iterator[None]:
    """Put frames in from a thread, numbered by the stream, and close the stream after the last one."""
    done: Future[None] = Future()

    def put() -> None:
        try:
            for number in range(count):
                stream.put(frame(number))  # the stream numbers them
            done.set_result(None)
        except MqinferError as error:
            done.set_exception(error)
        finally:
            stream.close()

    thread = threading.Thread(target=put)
    thread.start()
    try:
        yield
    finally:
        thread.join()
    done.result(0)


@pytest.mark.parametrize("policy", ["latest", "all"])
@pytest.mark.parametrize("window", [1, 4])
def test_each_frame_has_one_outcome_in_order(
    broker_url: str, make_client: MakeClient, serve: Serve, write_echo: WriteEcho, policy: Any, window: int, unique: Any
) -> None:
    """Over a real broker, from a thread that puts as fast as it can; `all` loses none, and `latest` says which."""
    model = unique("echo")
    serve(broker_url, write_echo(model, delay_ms=2), model)
    client = make_client(broker_url)
    with client.stream(model, policy=policy, window=window, timeout=60) as stream:
        with putting(stream, 120):
            results = list(stream)
        check(results, 120)
        counts = Counter(result.outcome for result in results)
        assert counts[Outcome.OK] + counts[Outcome.SUPERSEDED] == 120
        if policy == "all":
            assert counts[Outcome.OK] == 120
        assert results[-1].outcome is Outcome.OK
        assert stream.outcomes() == {outcome: counts[outcome] for outcome in Outcome}
    assert client.counters().outcomes[Outcome.OK] == counts[Outcome.OK]


def test_the_newest_takes_the_place_of_the_one_queued(client: Client, hand: Any) -> None:
    """With `latest` one frame is sent, and of those that come meanwhile only the last one."""
    with client.stream("manual") as stream:
        for number in range(5):
            stream.put(frame(number), capture=capture(number))
        hand.answer(hand.next(), {"x": frame(0)["x"]})
        assert next(stream).outcome is Outcome.OK
        hand.answer(hand.next(), {"x": frame(4)["x"]})
        stream.close()
        rest = list(stream)
        check([InferResult("", Outcome.SUPERSEDED, "manual", error=rest[0].error, capture=capture(0)), *rest], 5)
        assert [result.outcome for result in rest] == [Outcome.SUPERSEDED] * 3 + [Outcome.OK]
        with pytest.raises(MqinferError, match="a newer frame of the stream came first"):
            rest[0].raise_for_outcome()


def test_without_a_connection_only_the_newest_frame_waits(client: Client, hand: Any) -> None:
    """With `latest` a newer frame takes the place of one that can't be sent; it goes first once there is a link."""
    link = client._requester.link
    assert isinstance(link, MemoryLink)
    with client.stream("manual", window=4) as stream:
        link.drop()
        for number in range(5):
            stream.put(frame(number), capture=capture(number))
        link.restore()
        request = hand.next()
        assert request.capture.sequence == 4
        hand.answer(request, {"x": frame(4)["x"]})
        stream.close()
        results = list(stream)
    check(results, 5)
    assert [result.outcome for result in results] == [Outcome.SUPERSEDED] * 4 + [Outcome.OK]


def test_a_slow_reader_gets_fresh_results(client: Client, hand: Any) -> None:
    """A result that nobody has read keeps its place in the window, so the frame that follows is the newest by then."""
    with client.stream("manual", window=1) as stream:
        stream.put(frame(0), capture=capture(0))
        hand.answer(hand.next(), {"x": frame(0)["x"]})
        while not stream.outcomes()[Outcome.OK]:
            pass
        for number in range(1, 50):
            stream.put(frame(number), capture=capture(number))
        assert hand.requests.empty()
        assert next(stream).capture.sequence == 0
        request = hand.next()
        assert request.capture.sequence == 49


@pytest.mark.usefixtures("hand")  # which gives no answer
def test_all_waits_for_room(url: str, make_client: MakeClient) -> None:
    """With `all` a put waits for the reader, and reports after the timeout that nobody reads."""
    client = make_client(url, options=ClientOptions(timeout=0.05))
    with client.stream("manual", policy=Policy.ALL, window=2) as stream:
        for number in range(4):
            stream.put(frame(number), capture=capture(number))
        with pytest.raises(Expired, match=r"no room within 0\.05 s: is anybody iterating"):
            stream.put(frame(4))
        assert next(stream).outcome is Outcome.EXPIRED
        stream.put(frame(4), capture=capture(4))
        stream.close()
        assert sequences(list(stream)) == [1, 2, 3, 4]


def test_what_nobody_reads_is_bounded(client: Client) -> None:
    """A source of a `latest` stream that nobody reads is told so, and keeps no more than 1,024 outcomes."""
    with client.stream("manual") as stream:
        for number in range(1024):
            stream.put({"x": X}, capture=capture(number))
        with pytest.raises(Rejected, match="1024 outcomes are unread; iterate over the stream in another thread"):
            stream.put({"x": X})


def test_inputs_are_freed_with_their_outcome(client: Client) -> None:
    """A superseded frame's arrays do not wait for the reader."""
    array = np.zeros((1, 4), np.float32)
    kept = weakref.ref(array)
    with client.stream("manual") as stream:
        stream.put({"x": X})
        stream.put({"x": array})
        del array
        assert kept() is not None
        stream.put({"x": X})
        assert kept() is None


@pytest.mark.usefixtures("echo")
def test_a_frame_that_can_not_be_sent_has_an_outcome_too(client: Client) -> None:
    """What no request can be made of is an error of `put`; what the worker or the broker refuses is an outcome."""
    with client.stream("echo", policy="all") as stream:
        with pytest.raises(BadTensor):
            stream.put({"x": X.astype(np.complex64)})
        stream.put({"x": X[:, :2]})
        stream.put({"x": X})
        stream.close()
        wrong, right = stream
        assert (wrong.outcome, right.outcome) == (Outcome.ERROR, Outcome.OK)
        with pytest.raises(BadTensor):
            wrong.raise_for_outcome()
    with client.stream("a/b", policy="all") as stream:  # no topic: none of them ever becomes a request
        for _ in range(5):
            stream.put({"x": X})
        stream.close()
        assert [result.error.code for result in stream if result.error] == ["bad_topic"] * 5


def test_many_failures_at_once(url: str, make_client: MakeClient) -> None:
    """A window full of frames that can't be sent ends one by one, without a call nested in a call."""
    client = make_client(url, options=ClientOptions(max_pending=1, patience=600))
    client.submit("manual", {"x": X}, timeout=600)
    with client.stream("manual", policy="all", window=3000) as stream:
        for _ in range(6000):
            stream.put({"x": X})
        stream.close()
        assert {result.outcome for result in stream} == {Outcome.REJECTED}


def test_leaving_the_block_cancels_what_is_pending(client: Client, hand: Any) -> None:
    """Frames in flight and queued ones end as cancelled, and another put is refused."""
    with client.stream("manual", policy="all") as stream:
        for number in range(3):
            stream.put(frame(number), capture=capture(number))
        hand.next()
    assert sequences(results := list(stream)) == [0, 1, 2]
    assert {result.outcome for result in results} == {Outcome.CANCELLED}
    with pytest.raises(Cancelled, match="the stream is closed; open another one"):
        stream.put(frame(3))
    assert client.counters().pending == 0


def test_a_stream_ends_with_its_client(url: str, make_client: MakeClient, hand: Any) -> None:
    """A reader that waits gets the outcomes and the end; it does not wait for ever."""
    client = make_client(url)
    streams = [client.stream("manual", policy="all"), client.stream("manual")]
    read: list[Future[list[InferResult]]] = [Future() for _ in streams]
    threads = [
        threading.Thread(target=lambda f=future, s=stream: f.set_result(list(s)))
        for future, stream in zip(read, streams, strict=True)
    ]
    for thread in threads:
        thread.start()
    streams[0].put(frame(0))
    hand.next()
    client.close()
    for thread in threads:
        thread.join(10)
    assert [result.outcome for result in read[0].result(0)] == [Outcome.CANCELLED]
    assert read[1].result(0) == []
    with pytest.raises(Cancelled, match="the stream is closed"):
        streams[1].put(frame(1))
    with pytest.raises(Cancelled, match="the client is closed"):
        client.stream("manual")


def test_a_connection_that_has_ended_for_good_ends_the_stream(client: Client, hand: Any) -> None:
    """Reader and source receive the reason, after the outcomes of what was pending."""
    stream = client.stream("manual", policy="all")
    stream.put(frame(0))
    hand.next()
    client._requester.give_up(NameTaken("another process has the name"))
    assert next(stream).outcome is Outcome.CANCELLED
    for use in (lambda: next(stream), lambda: stream.put(frame(1))):
        with pytest.raises(LinkError, match="another process has the name"):
            use()


@pytest.mark.parametrize(
    ("wrong", "words"),
    [({"policy": "newest"}, "policy='newest': expected 'latest' or 'all'"), ({"window": 0}, "window=0")],
)
def test_wrong_options(client: Client, wrong: dict[str, Any], words: str) -> None:
    """They are errors where the stream is opened."""
    with pytest.raises(ConfigError, match=words):
        client.stream("manual", **wrong)


@pytest.mark.parametrize("policy", ["latest", "all"])
@in_loop
async def test_asyncio(url: str, serve: Serve, write_echo: WriteEcho, policy: Any) -> None:
    """The same with tasks: a source that never pauses does not keep the reader from running."""
    serve(url, write_echo(delay_ms=1))
    async with AsyncClient(url) as client, client.stream("echo", policy=policy, window=4, timeout=60) as stream:

        async def put() -> None:
            for number in range(120):
                await stream.put(frame(number), capture=capture(number))
            stream.close()

        task = asyncio.create_task(put())
        results = [result async for result in stream]
        await task
        check(results, 120)
        assert results[-1].outcome is Outcome.OK
        assert sum(stream.outcomes().values()) == 120
        if policy == "all":
            assert stream.outcomes()[Outcome.OK] == 120


@pytest.mark.usefixtures("hand")  # which gives no answer
@in_loop
async def test_asyncio_waits_and_ends(url: str) -> None:
    """`all` reports a reader that is not there; a task that waits for a result ends with the client."""
    async with AsyncClient(url, options=ClientOptions(timeout=0.05)) as client:
        stream = client.stream("manual", policy="all", window=1)
        await stream.put(frame(0))
        await stream.put(frame(1))
        with pytest.raises(Expired, match="is anybody iterating"):
            await stream.put(frame(2))
        other = client.stream("manual")
        reader = asyncio.create_task(anext(other, None))
        await asyncio.sleep(0)
    assert await reader is None
    outcomes = [result.outcome async for result in stream]
    assert len(outcomes) == 2
    assert set(outcomes) <= {Outcome.EXPIRED, Outcome.CANCELLED}  # its time ends, or the client is closed first


@in_loop
async def test_asyncio_submits(url: str, hand: Any) -> None:
    """`submit` returns a task that can be gathered and cancelled; what can't be made is an error at once."""
    async with AsyncClient(url) as client:
        tasks = [client.submit("manual", frame(number)) for number in range(3)]
        with pytest.raises(BadTensor):
            client.submit("manual", {"x": X.astype(np.complex64)})
        requests = [await asyncio.to_thread(hand.next) for _ in tasks]
        tasks[1].cancel()
        for request in (requests[0], requests[2]):
            hand.answer(request, {"y": X})
        done = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(done[1], asyncio.CancelledError)
        assert isinstance(done[0], InferResult)
        assert isinstance(done[2], InferResult)
        assert client.counters().outcomes[Outcome.CANCELLED] == 1
