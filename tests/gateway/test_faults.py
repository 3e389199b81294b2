"""Callers of both fronts while a worker, the broker or the gateway itself ends: each call is answered once."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections import Counter
from collections.abc import Awaitable, Callable
from itertools import count
from pathlib import Path
from typing import Self

import aiohttp
import grpc
import numpy as np
import pytest

from mqinfer.broker.mosquitto.server import MosquittoServer
from mqinfer.client.control import ControlClient
from mqinfer.gateway.core import Core
from mqinfer.gateway.messages import message_class
from tests.gateway.conftest import Fleet, serve_repository
from tests.gateway.models import build_repository
from tests.gateway.test_process import PATIENCE, Running, running, settings_of

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.full]

CALLERS = 16
"""Of each front."""


class Load:
    """Callers that each send one request after the other, with other numbers each time, until `stop`."""

    def __init__(self, gateway: Running) -> None:
        self.outcomes: dict[str, Counter[str]] = {"http": Counter(), "grpc": Counter()}
        self._gateway = gateway
        self._numbers = count()
        self._stopped = False
        self._answered = asyncio.Condition()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        self._channel = grpc.aio.insecure_channel(self._gateway.grpc)
        self._method = self._channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        for front, ask in (("http", self._by_http), ("grpc", self._by_grpc)):
            self._tasks += [asyncio.create_task(self._call(front, ask)) for _ in range(CALLERS)]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stopped = True
        await asyncio.gather(*self._tasks)
        await self._session.close()
        await self._channel.close()

    async def until_answered(self, more: int) -> None:
        """Wait until each front has answered so many more calls."""
        goals = {front: found.total() + more for front, found in self.outcomes.items()}
        async with asyncio.timeout(PATIENCE), self._answered:
            await self._answered.wait_for(
                lambda: all(self.outcomes[front].total() >= goal for front, goal in goals.items())
            )

    async def _call(self, front: str, ask: Callable[[int], Awaitable[str]]) -> None:
        while not self._stopped:
            outcome = await ask(next(self._numbers))
            async with self._answered:
                self.outcomes[front][outcome] += 1
                self._answered.notify_all()

    async def _by_http(self, number: int) -> str:
        row = [number + each for each in range(16)]
        inputs = [{"name": name, "datatype": "INT32", "shape": [1, 16], "data": row} for name in ("INPUT0", "INPUT1")]
        url = f"{self._gateway.http}/v2/models/simple/infer"
        try:
            async with self._session.post(url, json={"inputs": inputs}) as reply:
                body = await reply.json()
        except Exception as error:  # noqa: BLE001 - what the test is about
            return f"untyped: {error!r}"
        if reply.status != 200:
            return f"{reply.status}: {body['error'][:60]}"
        return "ok" if body["outputs"][0]["data"] == [2 * each for each in row] else "wrong"

    async def _by_grpc(self, number: int) -> str:
        row = np.arange(number, number + 16, dtype=np.int32)
        inputs = [{"name": name, "datatype": "INT32", "shape": [1, 16]} for name in ("INPUT0", "INPUT1")]
        request = message_class("inference.ModelInferRequest")(
            model_name="simple", inputs=inputs, raw_input_contents=[row.tobytes()] * 2
        )
        try:
            reply = message_class("inference.ModelInferResponse").FromString(
                await self._method(request.SerializeToString())
            )
        except grpc.aio.AioRpcError as error:
            known = error.code() not in {grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL}
            return f"{error.code().name if known else 'untyped'}: {(error.details() or '')[:60]}"
        return "ok" if reply.raw_output_contents[0] == (2 * row).tobytes() else "wrong"


@pytest.fixture
def cores(monkeypatch: pytest.MonkeyPatch) -> list[Core]:
    """The cores that are started in a test."""
    found: list[Core] = []
    start = Core.start

    async def started(core: Core) -> None:
        found.append(core)
        await start(core)

    monkeypatch.setattr(Core, "start", started)
    return found


def counted(core: Core) -> dict[tuple[str, str], int]:
    """Return a gateway's counters; each call that it accepted has an outcome."""
    counters = core.inference
    assert sum(counters.outcomes.values()) == counters.admission.accepted
    return dict(counters.outcomes)


def test_faults_under_load(tmp_path: Path, unique: Callable[[str], str], cores: list[Core]) -> None:
    """No call fails, none is answered wrongly, and the gateway's counters are those of its callers.

    Waits for a worker's and the broker's restart, and for a model's new version.
    """
    repository = build_repository(tmp_path / "models")

    async def main() -> None:
        async with running(fleet, settings_of(timeout=PATIENCE), unique("gw")) as gateway:
            async with Load(gateway) as load:
                await load.until_answered(50)
                os.kill(next(iter(fleet.supervisor.pids.values())), signal.SIGKILL)
                await load.until_answered(50)
                shutil.copytree(repository / "simple" / "1", repository / "simple" / "2")
                await asyncio.to_thread(control.load, "simple", timeout=PATIENCE)
                await load.until_answered(50)
                await asyncio.to_thread(broker.kill)
                await asyncio.to_thread(broker.start)
                await load.until_answered(200)
            assert {each for outcomes in load.outcomes.values() for each in outcomes} == {"ok"}
            assert counted(cores[0]) == {("simple", "ok"): sum(each.total() for each in load.outcomes.values())}

    with (
        MosquittoServer() as broker,
        serve_repository(repository, broker.url, "faults", ["simple"], 2) as fleet,
        ControlClient(broker.url, root=fleet.root) as control,
    ):
        asyncio.run(main())


async def test_sigterm_under_load(fleet: Fleet, unique: Callable[[str], str], cores: list[Core]) -> None:
    """Every call that the gateway has accepted is answered, and the answer reaches its caller."""
    async with running(fleet, settings_of(drain=PATIENCE), unique("gw")) as gateway:
        async with Load(gateway) as load:
            await load.until_answered(50)
            gateway.stop.request()
            await gateway.ended
        answered = sum(each["ok"] for each in load.outcomes.values())
        assert counted(cores[0]) == {("simple", "ok"): answered}
