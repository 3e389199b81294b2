"""The bare grpc.aio server: raw tensor bytes in, ONNX Runtime, raw tensor bytes out, and nothing else.

No protobuf, no names, no shapes, no deadlines: a request is the bytes of the model's one input, a reply those of its
first output. It prints its port, and ends when its standard input is closed.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from mqinfer.bench.processes import say
from mqinfer.bench.workloads import fixed_shape, numpy_dtype, open_session

METHOD = "/bench.Raw/Infer"
OPTIONS = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
_SLOW_S = 0.001
_THREADS = 2


def _make_handler(path: Path) -> Callable[[bytes, Any], Awaitable[bytes]]:
    session = open_session(path)
    source, target = session.get_inputs()[0], session.get_outputs()[0]
    dtype, shape = numpy_dtype(source.type), fixed_shape(source.shape)

    def run(request: bytes) -> bytes:
        (output,) = session.run([target.name], {source.name: np.frombuffer(request, dtype).reshape(shape)})
        return bytes(output.tobytes())

    async def infer(request: bytes, _: Any) -> bytes:
        return run(request)

    async def infer_in_thread(request: bytes, _: Any) -> bytes:
        return await asyncio.get_running_loop().run_in_executor(pool, run, request)

    # Whichever is better for the model: the hand-over to a thread cost 15 % of the small models' throughput, and gained
    # up to 5 % with the classifier.
    if _seconds_of(run, bytes(prod(shape) * dtype.itemsize)) < _SLOW_S:
        return infer
    pool = ThreadPoolExecutor(_THREADS)
    return infer_in_thread


def _seconds_of(run: Callable[[bytes], bytes], request: bytes) -> float:
    """Time the fastest of a few runs."""
    times = []
    for _ in range(5):
        started = time.perf_counter()
        run(request)
        times.append(time.perf_counter() - started)
    return min(times)


async def _serve(path: Path, certificates: Sequence[Path] = ()) -> None:
    import grpc

    server = grpc.aio.server(options=OPTIONS)
    _, service, method = METHOD.split("/")
    handler = grpc.unary_unary_rpc_method_handler(_make_handler(path))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
    if certificates:
        ca, certificate, key = (each.read_bytes() for each in certificates)
        credentials = grpc.ssl_server_credentials([(key, certificate)], ca, require_client_auth=True)
        port = server.add_secure_port("127.0.0.1:0", credentials)
    else:
        port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    say(str(port))
    await asyncio.to_thread(sys.stdin.read)
    await server.stop(None)


def main(path: str, *certificates: str) -> None:
    """Serve a model until standard input ends.

    Args:
        path: The model.
        certificates: Files of the authority's certificate, the server's and its key, which turn TLS on; or none.
    """
    asyncio.run(_serve(Path(path), [Path(each) for each in certificates]))
