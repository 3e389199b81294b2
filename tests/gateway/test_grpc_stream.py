"""`ModelStreamInfer`, cancellation and deadlines, through a real broker to real workers."""

from __future__ import annotations

import asyncio
import gc
import logging
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import grpc
import numpy as np
import pytest

import mqinfer.gateway
from mqinfer.client.aio import AsyncClient
from mqinfer.client.control import AsyncControl
from mqinfer.gateway.access import Access
from mqinfer.gateway.core import Core
from mqinfer.gateway.grpc.infer import make_stream
from mqinfer.gateway.messages import message_class
from mqinfer.gateway.settings import GatewaySettings
from mqinfer.web.unsent import Unsent
from tests.gateway.conftest import Fleet, OpenCore
from tests.gateway.grpc_front import SERVICE, GrpcFront, read_outputs, serving, tensors
from tests.gateway.listening import over_grpc
from tests.patience import PATIENT, until

_ROOM = str(Path(mqinfer.gateway.__file__).parent)
FRAME = {"model_name": "identity_fp32", **tensors(INPUT0=np.arange(4, dtype="<f4")[None])}
SLOW = {"model_name": "slow", **tensors(x=np.zeros((1, 4), "<f4"))}


def request(request_id: str = "", **fields: Any) -> bytes:
    """Return the bytes of a request."""
    octets: bytes = message_class("inference.ModelInferRequest")(
        **{"id": request_id, **FRAME, **fields}
    ).SerializeToString()
    return octets


async def read(stream: Any) -> Any:
    """Return the next message of a stream; None at its end."""
    octets = await stream.read()
    return None if octets is grpc.aio.EOF else message_class("inference.ModelStreamInferResponse").FromString(octets)


async def read_all(stream: Any) -> list[Any]:
    """Return all messages until the stream ends."""
    found = []
    while (message := await read(stream)) is not None:
        found.append(message)
    return found


async def test_replies_and_errors_of_a_stream(open_core: OpenCore) -> None:
    """Each request has one reply with its id, marked as its last; errors are messages; closing our side drains."""
    async with open_core() as core, serving(core) as front:
        stream = front.stream()
        for number in range(100):
            await stream.write(request(f"frame {number}"))
        await stream.write(request("bad", model_name="nope"))
        await stream.write(b"\xff\xff")  # no request
        await stream.done_writing()
        found = await read_all(stream)
        assert await stream.code() is grpc.StatusCode.OK
        assert all(each.infer_response.parameters["triton_final_response"].bool_param for each in found)
        good = {each.infer_response.id: each.infer_response for each in found if not each.error_message}
        bad = {each.infer_response.id: each.error_message for each in found if each.error_message}
        assert set(good) == {f"frame {number}" for number in range(100)}
        assert all(read_outputs(reply)["OUTPUT0"].tolist() == [[0, 1, 2, 3]] for reply in good.values())
        assert set(bad) == {"bad", ""}
        assert bad["bad"].startswith("Request for unknown model: 'nope' is not found")


async def test_errors_as_the_status_of_a_stream(open_core: OpenCore) -> None:
    """With the metadata `triton_grpc_error` the first error ends the stream with its status."""
    async with open_core() as core, serving(core) as front:
        stream = front.stream([("triton_grpc_error", "true")])
        await stream.write(request("one"))
        assert (await read(stream)).infer_response.id == "one"
        await stream.write(request("two", model_name="nope"))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await read(stream)
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND


HELD, RELEASE = {"priority": {"int64_param": 1}}, {"priority": {"int64_param": 2}}


class Holding:
    """Stands before a core: holds requests of priority 1 until one of priority 2 comes, and counts them."""

    def __init__(self, core: Core) -> None:
        self._core, self.unsent, self.arriving = core, core.unsent, core.arriving
        self.held = 0
        self.released = asyncio.Event()

    async def infer(self, call: Any) -> Any:
        """Wait, then ask the core."""
        if call.priority == 2:
            self.released.set()
        elif call.priority == 1:
            self.held += 1
            await self.released.wait()
        return await self._core.infer(replace(call, priority=0))


async def test_order_of_replies(open_core: OpenCore) -> None:
    """A reply does not wait for that of a slower request with another id; without ids the order of requests holds."""
    async with open_core() as core, serving(Holding(core)) as front:  # type: ignore[arg-type]  # stands before one
        stream = front.stream()
        await stream.write(request("slow", parameters=HELD))
        await stream.write(request("fast"))
        assert (await read(stream)).infer_response.id == "fast"
        for value in range(20):
            parameters = HELD if value == 0 else {}
            await stream.write(request(**tensors(INPUT0=np.full((1, 1), value, "<f4")), parameters=parameters))
        await stream.write(request("last"))
        assert (await read(stream)).infer_response.id == "last"
        await stream.write(request("release", parameters=RELEASE))
        await stream.done_writing()
        found = [each.infer_response for each in await read_all(stream)]
        unnamed = [read_outputs(reply)["OUTPUT0"].item() for reply in found if not reply.id]
        assert unnamed == list(range(20))
        assert {reply.id for reply in found} == {"", "slow", "release"}


async def test_requests_that_have_no_room_are_not_read(open_core: OpenCore) -> None:
    """A stream reads as many requests as may be pending, and the next one when a reply is out."""
    async with open_core() as core:
        holding = Holding(core)
        handler = make_stream(holding, Access(), window=5)  # type: ignore[arg-type]  # a core in front of one
        handlers = [grpc.method_handlers_generic_handler(SERVICE, {"ModelStreamInfer": handler})]
        async with over_grpc(handlers, GatewaySettings()) as address, grpc.aio.insecure_channel(address) as channel:
            stream = GrpcFront(channel, address).stream()
            for number in range(12):
                await stream.write(request(str(number), parameters=HELD))
            await stream.done_writing()
            await until(lambda: holding.held == 5)
            for _ in range(50):  # more turns of the loop than a sixth request would need
                await asyncio.sleep(0)
            assert holding.held == 5
            holding.released.set()
            assert len(await read_all(stream)) == 12


async def test_calls_that_end_early_do_not_run(fleet: Fleet) -> None:
    """A call that is cancelled, or whose stream, connection or time is over, is skipped by the worker, which counts it.

    They wait at the worker behind one request that runs; behind it the worker runs the next good one at once.
    """
    options = replace(PATIENT, lanes=False)  # so that requests wait at the worker and not in the client
    async with AsyncClient(fleet.url, root=fleet.root, options=options) as client:
        core = Core(client, AsyncControl(client))
        await core.start()
        assert await client.connection.registry.until(core.ready, 60)
        async with serving(core) as front:
            (worker,) = [
                worker
                for worker, state in client.connection.registry.known.workers.items()
                if state.models[0].name == "slow"
            ]
            for _ in range(20):  # a busy machine may be slower than the model
                before, skipped = await runs(front), skipped_at(client, worker)
                first = asyncio.ensure_future(front.call("ModelInfer", **SLOW))
                await until(lambda: client.counters().in_flight == 1)
                async with grpc.aio.insecure_channel(front.address) as other:
                    codes = await end_early(front, other, client)
                assert codes == [grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE]
                await first
                await front.call("ModelInfer", **SLOW)
                if await runs(front) == before + 2:
                    break
            else:
                pytest.fail("in each of 20 rounds a call ran that had ended early")
            await until(lambda: skipped_at(client, worker) >= skipped + 4)


async def end_early(front: GrpcFront, other: Any, client: AsyncClient) -> list[Any]:
    """Make six calls and end each in another way; return the statuses of those that wait for one."""
    path = f"/{SERVICE}/ModelInfer"
    cancelled = front.channel.unary_unary(path)(request("x", **SLOW))
    lost = other.unary_unary(path)(request("y", **SLOW))
    stream = front.stream()
    for number in range(2):
        await stream.write(request(str(number), **SLOW))
    late = asyncio.gather(
        front.call("ModelInfer", deadline_s=1.0, **SLOW),
        front.call("ModelInfer", parameters={"timeout": {"int64_param": 1_000_000}}, **SLOW),
        return_exceptions=True,
    )
    await until(lambda: client.counters().in_flight == 7 or late.done())
    cancelled.cancel()
    stream.cancel()
    await other.close()
    assert lost.done()
    return [each.code() for each in await late]  # type: ignore[union-attr]  # both fail


async def runs(front: GrpcFront) -> int:
    """Return how many requests the slow model has run."""
    (entry,) = (await front.call("ModelStatistics", name="slow")).model_stats
    return int(entry.inference_count)


def skipped_at(client: AsyncClient, worker: str) -> int:
    """Return how many cancelled requests a worker has skipped, by its own count."""
    return client.connection.registry.known.workers[worker].counters.get("skipped_cancelled", 0)


def kept(size: int) -> list[str]:
    """Return the functions of the gateway whose frames keep bytes of this size, in whatever cycles."""
    frames = [each for each in gc.get_objects() if type(each) is FrameType]  # isinstance asks objects
    return [
        frame.f_code.co_name
        for frame in frames
        if _ROOM in frame.f_code.co_filename
        if any(isinstance(each, bytes) and len(each) >= size for each in gc.get_referents(frame))
    ]


async def test_what_is_answered_or_failed_is_freed(open_core: OpenCore) -> None:
    """A refused request, also on a stream that goes on, and a reply that nobody takes: no frame keeps them."""
    array = np.arange(1 << 18, dtype="<f4")[None]
    large, refused = tensors(INPUT0=array), tensors(INPUT0=array)
    refused["inputs"][0]["shape"] = [1, 5]
    async with open_core() as core, serving(core) as front:
        core.unsent = Unsent(logging.getLogger("test"), array.nbytes, 60.0)
        gc.disable()
        try:
            with pytest.raises(grpc.aio.AioRpcError, match="input byte size mismatch"):
                await front.call("ModelInfer", model_name="identity_fp32", **refused)
            streams = [front.stream() for _ in range(2)]
            for stream in streams:
                await stream.write(request(**refused))
                assert (await read(stream)).error_message
            await until(lambda: not kept(array.nbytes))
            for stream in streams:
                await stream.write(request(**large))
            await until(lambda: core.unsent.given_up["bytes"])
            await until(lambda: not (core.unsent.bytes or core.arriving.bytes or kept(array.nbytes)))
        finally:
            gc.enable()
