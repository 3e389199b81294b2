"""The alternative that a good programmer writes in an afternoon: bare grpc.aio in front of ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack

from mqinfer.bench.contestants import grpc_server
from mqinfer.bench.contestants.grpc_callers import GrpcCallers, OverGrpc
from mqinfer.bench.processes import Program
from mqinfer.bench.workloads import Workload
from mqinfer.broker.mosquitto import Login


class BareGrpc(OverGrpc):
    """A server process, and an asyncio client in this one.

    Args:
        workload: What to ask.
        name: As in the tables.
        server: The server's certificate, which turns TLS on; None for none.
        client: The client's certificate, which the server asks for.

    Raises:
        MissingExtra: grpcio is not installed.
        ModelNotLoadable: The server ended before it served.
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
        files = () if server is None else (server.ca_file, server.cert_file, server.key_file)
        with ExitStack() as stack:
            self._server = Program(grpc_server.main, workload.path, *files)
            stack.callback(self._server.close)
            target = f"127.0.0.1:{self._server.first_line}"
            self._callers = GrpcCallers(target, grpc_server.METHOD, workload.array.tobytes, self._decode, client)
            stack.callback(self._callers.close)
            self.infer()
            self._stack = stack.pop_all()

    def pids(self) -> Mapping[str, int]:
        """The server."""
        return {"server": self._server.pid}
