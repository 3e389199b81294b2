"""The alternative that a good programmer writes in an afternoon: bare grpc.aio in front of ONNX Runtime."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

import numpy as np

from mqinfer.bench.contestants.contestant import Drive, Stopwatch
from mqinfer.bench.workloads import Workload
from mqinfer.protocol.datatypes import Array
from mqinfer.protocol.errors import MissingExtra, ModelFailed, ModelNotLoadable

__all__ = ["METHOD", "OPTIONS", "BareGrpc"]

_Result = TypeVar("_Result")

METHOD = "/bench.Raw/Infer"
OPTIONS = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]


class BareGrpc:
    """A server process, and an asyncio client in this one."""

    name = "bare grpc.aio"

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._runner = asyncio.Runner()
        self._server: subprocess.Popen[str] | None = None
        self._channel: Any = None
        self._call: Any = None

    def start(self) -> None:
        """Start the server and connect.

        Raises:
            MissingExtra: grpcio is not installed.
            ModelNotLoadable: The server ended before it served.
        """
        try:
            import grpc
        except ImportError as error:
            raise MissingExtra.of("grpcio", "bench") from error
        command = [sys.executable, "-m", "mqinfer.bench.contestants.grpc_server", str(self._workload.path)]
        server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)  # noqa: S603 - our own module
        self._server = server
        port = server.stdout.readline().strip() if server.stdout else ""
        if not port:
            raise ModelNotLoadable(
                f"the bench's gRPC server did not start for {self._workload.path}; it says why above"
            )
        self._runner.run(self._connect(grpc.aio.insecure_channel, f"127.0.0.1:{port}"))
        self.infer()

    def infer(self) -> Mapping[str, Array]:
        """Ask once."""
        return {self._workload.output: self._run(self._ask())}

    def drive(self, callers: int, seconds: float) -> Drive:
        """Let as many tasks ask in turn."""
        return self._run(self._drive(callers, seconds))

    def pids(self) -> Mapping[str, int]:
        """The server."""
        return {"server": self._server.pid} if self._server else {}

    def close(self) -> None:
        """Disconnect, and stop the server by closing its standard input."""
        if self._channel is not None:
            self._runner.run(self._channel.close())
        self._runner.close()
        if self._server is not None:
            self._server.communicate()

    def _run(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        import grpc

        try:
            return self._runner.run(work)
        except grpc.RpcError as error:
            raise ModelFailed(f"the bench's gRPC server did not answer for {self._workload.name}: {error}") from error

    async def _connect(self, make_channel: Any, target: str) -> None:
        # Made inside the loop that it belongs to.
        self._channel = make_channel(target, options=OPTIONS)
        self._call = self._channel.unary_unary(METHOD)

    async def _ask(self) -> Array:
        workload = self._workload
        reply = await self._call(workload.array.tobytes())
        array: Array = np.frombuffer(reply, workload.expected.dtype).reshape(workload.expected.shape)
        return array

    async def _drive(self, callers: int, seconds: float) -> Drive:
        watch = Stopwatch(seconds)

        async def caller() -> None:
            while not watch.is_over():
                since = time.perf_counter_ns()
                await self._ask()
                watch.lap(since)

        await asyncio.gather(*(caller() for _ in range(callers)))
        return watch.drive()
