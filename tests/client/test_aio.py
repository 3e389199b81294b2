from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest

from mqinfer import AsyncClient, ClientOptions, Outcome
from mqinfer.errors import BadTensor, BrokerUnreachable, Cancelled, Expired, ModelNotFound, MqinferError
from tests.asynchronous import in_loop
from tests.client.conftest import Serve, WriteEcho

pytestmark = pytest.mark.usefixtures("patient")

X = np.arange(4, dtype=np.float32).reshape(1, 4)


@asynccontextmanager
async def connected(url: str, **options: Any) -> AsyncIterator[AsyncClient]:
    """Connect a client, and check its books at the end."""
    async with AsyncClient(url, **options) as client:
        yield client
    counters = client.counters()
    assert counters.submitted == sum(counters.outcomes.values())
    assert counters.pending == counters.in_flight == 0


@in_loop
@pytest.mark.usefixtures("echo")
async def test_hundreds_at_a_time(url: str) -> None:
    """Every task of a `gather` gets its own answer."""
    async with connected(url, options=ClientOptions(window=8)) as client:
        frames = [np.full((1, 4), number, np.float32) for number in range(300)]
        results = await asyncio.gather(*(client.infer("echo", {"x": frame}, timeout=60) for frame in frames))
        for frame, result in zip(frames, results, strict=True):
            np.testing.assert_array_equal(result.outputs["x"], frame)


@in_loop
async def test_more_tasks_than_may_be_unanswered(url: str, hand: Any) -> None:
    """Tasks beyond `max_pending` wait without holding up the loop, and expire in time where no room comes."""
    async with connected(url) as client:
        tasks = [asyncio.create_task(client.infer("manual", {"x": X}, timeout=60)) for _ in range(1024)]
        await asyncio.sleep(0)
        with pytest.raises(Expired, match="1024 requests are pending"):
            await asyncio.wait_for(client.infer("manual", {"x": X}, timeout=0.02), 10)
        more = asyncio.create_task(client.infer("manual", {"x": X}, timeout=60))
        tasks[0].cancel()
        for _ in range(1025):  # the cancelled one had been sent
            hand.answer(await asyncio.to_thread(hand.next), {"y": X})
        results = await asyncio.gather(*tasks[1:], more)
        assert all(result.outcome is Outcome.OK for result in results)


@in_loop
async def test_a_cancelled_task_cancels_its_request(url: str, hand: Any) -> None:
    """The request has the outcome cancelled, and the next one works."""
    async with connected(url) as client:
        task = asyncio.create_task(client.infer("manual", {"x": X}))
        request = await asyncio.to_thread(hand.next)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert client.counters().outcomes[Outcome.CANCELLED] == 1
        hand.answer(request, {"y": X})
        other = asyncio.create_task(client.infer("manual", {"x": X}))
        hand.answer(await asyncio.to_thread(hand.next), {"y": X})
        assert (await other).outcome is Outcome.OK


@in_loop
async def test_closing_cancels_the_tasks(url: str, hand: Any) -> None:
    """Who waits for an answer when the client is closed is told so."""
    client = AsyncClient(url)
    await client.open()
    task = asyncio.create_task(client.infer("manual", {"x": X}))
    await asyncio.to_thread(hand.next)
    await client.close()
    with pytest.raises(Cancelled):
        await task
    with pytest.raises(Cancelled):
        await client.infer("manual", {"x": X})


@pytest.mark.parametrize(("inputs", "seconds", "error"), [({"x": X[:, :2]}, 10, BadTensor), ({"x": X}, 0.01, Expired)])
@in_loop
async def test_errors_are_raised_by_class(
    url: str,
    serve: Serve,
    write_echo: WriteEcho,
    inputs: dict[str, Any],
    seconds: float,
    error: type[MqinferError],
) -> None:
    """As with the blocking client."""
    serve(url, write_echo(delay_ms=100))
    async with connected(url) as client:
        with pytest.raises(error):
            await client.infer("echo", inputs, timeout=seconds)


@in_loop
@pytest.mark.usefixtures("echo")
async def test_cards(url: str) -> None:
    """A card is waited for without holding up the loop."""
    async with connected(url) as client:
        assert (await client.card("echo")).name == "echo"
        with pytest.raises(ModelNotFound):
            await client.card("other", timeout=0.01)


@in_loop
async def test_a_client_that_is_not_open(url: str) -> None:
    """Asking before `open` says what to do."""
    client = AsyncClient(url)
    await client.close()
    with pytest.raises(RuntimeError, match="async with"):
        await client.infer("manual", {"x": X})


@in_loop
async def test_nobody_listens() -> None:
    """A wrong address is said by class."""
    with pytest.raises(BrokerUnreachable):
        await AsyncClient("mqtt://127.0.0.1:1", connect_timeout=2).open()
