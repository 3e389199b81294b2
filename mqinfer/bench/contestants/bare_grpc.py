"""The alternative that a good programmer writes in an afternoon: bare grpc.aio in front of ONNX Runtime."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

import numpy as np

from mqinfer.bench.contestants import grpc_server
from mqinfer.bench.contestants.contestant import Drive, Stopwatch
from mqinfer.bench.processes import Program
from mqinfer.bench.workloads import Workload
from mqinfer.broker.mosquitto import Login
from mqinfer.protocol.datatypes import Array
from mqinfer.protocol.errors import MissingExtra, ModelFailed

__all__ = ["BareGrpc"]

_Result = TypeVar("_Result")


class BareGrpc:
    """A server process, and an asyncio client in this one.

    Args:
        workload: What to ask.
        name: As in the tables.
        server: The server's certificate, which turns TLS on; None for none.
        client: The client's certificate, which the server asks for.
    """

    name = "bare grpc.aio"

    def __init__(
        self,
        workload: Workload,
        name: str = "bare grpc.aio",
        *,
        server: Login | None = None,
        client: Login | None = None,
    ) -> None:
        self.name = name
        self._workload = workload
        self._server_login, self._client_login = server, client
        self._runner = asyncio.Runner()
        self._server: Program | None = None
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
        login = self._server_login
        files = () if login is None else (login.ca_file, login.cert_file, login.key_file)
        self._server = Program(grpc_server.main, self._workload.path, *files)
        self._runner.run(self._connect(grpc, f"127.0.0.1:{self._server.first_line}"))
        self.infer()

    def infer(self) -> Mapping[str, Array]:
        """Ask once."""
        return {self._workload.output: self._run(self._ask())}

    def drive(self, callers: int, seconds: float) -> Drive:
        """Send requests from as many tasks."""
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
            self._server.close()

    def _run(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        import grpc

        try:
            return self._runner.run(work)
        except grpc.RpcError as error:
            raise ModelFailed(f"the bench's gRPC server did not answer for {self._workload.name}: {error}") from error

    async def _connect(self, grpc: Any, target: str) -> None:
        # Made inside the loop that it belongs to.
        login = self._client_login
        if login is None or login.cert_file is None or login.key_file is None:
            self._channel = grpc.aio.insecure_channel(target, options=grpc_server.OPTIONS)
        else:
            ca, key, certificate = (path.read_bytes() for path in (login.ca_file, login.key_file, login.cert_file))
            credentials = grpc.ssl_channel_credentials(ca, key, certificate)
            self._channel = grpc.aio.secure_channel(target, credentials, options=grpc_server.OPTIONS)
        self._call = self._channel.unary_unary(grpc_server.METHOD)

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
