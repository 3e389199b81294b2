"""Servers of contestants in processes of their own: a gateway's fronts, each on a free port, and bare grpc.aio.

To the bare server a request is the bytes of the model's one input, a reply those of its output: no protobuf, no names,
no shapes, no deadlines.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from mqinfer.bench.processes import say
from mqinfer.bench.workloads import Workload
from mqinfer.broker.mosquitto.server import free_port
from mqinfer.lab.load import call_times

METHOD = "/bench.Raw/Infer"
OPTIONS = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
_SLOW_S = 0.001
_THREADS = 2


def serve_gateway(url: str) -> None:
    """Run a gateway's fronts: write their ports as JSON, and serve until standard input ends.

    Args:
        url: Of the broker.
    """
    asyncio.run(_serve_gateway(url))


async def _serve_gateway(url: str) -> None:
    async with serving(url) as ports:
        say(json.dumps(ports))
        await asyncio.to_thread(sys.stdin.read)


@asynccontextmanager
async def serving(url: str) -> AsyncIterator[Mapping[str, int]]:
    """Serve the fronts of a gateway in this process; yield the ports of `grpc`, `tfs-grpc`, `rest` and `tfs-rest`.

    Args:
        url: Of the broker.
    """
    from mqinfer.client.aio import AsyncClient
    from mqinfer.client.control import AsyncControl
    from mqinfer.gateway.access import Access
    from mqinfer.gateway.core import Core
    from mqinfer.gateway.serving.fronts import Fronts
    from mqinfer.gateway.settings import GatewayPorts, GatewaySettings

    ports = {name: free_port("127.0.0.1") for name in ("rest", "grpc", "tfs-grpc", "tfs-rest")}
    listening = GatewayPorts(
        ports["rest"], ports["grpc"], 0, tfs_grpc_port=ports["tfs-grpc"], tfs_rest_port=ports["tfs-rest"]
    )
    fronts = Fronts(GatewaySettings(listening), shared=False)
    async with AsyncClient(url, in_loop=True) as client:
        core = Core(client, AsyncControl(client))
        await core.start()
        await fronts.open(core, Access(asks_certificates=False), None)
        yield ports
        await fronts.close(0.0)


def _make_handler(workload: Workload) -> Callable[[bytes, Any], Awaitable[bytes]]:
    model = workload.open_model()
    dtype, shape = workload.array.dtype, workload.array.shape

    def run(request: bytes) -> bytes:
        return model(np.frombuffer(request, dtype).reshape(shape)).tobytes()

    # Whichever is better for the model: the hand-over to a thread cost 15 % of the small models' throughput, and gained
    # up to 5 % with the classifier.
    is_slow = min(call_times(partial(run, workload.array.tobytes()), 5)) >= _SLOW_S
    pool = ThreadPoolExecutor(_THREADS)

    async def infer(request: bytes, _: Any) -> bytes:
        return await asyncio.get_running_loop().run_in_executor(pool, run, request) if is_slow else run(request)

    return infer


async def _serve_bare(workload: Workload) -> None:
    import grpc

    server = grpc.aio.server(options=OPTIONS)
    _, service, method = METHOD.split("/")
    handler = grpc.unary_unary_rpc_method_handler(_make_handler(workload))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    say(str(port))
    await asyncio.to_thread(sys.stdin.read)
    await server.stop(None)


def serve_bare(folder: str) -> None:
    """Serve a saved workload's model: write the port, and serve until standard input ends."""
    asyncio.run(_serve_bare(Workload.load(Path(folder))))
