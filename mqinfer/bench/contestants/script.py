"""What one writes in an afternoon: paho, MessagePack, a topic for requests and one for each client's replies."""

from __future__ import annotations

import asyncio
import sys
import threading
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import paho.mqtt.client as mqtt
from msgspec import msgpack
from paho.mqtt.enums import CallbackAPIVersion

from mqinfer.bench.processes import say
from mqinfer.bench.workloads import Workload
from mqinfer.protocol.datatypes import Array
from mqinfer.protocol.errors import ModelFailed

if TYPE_CHECKING:
    from mqinfer.bench.contestants.ways import Target

_REQUESTS = "script/requests"
_TIMEOUT_S = 60.0


def _pack(array: Array, **more: object) -> bytes:
    return msgpack.encode({"dtype": array.dtype.str, "shape": array.shape, "data": array.tobytes(), **more})


def _unpack(message: dict[str, Any]) -> Array:
    return np.frombuffer(message["data"], message["dtype"]).reshape(message["shape"])


def _connected(port: int, topic: str, on_message: Callable[[dict[str, Any]], None]) -> mqtt.Client:
    """Return a client that has subscribed, with a thread of its own."""
    client, ready = mqtt.Client(CallbackAPIVersion.VERSION2), threading.Event()
    client.max_inflight_messages_set(1000)
    client.on_subscribe = lambda *_: ready.set()
    client.on_message = lambda _client, _data, message: on_message(msgpack.decode(message.payload))
    client.connect("127.0.0.1", port)
    client.subscribe(topic, qos=1)
    client.loop_start()
    if not ready.wait(_TIMEOUT_S):
        raise ModelFailed(f"the script's client did not reach the broker on port {port}")
    return client


@asynccontextmanager
async def connect(target: Target, workload: Workload, vehicle: int) -> AsyncIterator[Callable[[int], Awaitable[Array]]]:
    """Connect a client; yield what sends a frame and waits for its reply."""
    loop, pending = asyncio.get_running_loop(), dict[int, asyncio.Future[Array]]()
    replies, count = f"script/replies/{vehicle}-{uuid.uuid4()}", 0

    def on_reply(reply: dict[str, Any]) -> None:
        loop.call_soon_threadsafe(lambda: pending.pop(reply["id"]).set_result(_unpack(reply)))

    client = await asyncio.to_thread(_connected, target.port, replies, on_reply)

    async def ask(number: int) -> Array:
        nonlocal count
        count += 1
        pending[count] = future = loop.create_future()
        client.publish(_REQUESTS, _pack(workload.frame(number), id=count, to=replies), qos=1)
        try:
            return await asyncio.wait_for(future, _TIMEOUT_S)
        except TimeoutError:
            raise ModelFailed("the script's worker did not answer") from None

    yield ask
    client.disconnect()
    await asyncio.to_thread(client.loop_stop)


def serve(port: str, folder: str) -> None:
    """Answer requests to a saved workload's model until standard input ends."""
    run = Workload.load(Path(folder)).open_model()

    def on_request(request: dict[str, Any]) -> None:
        client.publish(request["to"], _pack(run(_unpack(request)), id=request["id"]), qos=1)

    client = _connected(int(port), _REQUESTS, on_request)
    say("ready")
    sys.stdin.read()
    client.disconnect()
    client.loop_stop()
