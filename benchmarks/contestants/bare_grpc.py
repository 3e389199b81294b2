"""The alternative that a good programmer writes in an afternoon: bare grpc.aio in front of ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from benchmarks.contestants import grpc_server
from benchmarks.contestants.grpc_callers import GrpcCallers
from benchmarks.processes import Program
from mqinfer.bench.load import Drive
from mqinfer.bench.workloads import Workload
from mqinfer.broker.mosquitto import Login
from mqinfer.protocol.datatypes import Array
from mqinfer.protocol.errors import ModelFailed

__all__ = ["BareGrpc"]


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
        self._server: Program | None = None
        self._callers: GrpcCallers | None = None

    def start(self) -> None:
        """Start the server and connect.

        Raises:
            MissingExtra: grpcio is not installed.
            ModelNotLoadable: The server ended before it served.
        """
        login = self._server_login
        files = () if login is None else (login.ca_file, login.cert_file, login.key_file)
        self._server = Program(grpc_server.main, self._workload.path, *files)
        target = f"127.0.0.1:{self._server.first_line}"
        encode = self._workload.array.tobytes
        self._callers = GrpcCallers(target, grpc_server.METHOD, encode, self._decode, self._client_login)
        self.infer()

    def infer(self) -> Mapping[str, Array]:
        """Ask once."""
        return {self._workload.output: self._connected().ask()}

    def drive(self, callers: int, seconds: float) -> Drive:
        """Send requests from as many tasks."""
        return self._connected().drive(callers, seconds)

    def pids(self) -> Mapping[str, int]:
        """The server."""
        return {"server": self._server.pid} if self._server else {}

    def close(self) -> None:
        """Disconnect, and stop the server by closing its standard input."""
        if self._callers is not None:
            self._callers.close()
        if self._server is not None:
            self._server.close()

    def _decode(self, reply: bytes) -> Array:
        expected = self._workload.expected
        array: Array = np.frombuffer(reply, expected.dtype).reshape(expected.shape)
        return array

    def _connected(self) -> GrpcCallers:
        if self._callers is None:
            raise ModelFailed("the contestant has not been started")
        return self._callers
