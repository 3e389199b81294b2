"""A gateway with its own login on a broker with access rules: what works, and what the broker refuses."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mqinfer.broker import make_link
from mqinfer.client import AsyncClient
from mqinfer.client.control import AsyncControl
from mqinfer.cloud_worker.serving.options import WorkerOptions
from mqinfer.cloud_worker.supervision.control_server import ControlServer
from mqinfer.cloud_worker.supervision.management import Management
from mqinfer.cloud_worker.supervision.planning import plan
from mqinfer.cloud_worker.supervision.process import ProcessSpec
from mqinfer.cloud_worker.supervision.supervisor import Supervisor
from mqinfer.codecs import encode_tensor
from mqinfer.gateway.calls import InferCall
from mqinfer.gateway.core import Core
from mqinfer.models.repository import Repository
from mqinfer.protocol.errors import NotAuthorized
from mqinfer.protocol.topics import Topics

pytestmark = [pytest.mark.broker, pytest.mark.slow]


@contextmanager
def running(server: ControlServer, supervisor: Supervisor) -> Iterator[None]:
    """Run a server until the end of the block."""
    supervisor.on_event = server.report
    server.start()
    thread = threading.Thread(target=supervisor.run, name="supervisor")
    thread.start()
    try:
        yield
    finally:
        supervisor.stop()
        thread.join()
        server.stop()


@pytest.mark.parametrize(("login", "name"), [("gw", "gw"), ("gw", "gw.7"), ("op", "op")])
def test_what_a_gateway_may_do(secured: Any, write_echo: Callable[..., Path], login: str, name: str) -> None:
    """Requests, questions and clients' states, under the name of each process; orders with an operator's login only."""
    topics = Topics()
    repository = write_echo("echo")
    spec = ProcessSpec(
        repository, "", 0, secured.address("w"), WorkerOptions("w", topics, group=secured.folder.group())
    )
    supervisor = Supervisor(plan(Repository(repository), spec), may_idle=True)
    server = ControlServer(
        spec.options,
        lambda client, will, handler: make_link(spec.broker, client_id=client, will=will, on_connection=handler),
        Management(spec, supervisor, None),
    )
    x = encode_tensor("x", np.ones((1, 4), np.float32))

    async def ask() -> None:
        async with AsyncClient(secured.address(login), name=name, announce="gateway") as client:
            client.connection.registry.watches_clients = True
            core = Core(client, AsyncControl(client))
            await core.start()
            assert await client.connection.registry.until(core.ready, 60)
            async with asyncio.timeout(60):
                while [each["state"] for each in await core.index()] != ["READY"]:
                    pass  # the server learns from its process after the broker has
            result = await core.infer(InferCall("echo", None, (x,), deadline_s=60))
            assert result.outputs["x"].tolist() == [[1, 1, 1, 1]]
            assert (await core.metadata("echo", "1")).name == "echo"
            assert (await core.config("echo"))["name"] == "echo"
            assert [each["name"] for each in await core.statistics("echo", "1")] == ["echo"]
            assert [each["name"] for each in await core.statistics()] == ["echo"]
            assert [each["name"] for each in await core.index()] == ["echo"]
            assert await client.connection.registry.until(lambda: name in client.connection.registry.known.clients, 60)
            if login == "op":
                await core.load("echo")
            else:
                for order in (core.load, core.unload):
                    with pytest.raises(NotAuthorized, match=f"does not allow client '{name}'"):
                        await order("echo")
                assert core.model_ready("echo")

    with running(server, supervisor):
        asyncio.run(ask())
