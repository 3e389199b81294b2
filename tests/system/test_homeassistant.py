"""A stream in a real Home Assistant, which knows it by MQTT discovery: states, image, offline, back, and its end."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import numpy as np
import pytest
from aiohttp import ClientSession

from mqinfer.client.announcer import ClientAnnouncer
from mqinfer.client.connection import connect
from mqinfer.edge_agent.frames.view import FrameView
from mqinfer.edge_agent.sinks.homeassistant import HomeAssistant
from mqinfer.edge_agent.sinks.mqtt_sink import MqttSink
from mqinfer.edge_agent.sinks.presence import Area, ModelPresence, PresenceSettings
from mqinfer.images.placement import Placement
from mqinfer.protocol.card import ClassInfo, Resize
from mqinfer.protocol.datatypes import Array
from mqinfer.protocol.states import StreamState
from mqinfer.protocol.topics import Topics
from tests.chromium import chromium
from tests.edge_agent.test_sinks_mqtt import frame, result
from tests.patience import PATIENCE_S
from tests.ports import free_port

pytestmark = [pytest.mark.broker, pytest.mark.slow]
PEERS = Path(os.environ.get("MQINFER_PEERS") or Path(__file__).parents[2] / ".venv-peers")
CONFIGURATION = """
homeassistant: {{name: Home, latitude: 50, longitude: 8, elevation: 0, unit_system: metric, time_zone: UTC}}
http: {{server_host: 127.0.0.1, server_port: {port}}}
api:
config:
frontend:
"""
CLASSES = (ClassInfo("car", (255, 0, 0)), ClassInfo("lane mark", (0, 255, 0)))
WATCHED = PresenceSettings(
    frames=1,
    of=1,
    hold_s=0,
    zones={"yard": Area(((0, 0), (80, 0), (80, 40), (0, 40)))},
    lines={"gate": Area(((0, 100), (80, 100)))},
)
CAR: dict[str, Array] = {
    "boxes": np.array([[5, 5, 15, 10]], np.float32),
    "scores": np.array([0.875], np.float32),
    "classes": np.array([0], np.int64),
}
NOTHING: dict[str, Array] = {"boxes": np.zeros((0, 4), np.float32), "scores": np.zeros(0, np.float32)}
NAME = "car-1.front /camera/image"


class Home:
    """A Home Assistant, over its REST API."""

    def __init__(self, url: str) -> None:
        self.url, self.token = url, ""

    def ask(self, path: str, body: Any = None, *, is_form: bool = False) -> Any:
        """Ask it, by POST where there is a body."""
        data = None if body is None else urlencode(body).encode() if is_form else json.dumps(body).encode()
        kind = "application/x-www-form-urlencoded" if is_form else "application/json"
        head = {"Content-Type": kind, **({"Authorization": f"Bearer {self.token}"} if self.token else {})}
        with urlopen(Request(self.url + path, data, head), timeout=2 * PATIENCE_S) as reply:  # noqa: S310 - it is http
            content = reply.read()
            return json.loads(content) if "json" in reply.headers["Content-Type"] else content

    def begin(self, broker: str) -> None:
        """Make a user, and connect it to a broker, as its page would."""
        own = {"client_id": self.url + "/"}
        user = {**own, "name": "owner", "username": "owner", "password": "owner", "language": "en"}
        code = self.ask("/api/onboarding/users", user)["auth_code"]
        grant = {**own, "grant_type": "authorization_code", "code": code}
        self.token = self.ask("/auth/token", grant, is_form=True)["access_token"]
        with suppress(OSError):  # it is done, and fails for want of a forecast: of its packages, or of a network
            self.ask("/api/onboarding/core_config", own)
        self.ask("/api/onboarding/analytics", own)
        self.ask("/api/onboarding/integration", {**own, "redirect_uri": self.url + "/"})
        flow = self.ask("/api/config/config_entries/flow", {"handler": "mqtt"})["flow_id"]
        host, _, port = broker.rpartition("/")[2].partition(":")
        made = self.ask(f"/api/config/config_entries/flow/{flow}", {"broker": host, "port": int(port)})
        assert made["type"] == "create_entry", made

    def states(self) -> dict[str, str]:
        """Return the state of each entity of the stream, by the name that its page shows."""
        found = {each["attributes"].get("friendly_name", ""): each["state"] for each in self.ask("/api/states")}
        return {name.removeprefix(f"{NAME} "): state for name, state in found.items() if name.startswith(NAME)}

    def entity(self, name: str) -> dict[str, Any]:
        """Return an entity of the stream."""
        named = (
            each for each in self.ask("/api/states") if each["attributes"].get("friendly_name") == f"{NAME} {name}"
        )
        return next(named)

    def overlay(self) -> bytes:
        """Return the overlay of the stream; nothing before there is one."""
        try:
            found: bytes = self.ask(self.entity("overlay")["attributes"]["entity_picture"])
        except (HTTPError, StopIteration):
            return b""
        return found

    async def rename(self, entity: str, wanted: str, name: str) -> None:
        """Give an entity another id and name, as its page does."""
        async with ClientSession() as session, session.ws_connect(f"{self.url}/api/websocket") as socket:
            await socket.receive_json()
            await socket.send_json({"type": "auth", "access_token": self.token})
            await socket.receive_json()
            what = {"entity_id": entity, "new_entity_id": wanted, "name": name}
            await socket.send_json({"id": 1, "type": "config/entity_registry/update", **what})
            assert (await socket.receive_json())["success"]


@pytest.fixture
def home(broker_url: str, tmp_path: Path) -> Iterator[Home]:
    """Start a Home Assistant in its own environment, connected to the broker."""
    python = PEERS / "homeassistant" / "bin" / "python"
    if not python.exists():
        pytest.skip(f"no environment {python.parent.parent}; scripts/setup makes it, on Python 3.11")
    port = free_port()
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "configuration.yaml").write_text(CONFIGURATION.format(port=port))
    log = (tmp_path / "log").open("wb")
    command: list[str | Path] = [python, "-m", "homeassistant", "--skip-pip", "-c", tmp_path / "home"]
    process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        made = Home(f"http://127.0.0.1:{port}")

        def is_up() -> bool:
            assert process.poll() is None, (tmp_path / "log").read_text()[-3000:]
            try:
                return bool(made.ask("/api/onboarding"))
            except (HTTPError, URLError, OSError):
                return False

        until(is_up)
        made.begin(broker_url)
        yield made
    finally:
        process.terminate()
        process.wait(60)
        log.close()


@contextmanager
def edge(url: str, topics: Topics, *, is_stopped: bool) -> Iterator[Callable[[dict[str, Array]], None]]:
    """Run an edge with one stream; called with outputs it has a frame with that answer."""
    announcer = ClientAnnouncer("car-1.front", topics, "drive.bag", model="net")
    announcer.streams = lambda: (StreamState("/camera/image", "net", rate=12.5),)
    with closing(connect(url, "car-1.front", topics, announcer=announcer)) as requester:
        presence = ModelPresence(WATCHED, CLASSES)
        shown = HomeAssistant(topics, presence, is_stopped=lambda: is_stopped, clock=iter(range(10**6)).__next__)
        sink = MqttSink(requester, "net", presence=presence, homeassistant=shown)

        def answer(outputs: dict[str, Array]) -> None:
            placement = Placement.of((80, 40), (20, 20), Resize.LETTERBOX)
            sink.write(
                frame(time.time_ns()),
                FrameView(np.full((40, 80, 3), 90, np.uint8), placement, outputs, classes=CLASSES),
                result(outputs),
            )

        try:
            yield answer
        finally:
            sink.close()
            announcer.presence.end()
            assert not sum(sink.counts.dropped.values())


SEEN = {
    "car": "on",
    "lane mark": "off",
    "yard car": "on",
    "yard lane mark": "off",
    "gate in": "0",
    "gate out": "0",
    "car count": "1",
    "lane mark count": "0",
    "rate": "12.5",
}
GONE = {**SEEN, "car": "off", "yard car": "off", "car count": "0"}


def shows(
    home: Home, answer: Callable[[dict[str, Array]], None], wanted: dict[str, str], outputs: dict[str, Array] = CAR
) -> bool:
    """Publish an answer, and return whether Home Assistant shows what it says."""
    answer(outputs)
    return wanted.items() <= home.states().items()


def until(is_so: Callable[[], bool]) -> None:
    """Wait for a program that starts for half a minute on an idle machine."""
    end = time.monotonic() + 5 * PATIENCE_S
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.5)


def test_a_stream_in_home_assistant(home: Home, broker_url: str) -> None:
    """Its entities come, change, are unavailable without the edge, come back renamed, and end with the stream."""
    topics = Topics("homeassistant-test/v1")
    with edge(broker_url, topics, is_stopped=True) as answer:
        until(lambda: shows(home, answer, SEEN) and home.overlay().startswith(b"\xff\xd8"))
        until(lambda: set(home.states()) == {*SEEN, "last answer", "overlay"})
        until(lambda: shows(home, answer, GONE, NOTHING))
        look_at(home)
        asyncio.run(home.rename(home.entity("overlay")["entity_id"], "image.garden", "Garden"))
    until(lambda: set(home.states().values()) == {"unavailable"})
    with edge(broker_url, topics, is_stopped=False) as answer:
        until(lambda: shows(home, answer, SEEN))
        assert home.ask("/api/states/image.garden")["attributes"]["friendly_name"] == "Garden"
        until(lambda: home.ask("/api/states/image.garden")["state"] != "unavailable")
    until(lambda: home.states() == {})


def look_at(home: Home) -> None:
    """Open its page, which shows the device with its entities."""
    told = {
        "hassUrl": home.url,
        "clientId": home.url + "/",
        "access_token": home.token,
        "refresh_token": "",
        "expires": int(time.time() * 1000) + 10**6,
        "expires_in": 1000,
        "token_type": "Bearer",
    }
    with chromium() as browser:
        page = browser.new_page()
        page.add_init_script(f"localStorage.setItem('hassTokens', {json.dumps(json.dumps(told))})")
        page.goto(f"{home.url}/lovelace/0", timeout=120_000)
        for each in (NAME, "Car count", "Yard car"):
            page.get_by_text(each).first.wait_for(timeout=120_000)
