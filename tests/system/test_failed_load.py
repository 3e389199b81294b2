"""A replay, a client and `mqinfer infer` ask the servers why nobody serves a model."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from mqinfer import AsyncClient, Client
from mqinfer.broker.address import BrokerAddress
from mqinfer.cli.app import app
from mqinfer.cli.edge.running import failed_load
from mqinfer.client.connection import connect
from mqinfer.client.control import AsyncControl
from mqinfer.client.options import ClientOptions
from mqinfer.edge_agent.session import run_sessions
from mqinfer.edge_agent.settings import ReplayOptions, ReplaySettings, SourceSettings
from mqinfer.lab.drives.recording import write_drive
from mqinfer.protocol.card import ModelCard
from mqinfer.protocol.control import Call, Operation
from mqinfer.protocol.errors import ModelNotFound, NoWorker
from mqinfer.protocol.topics import Topics
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.broker


def test_the_reason_of_a_server_is_reported(
    managed: Callable[..., Any],
    write_echo: Callable[..., Path],
    broker_url: str,
    unique: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The model's file is broken: the message names server, model and reason; of a model unknown to all nothing."""
    monkeypatch.setattr("mqinfer.client.watching.absence._ASK_S", PATIENCE_S)
    repository = write_echo("good")
    (repository / "broken" / "1").mkdir(parents=True)
    (repository / "broken" / "1" / "model.echo").write_text("this is [no file of a model")
    server = managed(repository, Topics(unique("test")))
    address = BrokerAddress.parse(broker_url)
    while (event := server.events.get(timeout=60)).kind not in {"waiting", "failed"}:
        pass
    with Client(broker_url, root=server.topics.root, options=ClientOptions(patience=0.1)) as client:
        with pytest.raises(NoWorker, match=f"server {server.name} can't load model 'broken': "):
            client.infer("broken", {"x": np.zeros((1, 1), np.float32)})
        with pytest.raises(ModelNotFound, match=f"broker: good.*server {server.name} can't load model 'broken': "):
            client.card("broken", 3.0)
        with pytest.raises(ModelNotFound, match=f"broker: good.*server {server.name} can't load model 'broken': "):
            asyncio.run(_asynchronous_card(broker_url, server.topics.root, "broken", 3.0))
        with pytest.raises(NoWorker, match=r"no worker serves it; [^;]*$"):
            client.infer("unknown", {"x": np.zeros((1, 1), np.float32)})
    np.save(tmp_path / "x.npy", np.zeros((1, 1), np.float32))
    options = "--input", f"x={tmp_path}/x.npy", "--broker", broker_url, "--root", server.topics.root
    found = CliRunner().invoke(app, ["infer", "broken", *options])
    assert f"server {server.name} can't load model 'broken': " in str(found.exception)
    with closing(connect(address, unique("edge"), server.topics)) as requester:
        error = failed_load(requester, ["broken"])
    with closing(connect(address, unique("edge"), server.topics)) as requester:
        assert failed_load(requester, ["good", "unknown"]) is None
    assert error is not None, event
    assert f"server {server.name} can't load model 'broken': " in str(error)
    assert "ignored a reply" not in caplog.text  # what servers answer is no reply to a request


def test_a_mistyped_name_waits_for_no_card(
    managed: Callable[..., Any],
    write_echo: Callable[..., Path],
    broker_url: str,
    unique: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Where another model has nearly that name, and servers have none of this one; one that loads is waited for."""
    drive = write_drive(tmp_path / "drive.bag", ros=1, frames=1, seed=1, width=48, height=32, truth_topic=False)
    write_echo("echo_2", delay_ms=1500)  # of each run of the warm-up
    repository = write_echo("echo_1")
    (repository / "echo_2").rename(repository.parent / "echo_2")
    server = managed(repository, Topics(unique("test")))
    while server.events.get(timeout=60).kind != "ready":
        pass
    monkeypatch.setattr("mqinfer.client.connection._CARD_TIMEOUT_S", 600.0)
    with Client(broker_url, root=server.topics.root) as client:
        with pytest.raises(ModelNotFound, match="did you mean 'echo_1'"):
            client.card("echo_l")
        with pytest.raises(ModelNotFound, match="did you mean 'echo_1'"):
            asyncio.run(_asynchronous_card(broker_url, server.topics.root, "echo_l"))
        with closing(connect(BrokerAddress.parse(broker_url), unique("edge"), server.topics)) as requester:
            settings = ReplaySettings(SourceSettings([str(drive)]), ReplayOptions("echo_l", card_timeout=600.0))
            with pytest.raises(ModelNotFound, match="did you mean 'echo_1'"):
                run_sessions(settings, ["echo_l"], requester, broker="", stop=Event(), console=Console())
        (repository.parent / "echo_2").rename(repository / "echo_2")
        with ThreadPoolExecutor(1) as pool:
            loading = pool.submit(server.control.load, "echo_2")
            assert asyncio.run(_asynchronous_card(broker_url, server.topics.root, "echo_2")).name == "echo_2"
            assert client.card("echo_2").name == "echo_2"
            loading.result(60)


async def _asynchronous_card(url: str, root: str, model: str, timeout: float | None = None) -> ModelCard:  # noqa: ASYNC109
    """Return what an asyncio client returns that also manages servers, over the same connection."""
    async with AsyncClient(url, root=root) as client:
        control = AsyncControl(client)
        assert await control.ask(Call(Operation.INDEX))
        return await client.card(model, timeout)
