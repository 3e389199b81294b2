"""A gateway's core in the test's own loop, before a real Mosquitto and a real server of small models."""

from __future__ import annotations

import asyncio
import inspect
import os
import subprocess
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Any, Protocol

import pytest

from mqinfer.broker import make_link
from mqinfer.broker.address import BrokerAddress
from mqinfer.cli.options import make_group, options_of
from mqinfer.client.aio import AsyncClient
from mqinfer.client.control import AsyncControl
from mqinfer.cloud_worker.serving.options import WorkerOptions
from mqinfer.cloud_worker.supervision.control_server import ControlServer
from mqinfer.cloud_worker.supervision.management import Management
from mqinfer.cloud_worker.supervision.planning import plan
from mqinfer.cloud_worker.supervision.process import ProcessSpec
from mqinfer.cloud_worker.supervision.supervisor import Event, Supervisor
from mqinfer.gateway.core import Core
from mqinfer.gateway.settings import GatewaySettings
from mqinfer.models.repository import Repository
from mqinfer.protocol.topics import Topics
from mqinfer.web.tls import TlsFiles
from tests.gateway.models import build_repository
from tests.patience import PATIENCE_S, PATIENT

_PEERS = Path(__file__).parents[2] / ".venv-peers"


@dataclass(frozen=True, slots=True)
class Fleet:
    """A server of the models of `tests.gateway.models`, as `mqinfer worker` starts one, and where to reach it.

    Attributes:
        url: Broker.
        root: Topic root.
        server: The server's name; its processes are `{server}.0` and so on.
        repository: The models' folder.
        supervisor: Of the processes.
    """

    url: str
    root: str
    server: str
    repository: Path
    supervisor: Supervisor


class OpenCore(Protocol):
    """Opens a core: `async with open_core() as core`."""

    def __call__(self, **options: Any) -> AbstractAsyncContextManager[Core]:
        """Open a core with these arguments of `Core`."""


def gateway_settings(tls: TlsFiles | None = None, **options: Any) -> GatewaySettings:
    """Return settings with these values of options, and the defaults of the others."""
    chosen = {name: default for name, (_, default) in options_of(GatewaySettings).items()}
    if tls:
        chosen |= {"tls_cert": tls.cert, "tls_key": tls.key, "client_ca": tls.client_ca}
    assert options.keys() <= chosen.keys()
    made: GatewaySettings = make_group(GatewaySettings, chosen | options)
    return made


@contextmanager
def serve_repository(
    repository: Path, broker_url: str, root: str, models: Sequence[str] = (), instances: int | None = None
) -> Iterator[Fleet]:
    """Serve models until the end of the context, each in so many processes, below a topic root of this process."""
    topics, address = Topics(f"{root}-{os.getpid()}"), BrokerAddress.parse(broker_url)
    template = ProcessSpec(repository, "", 0, address, WorkerOptions("server", topics), device="cpu")
    supervisor = Supervisor(plan(Repository(repository), template, models, instances), may_idle=True)
    server = ControlServer(
        template.options,
        lambda name, will, handler: make_link(address, client_id=name, will=will, on_connection=handler),
        Management(template, supervisor, instances),
    )
    ready = threading.Semaphore(0)

    def report(event: Event) -> None:
        server.report(event)
        if event.kind == "ready":
            ready.release()

    supervisor.on_event = report
    server.start()
    thread = threading.Thread(target=supervisor.run, name="supervisor")
    thread.start()
    try:
        for _ in supervisor.specs:
            assert ready.acquire(timeout=300), "not all models are served"
        yield Fleet(broker_url, topics.root, "server", repository, supervisor)
    finally:
        supervisor.stop()
        thread.join()
        server.stop()


@pytest.fixture(scope="session")
def fleet(broker_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Serve the small models on the session's Mosquitto. Tests share it: load what a test unloads again."""
    repository = build_repository(tmp_path_factory.mktemp("gateway"))
    with serve_repository(repository, broker_url, "gateway") as served:
        yield served


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine function in a loop of its own, in which it enters the contexts of its fixtures."""
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        return None
    given = {name: pyfuncitem.funcargs[name] for name in inspect.signature(test).parameters}

    async def main() -> None:
        async with AsyncExitStack() as stack:
            for name, each in given.items():
                if isinstance(each, AbstractAsyncContextManager):
                    given[name] = await stack.enter_async_context(each)
            await test(**given)

    asyncio.run(main())
    return True


@pytest.fixture
def options(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Return the options that a test chooses by its marker."""
    marker = request.node.get_closest_marker("options")
    return dict(marker.kwargs) if marker else {}


@pytest.fixture
def core(open_core: OpenCore, options: dict[str, Any]) -> AbstractAsyncContextManager[Core]:
    """Open a core to the fleet in the test's loop, with these arguments of `Core`."""
    return open_core(**options)


@pytest.fixture
def open_core(fleet: Fleet) -> OpenCore:
    """Open a core to the fleet in the running loop."""
    return core_of(fleet)


def core_of(fleet: Fleet) -> OpenCore:
    """Return what opens a core to a fleet in the running loop."""

    @asynccontextmanager
    async def opened(**options: Any) -> AsyncIterator[Core]:
        async with AsyncClient(fleet.url, root=fleet.root, options=PATIENT) as client:
            core = Core(client, AsyncControl(client), **options)
            with core.decompressor:
                await core.start()
                yield core

    return opened


@pytest.fixture
def front(open_core: OpenCore, options: dict[str, Any]) -> AbstractAsyncContextManager[Any]:
    """Serve the front of the Open Inference Protocol over HTTP, with these options."""
    from tests.gateway.rest_front import serving

    return serving(open_core, **options)


_PEER_S = 4 * PATIENCE_S
"""Longest time of a script with a published client, in seconds; what it waits for itself is bounded by less."""
_GUARD = f"""
import faulthandler, os, sys, traceback

def end(*error):
    traceback.print_exception(*error)
    sys.stderr.flush()
    os._exit(1)

sys.excepthook = end  # threads of clients, such as that of a stream, would keep a script that has failed
faulthandler.dump_traceback_later({_PEER_S}, exit=True)
"""


async def call_peer(python: Path, script: str, *arguments: str) -> None:
    """Run a script with a published client; the last that it prints is PASS. One that hangs ends with its stacks."""
    process = await asyncio.create_subprocess_exec(
        python,
        "-c",
        _GUARD + dedent(script),
        *arguments,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={key: value for key, value in os.environ.items() if not key.startswith("PYTHON")},
    )
    output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()[-6000:]
    assert output.endswith(b"PASS\n"), output.decode()[-6000:]


@pytest.fixture(scope="session")
def peer_python() -> Any:
    """Return the Python of an environment with a published client, `peer_python("triton")`.

    `MQINFER_PEERS` names the folder of the environments; scripts/test makes them in `.venv-peers`.
    """

    def find(name: str) -> Path:
        python = Path(os.environ.get("MQINFER_PEERS") or _PEERS) / name / "bin" / "python"
        assert python.exists(), f"no environment {python.parent.parent}; scripts/setup makes it"
        return python

    return find
