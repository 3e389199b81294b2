"""What a dashboard's login sees: all that a dashboard shows; and that it can ask nobody for more."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from mqinfer.broker.link import Message
from mqinfer.broker.paho.link import PahoLink
from mqinfer.cli.app import app
from mqinfer.client import Client
from mqinfer.client.connection import connect
from mqinfer.cloud_worker.serving.worker import Worker
from mqinfer.edge_agent.frames.published import PublishedCounts
from mqinfer.edge_agent.previews import Previews
from mqinfer.lab.drives.synthetic import SyntheticDrive
from mqinfer.protocol.envelope import decode_response
from mqinfer.protocol.states import ClientState, ProcessStatus, StreamState
from mqinfer.protocol.topics import Topics
from mqinfer.protocol.types import Capture
from tests.patience import wait_until

pytestmark = pytest.mark.broker

Serve = Callable[..., Worker]
WriteEcho = Callable[..., Path]
Links = Mapping[str, PahoLink]
TOPICS = Topics()
CAMERA = Capture("/camera", 3)
X = np.ones((1, 4), np.float32)


@pytest.mark.parametrize("name", ["car-1", "car-1.front"])
def test_what_a_dashboard_reads(secured: Any, links: Links, serve: Serve, write_echo: WriteEcho, name: str) -> None:
    """Cards, states of workers and clients, results and previews: of vehicles, and of their sub-names."""
    serve(secured.address("w"), write_echo("echo"), name="w.0")
    filters = (
        TOPICS.card.filter(),
        TOPICS.worker_state.filter(),
        TOPICS.client_state.filter(),
        TOPICS.previews.filter(),
        "mqinfer/v1/results/+/+/+",
    )
    heard: dict[str, Message] = {}
    scene = SyntheticDrive(1, 96, 60).scene(0).picture
    for each in filters:
        links["dash"].subscribe(each, lambda message: heard.__setitem__(message.topic, message))
    try:
        with Client(secured.address("car-1"), name=name, announce="drive.bag") as client:
            request = client.infer("echo", {"x": X}, capture=CAMERA).id
            publisher = connect(secured.address("car-1"), name)
            previews = Previews(publisher, "echo", 1.0)
            previews.publish(request, CAMERA, lambda: scene, (96, 60))
            publisher.close()
            assert previews.total == PublishedCounts(1)
            result, preview = TOPICS.result("echo", name, request), TOPICS.preview(name, "/camera")
            states = {TOPICS.card("echo"), TOPICS.worker_state("w.0"), TOPICS.client_state(name)}
            wait_until(lambda: {result, preview, *states} <= heard.keys())
    finally:
        for each in filters:
            links["dash"].unsubscribe(each)
    shown, answered = decode_response(heard[preview].payload), decode_response(heard[result].payload)
    assert (shown.id, shown.capture) == (answered.id, answered.capture) == (request, CAMERA)


def test_what_a_dashboards_login_shows(
    secured: Any, links: Mapping[str, PahoLink], serve: Serve, write_echo: WriteEcho
) -> None:
    """It asks nothing: `status` shows what states say, and says so, as does `models ready`."""
    address, login = secured.address("dash"), secured.logins["dash"]
    files = ("--ca-file", login.ca_file, "--cert-file", login.cert_file, "--key-file", login.key_file)
    where = tuple(map(str, ("--broker", f"mqtts://{address.host}:{address.port}", *files)))
    asked: SimpleQueue[str] = SimpleQueue()
    links["witness"].subscribe("mqinfer/v1/control/#", lambda message: asked.put(message.topic))
    repository = write_echo("echo")
    serve(secured.address("w"), repository, name="w.0")
    stream = StreamState("/front", "echo", 9.5, previews=3)
    state = ClientState("car-2", ProcessStatus.READY, 1, "drive.bag", "echo", streams=(stream,))
    links["witness"].publish(Message(TOPICS.client_state("car-2"), state.to_json(), retain=True))
    with Client(secured.address("car-1"), name="car-1", announce="drive.bag"):
        told = CliRunner().invoke(app, ["status", "--json", "--interval", "0.1", *where])
        assert told.exit_code == 0, told.output
        found = json.loads(told.stdout)
        assert [(each["model"], each["state"], each["rate"]) for each in found["models"]] == [("echo", "READY", None)]
        assert [each["client"] for each in found["clients"]] == ["car-1", "car-2"]
        (shown,) = found["streams"]
        assert (shown["client"], shown["source"], shown["rate"], shown["previews"]) == ("car-2", "/front", 9.5, 3)
        assert "shown is what states say" in found["problem"]
        assert found["lag"]["echo"]["workers"] == 1
        for more in ((), ("--watch", "--count", "1")):
            told = CliRunner().invoke(app, ["status", "--interval", "0.1", *more, *where])
            assert told.exit_code == 0, told.output
            assert "this login may not ask servers" in told.stdout
            assert "w.0" in told.stdout
        told = CliRunner().invoke(app, ["models", "card", "echo", *where])
        assert json.loads(told.stdout)["name"] == "echo"
        told = CliRunner().invoke(app, ["models", "ready", "echo", *where])
        assert "an operator's does both" in told.output + str(told.exception)
    links["witness"].publish(Message(TOPICS.client_state("car-2"), b"", retain=True))
    links["witness"].unsubscribe("mqinfer/v1/control/#")
    assert asked.empty()
