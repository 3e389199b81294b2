"""What happens at the worker: cancelled calls, deadlines, turns; a real worker that the test holds with a gate."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mqinfer.client import AsyncClient
from mqinfer.client.control import AsyncControl
from mqinfer.cloud_worker.serving.worker import Worker
from mqinfer.gateway.calls import InferCall
from mqinfer.gateway.core import Core
from mqinfer.gateway.errors import Overloaded, TimeoutExpired, status_of
from mqinfer.models.backends.echo import EchoBackend
from mqinfer.models.loading import LoadedModel, load_model
from mqinfer.models.repository import Repository
from mqinfer.protocol.datatypes import Datatype
from mqinfer.protocol.errors import Expired, Rejected
from mqinfer.protocol.topics import Topics
from mqinfer.protocol.types import EncodedTensor
from tests.cloud_worker.conftest import GatedEcho
from tests.patience import STEADY, until

X = EncodedTensor("x", Datatype.FP32, (1, 4), "raw", np.ones((1, 4), "<f4").tobytes())


def call(**options: Any) -> InferCall:
    """Make a call of the model."""
    return InferCall("echo", None, (X,), **options)


class Held:
    """A core before a worker whose runs wait for a gate."""

    def __init__(self, core: Core, worker: Worker, backend: GatedEcho) -> None:
        self.core, self.worker, self.backend = core, worker, backend

    async def entered(self) -> None:
        """Wait until a run has begun."""
        assert await asyncio.to_thread(self.backend.entered.acquire, timeout=60)


@pytest.fixture
def hold(
    broker_url: str, unique: Callable[[str], str], serve: Callable[..., Worker], write_echo: Callable[..., Path]
) -> Any:
    """Return a context manager that opens a core before a real worker, with the gate closed."""

    @asynccontextmanager
    async def opened(config: str = "max_batch_size = 4", **options: Any) -> AsyncIterator[Held]:
        topics = Topics(unique("root"))
        (version,) = Repository(write_echo(config=config)).models()
        loaded = load_model(version, device="cpu")
        assert isinstance(loaded.backend, EchoBackend)
        backend = GatedEcho(loaded.backend)
        worker = serve(broker_url, LoadedModel(backend, loaded.card, loaded.config), topics=topics, inline_s=0.0)
        try:
            async with AsyncClient(broker_url, root=topics.root, options=replace(STEADY, shed=True)) as client:
                core = Core(client, AsyncControl(client), **options)
                await core.start()
                assert await client.connection.registry.until(lambda: core.model_ready("echo"), 60)
                await core.infer(call())  # what one takes is known, and the worker's window
                await until(lambda: worker.depth == 0)  # it takes note of a reply once that is sent
                backend.entered.acquire()
                backend.runs.clear()
                backend.gate.clear()
                yield Held(core, worker, backend)
        finally:
            backend.gate.set()

    return opened


async def test_a_cancelled_call_is_cancelled_at_the_worker(hold: Any) -> None:
    """One that waits there is never run, and is counted; the next one runs as soon as the one before has ended."""
    async with hold() as held:
        first = asyncio.create_task(held.core.infer(call()))
        await held.entered()
        second = asyncio.create_task(held.core.infer(call()))
        await until(lambda: held.worker.depth == 2)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        third = asyncio.create_task(held.core.infer(call()))
        # The worker has read the cancellation, too: before the second was decoded, which ends it, or while it waits.
        await until(lambda: held.worker.depth + held.worker.statistics().counters.get("skipped_cancelled", 0) == 3)
        held.backend.gate.set()
        for task in (first, third):
            assert (await task).outputs["x"].tolist() == [[1.0] * 4]
        await until(lambda: held.worker.depth == 0)
        assert held.backend.runs == [1, 1]
        assert held.worker.statistics().counters == {"ok": 3, "skipped_cancelled": 1}
        assert held.core.inference.outcomes == {("echo", "ok"): 3, ("echo", "cancelled"): 1}
        assert held.core.inference.admission.running == 0


@pytest.mark.parametrize(
    ("options", "default_s", "error", "grpc", "words"),
    [
        ({"deadline_s": 0.2}, 60.0, Expired, "DEADLINE_EXCEEDED", "model 'echo': no reply within 0.2 s"),
        ({"timeout_s": 0.2}, 60.0, TimeoutExpired, "UNAVAILABLE", "Request timeout expired"),
        ({"deadline_s": 50.0, "timeout_s": 0.2}, 60.0, TimeoutExpired, "UNAVAILABLE", "Request timeout expired"),
        ({"deadline_s": 0.2, "timeout_s": 50.0}, 60.0, Expired, "DEADLINE_EXCEEDED", "model 'echo': no reply within"),
        ({}, 2.0, Expired, "DEADLINE_EXCEEDED", "model 'echo': no reply within 2 s"),
        ({"deadline_s": 0.0}, 60.0, Expired, "DEADLINE_EXCEEDED", "the deadline has passed"),
        ({"timeout_s": -1.0}, 60.0, TimeoutExpired, "UNAVAILABLE", "Request timeout expired"),
    ],
)
async def test_the_first_of_the_times_ends_a_call(
    hold: Any, options: dict[str, float], default_s: float, error: type[Expired], grpc: str, words: str
) -> None:
    """Before a model that never answers: the call's deadline, its `timeout` parameter or the default."""
    async with hold(default_timeout_s=default_s) as held:
        with pytest.raises(Expired) as found:
            async with asyncio.timeout(20):
                await held.core.infer(call(**options))
        assert type(found.value) is error
        assert status_of(found.value).grpc == grpc
        assert str(found.value).startswith(words)


async def test_a_models_own_bound_on_its_queue_sheds_at_once(hold: Any) -> None:
    """What `max_queue_size` refuses is not sent again: who has set it wants the answer."""
    bound = "max_batch_size = 1\ndynamic_batching = { default_queue_policy = { max_queue_size = 1 } }"
    async with hold(bound) as held:
        running = asyncio.create_task(held.core.infer(call()))
        await held.entered()
        waiting = asyncio.create_task(held.core.infer(call()))
        await until(lambda: held.worker.pipeline.prepared == 1)  # what a thread is at work on is not in the queue
        with pytest.raises(Rejected, match=r"^Exceeds maximum queue size: .*1 requests are queued at worker") as found:
            await held.core.infer(call())
        assert status_of(found.value).http == 503
        await until(lambda: held.worker.statistics().counters.get("rejected") == 1)
        held.backend.gate.set()
        await asyncio.gather(running, waiting)


async def test_one_callers_flood_does_not_starve_another(hold: Any) -> None:
    """Of 200 calls of one and 2 of another that came later, the two are among the next; the bounds hold."""
    async with hold(max_pending=256) as held:
        order: list[str] = []

        async def ask(caller: str) -> None:
            await held.core.infer(call(caller=caller))
            order.append(caller)

        flood = [asyncio.create_task(ask("many")) for _ in range(200)]
        await held.entered()
        few = [asyncio.create_task(ask("few")) for _ in range(2)]
        gathered = asyncio.gather(*flood, *few, return_exceptions=True)
        await until(lambda: held.core.inference.admission.queued > 0)
        running = held.core.inference.admission.running
        assert running < 100  # what the worker accepts; the rest waits where callers take turns
        held.backend.gate.set()
        results = await gathered
        refused = [each for each in results if each is not None]
        assert len(refused) == 8  # beyond three quarters of 256
        assert all(isinstance(each, Overloaded) and each.retry_after_s >= 1 for each in refused)
        places = [place for place, caller in enumerate(order) if caller == "few"]
        assert len(order) == 194
        assert max(places) <= running + 8
        assert held.core.inference.admission.refused == {"share": 8}


async def test_a_call_that_waits_for_its_turn_can_be_cancelled_or_expire(hold: Any) -> None:
    """It leaves the line and is never sent; the others keep their turns."""
    async with hold() as held:
        running = [asyncio.create_task(held.core.infer(call(caller="many"))) for _ in range(80)]
        await until(lambda: held.core.inference.admission.queued > 0)
        waits = asyncio.create_task(held.core.infer(call(caller="few")))
        await asyncio.sleep(0)
        with pytest.raises(
            TimeoutExpired, match=r"^Request timeout expired: expired after 0.05 s: it was not its turn"
        ):
            await held.core.infer(call(caller="few", timeout_s=0.05))
        waits.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waits
        held.backend.gate.set()
        await asyncio.gather(*running)
        assert sum(held.backend.runs) == 80
        state = held.core.inference.admission
        assert (state.running, state.queued, state.bytes) == (0, 0, 0)
