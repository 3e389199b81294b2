"""Callers of a gRPC method with bytes in and bytes out, and what the contestants that they reach have in common."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import ExitStack
from typing import Any, TypeVar

import numpy as np

from mqinfer.bench.contestants.grpc_server import OPTIONS
from mqinfer.bench.workloads import Workload
from mqinfer.broker.mosquitto import Login
from mqinfer.extras import import_extra
from mqinfer.lab.load import Drive, Stopwatch
from mqinfer.protocol.datatypes import Array
from mqinfer.protocol.errors import ModelFailed

_Result = TypeVar("_Result")


class GrpcCallers:
    """An asyncio client in this process.

    Args:
        target: Address of the server.
        method: Path of the method.
        encode: Returns a request; called for each one.
        decode: Returns the output of a reply.
        login: Certificate to show, which turns TLS on; None for none.

    Raises:
        MissingExtra: grpcio is not installed.
    """

    def __init__(
        self,
        target: str,
        method: str,
        encode: Callable[[], bytes],
        decode: Callable[[bytes], Array],
        login: Login | None = None,
    ) -> None:
        grpc = import_extra("grpc", "bench", "grpcio")
        self._grpc, self._method = grpc, method
        self._encode, self._decode = encode, decode
        self._runner = asyncio.Runner()
        self._channel: Any = None
        self._call: Any = None
        self._run(self._connect(target, login))

    def ask(self) -> Array:
        """Ask once.

        Raises:
            ModelFailed: The server did not answer.
        """
        return self._run(self._ask())

    def drive(self, callers: int, seconds: float) -> Drive:
        """Send requests from as many tasks."""
        return self._run(self._drive(callers, seconds))

    def close(self) -> None:
        """Disconnect."""
        self._runner.run(self._channel.close())
        self._runner.close()

    def _run(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        try:
            return self._runner.run(work)
        except self._grpc.RpcError as error:
            raise ModelFailed(f"the bench's gRPC server did not answer {self._method}: {error}") from error

    async def _connect(self, target: str, login: Login | None) -> None:
        # Made inside the loop that it belongs to.
        aio = self._grpc.aio
        if login is None or login.cert_file is None or login.key_file is None:
            self._channel = aio.insecure_channel(target, options=OPTIONS)
        else:
            ca, key, certificate = (path.read_bytes() for path in (login.ca_file, login.key_file, login.cert_file))
            credentials = self._grpc.ssl_channel_credentials(ca, key, certificate)
            self._channel = aio.secure_channel(target, credentials, options=OPTIONS)
        self._call = self._channel.unary_unary(self._method)

    async def _ask(self) -> Array:
        return self._decode(await self._call(self._encode()))

    async def _drive(self, callers: int, seconds: float) -> Drive:
        watch = Stopwatch(seconds)

        async def caller() -> None:
            while not watch.is_over():
                since = time.perf_counter_ns()
                await self._ask()
                watch.lap(since)

        await asyncio.gather(*(caller() for _ in range(callers)))
        return watch.drive()


class OverGrpc:
    """A contestant that an asyncio client in this process reaches over gRPC."""

    _workload: Workload
    _callers: GrpcCallers
    _stack: ExitStack

    def infer(self) -> Mapping[str, Array]:
        """Ask once."""
        return {self._workload.output: self._callers.ask()}

    def drive(self, callers: int, seconds: float) -> Drive:
        """Send requests from as many tasks."""
        return self._callers.drive(callers, seconds)

    def close(self) -> None:
        """Disconnect, and stop the processes."""
        self._stack.close()

    def _decode(self, reply: bytes) -> Array:
        """Return the output, which is what a reply ends with."""
        expected = self._workload.expected
        array: Array = np.frombuffer(reply, expected.dtype, offset=len(reply) - expected.nbytes).reshape(expected.shape)
        return array
