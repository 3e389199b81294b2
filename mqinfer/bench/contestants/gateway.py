"""The gateway's gRPC front: clients of the Open Inference Protocol, a gateway process, a broker, a worker process."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import ExitStack, asynccontextmanager

from mqinfer.bench.contestants.grpc_callers import GrpcCallers, OverGrpc
from mqinfer.bench.contestants.over_mqtt import BrokerAccess
from mqinfer.bench.processes import Program, say, worker_processes
from mqinfer.bench.workloads import Workload
from mqinfer.broker.mosquitto.server import MosquittoServer
from mqinfer.protocol.datatypes import datatype_of
from mqinfer.protocol.errors import ModelFailed

METHOD = "/inference.GRPCInferenceService/ModelInfer"


class Gateway(OverGrpc):
    """A broker of its own, a worker process under a supervisor, a gateway process, and an asyncio client in this one.

    Requests name their output, and carry the tensor raw, as the field's clients do.

    Args:
        workload: What to ask.

    Raises:
        ModelNotLoadable: Worker or gateway did not start.
    """

    name = "gateway"

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        with ExitStack() as stack:
            self._broker = stack.enter_context(MosquittoServer())
            self._supervisor = stack.enter_context(worker_processes([BrokerAccess.to(self._broker).spec(workload)]))
            self._gateway = Program(serve, self._broker.url)
            stack.callback(self._gateway.close)
            target = f"127.0.0.1:{self._gateway.first_line}"
            self._callers = GrpcCallers(target, METHOD, request_maker(workload), self._decode)
            stack.callback(self._callers.close)
            self.infer()
            self._stack = stack.pop_all()

    def pids(self) -> Mapping[str, int]:
        """The gateway, the worker and the broker."""
        workers = list(self._supervisor.pids.values())
        if not workers:
            raise ModelFailed(f"the bench's worker for {self._workload.name} does not run")
        return {"gateway": self._gateway.pid, "server": workers[0], "broker": self._broker.pid}


def request_maker(workload: Workload) -> Callable[[], bytes]:
    """Return what makes a request as the field's clients do: its output named, its tensor raw."""
    from mqinfer.gateway.messages import message_class
    from mqinfer.protobuf_wire import delimited

    array = workload.array
    described = {"name": workload.input, "datatype": str(datatype_of(array.dtype)), "shape": array.shape}
    request = message_class("inference.ModelInferRequest")(
        model_name=workload.model, inputs=[described], outputs=[{"name": workload.output}]
    )
    head = bytes(request.SerializeToString()) + delimited(7, array.nbytes)
    return lambda: b"".join((head, array.data.cast("B")))


def serve(url: str) -> None:
    """Run the gateway's gRPC front: print its port, and serve until standard input ends.

    Args:
        url: Of the broker.
    """
    asyncio.run(_serve(url))


async def _serve(url: str) -> None:
    async with serving(url) as port:
        say(str(port))
        await asyncio.to_thread(sys.stdin.read)


@asynccontextmanager
async def serving(url: str) -> AsyncIterator[int]:
    """Serve the gRPC front of a gateway in this process; yield its port.

    Args:
        url: Of the broker.
    """
    from mqinfer.client.aio import AsyncClient
    from mqinfer.client.control import AsyncControl
    from mqinfer.gateway.access import Access
    from mqinfer.gateway.core import Core
    from mqinfer.gateway.grpc import make_handlers
    from mqinfer.gateway.grpc_calls import make_server, start_server
    from mqinfer.gateway.settings import GatewaySettings

    settings = GatewaySettings()
    async with AsyncClient(url, in_loop=True) as client:
        core = Core(client, AsyncControl(client))
        await core.start()
        server = make_server(make_handlers(core, Access(asks_certificates=False), settings), settings)
        port = server.add_insecure_port("127.0.0.1:0")
        await start_server(server, port)
        yield port
        await server.stop(None)
