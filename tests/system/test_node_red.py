"""The flows of examples/node-red: a real Node-RED imports and runs them; what they show is read as its editor does."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from mqinfer.broker import make_link
from mqinfer.broker.link import Message
from mqinfer.client.connection import connect, random_name
from mqinfer.edge_agent.settings import ReplayOptions
from mqinfer.edge_agent.sinks.presence import PresenceSettings
from mqinfer.protocol.topics import Topics, stream_level
from tests.asynchronous import in_loop
from tests.patience import PATIENCE_S, until
from tests.ports import free_port
from tests.programs import find_program
from tests.settings import run_session, settings_of
from tests.system.test_detections import blob_detector, pictures

pytestmark = [pytest.mark.broker, pytest.mark.slow]
ROOT = Path(__file__).parents[2]
FLOWS = ROOT / "examples" / "node-red"
PROGRAM = Path(os.environ.get("MQINFER_PEERS") or ROOT / ".venv-peers") / "node-red/node_modules/node-red/red.js"
SETTINGS = {
    "uiHost": "127.0.0.1",
    "credentialSecret": False,
    "telemetry": {"enabled": False, "updateNotification": False},
    "externalModules": {"palette": {"allowInstall": False}, "modules": {"allowInstall": False}},
    "logging": {"console": {"level": "warn"}},
}


class NodeRed:
    """A Node-RED, by the calls of its own editor.

    Attributes:
        shown: What its nodes `debug` have shown in the sidebar: the node's name, and the value.
        connected: Its nodes that are connected to their broker.
    """

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self.url, self.session = url, session
        self.shown: list[tuple[str, Any]] = []
        self.connected: set[str] = set()

    async def deploy(self, name: str, changes: dict[str, str]) -> dict[str, str]:
        """Import a flow with what its user changes in the dialogs of its nodes, and return the nodes' ids by name."""
        text = (FLOWS / name).read_text(encoding="utf-8")
        for old, new in changes.items():
            assert old in text
            text = text.replace(old, new)
        flow = json.loads(text)
        self.connected.clear()
        async with self.session.post(f"{self.url}/flows", json=flow) as reply:
            assert reply.status == 204, await reply.text()
        mqtt = {each["id"] for each in flow if each["type"] in {"mqtt in", "mqtt out"}}
        await until(lambda: mqtt <= self.connected)
        return {each.get("name", ""): each["id"] for each in flow}

    async def press(self, node: str) -> None:
        """Press the button of an inject node."""
        async with self.session.post(f"{self.url}/inject/{node}") as reply:
            assert reply.status == 200

    async def listen(self, ready: asyncio.Event) -> None:
        """Read what the editor would show, until it is cancelled."""
        async with self.session.ws_connect(f"{self.url}/comms") as sidebar:
            for topic in ("debug", "status/#"):
                await sidebar.send_json({"subscribe": topic})
            ready.set()
            async for text in sidebar:
                found = json.loads(text.data)
                for each in found if isinstance(found, list) else []:
                    self._read(each["topic"], each.get("data") or {})

    def _read(self, topic: str, data: dict[str, Any]) -> None:
        if topic == "debug" and data.get("name"):
            is_text = data["format"].startswith("string")
            self.shown.append((data["name"], data["msg"] if is_text else json.loads(data["msg"])))
        elif topic.startswith("status/") and str(data.get("text")).endswith("status.connected"):
            self.connected.add(topic.partition("/")[2])


@asynccontextmanager
async def node_red(folder: Path) -> AsyncIterator[NodeRed]:
    """Start a Node-RED in a folder."""
    if not PROGRAM.is_file():
        pytest.skip(f"Node-RED is not installed in {PROGRAM.parent}; scripts/setup does it")
    port = free_port()
    folder.mkdir()  # noqa: ASYNC240 - nothing else runs yet
    (folder / "settings.js").write_text(f"module.exports = {json.dumps(SETTINGS)};", encoding="utf-8")
    command = [find_program("node"), str(PROGRAM), "-u", str(folder), "-p", str(port)]
    log = folder / "log"
    with log.open("wb") as file:
        process = await asyncio.create_subprocess_exec(*command, stdout=file, stderr=file)
    try:
        async with aiohttp.ClientSession() as session:
            red = NodeRed(f"http://127.0.0.1:{port}", session)
            while True:
                assert process.returncode is None, log.read_text(encoding="utf-8")
                try:
                    async with session.get(f"{red.url}/flows"):
                        break
                except aiohttp.ClientConnectionError:
                    await asyncio.sleep(0.1)
            ready = asyncio.Event()
            listening = asyncio.create_task(red.listen(ready))
            try:
                await asyncio.wait_for(ready.wait(), PATIENCE_S)
                yield red
            finally:
                listening.cancel()
    finally:
        process.terminate()
        await asyncio.wait_for(process.wait(), PATIENCE_S)


@pytest.fixture
def changes(serving: Callable[[Path], Topics], broker_url: str, tmp_path: Path) -> dict[str, str]:
    """Serve a detector of squares; what is changed in each flow: where the broker is, and the root of the topics."""
    topics = serving(blob_detector(tmp_path / "models"))
    host, _, port = broker_url.rpartition("/")[2].partition(":")
    return {'"localhost"': f'"{host}"', '"1883"': f'"{port}"', "mqinfer/v1": topics.root}


def replay(url: str, root: str, source: Path, **options: Any) -> None:
    """Replay pictures as an edge with `--sink mqtt --presence FILE` does."""
    presence = PresenceSettings(frames=1, of=1, hold_s=0.0)
    sending = ReplayOptions("blobs", **options)
    settings = settings_of(source, sending, sinks=["mqtt"], encoding="png", presence=presence)
    with closing(connect(url, "car-1", Topics(root))) as requester:
        run_session(settings, requester)


def test_flows_are_of_nodes_that_each_node_red_has() -> None:
    """Nothing is to be installed beside it; the same broker stands in each."""
    core = {"tab", "mqtt-broker", "mqtt in", "mqtt out", "switch", "change", "debug", "inject", "file in", "trigger"}
    flows = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(FLOWS.glob("*.json"))]
    assert len(flows) == 3
    assert {each["type"] for flow in flows for each in flow} <= core | {"function", "rbe"}
    assert len({json.dumps(each) for flow in flows for each in flow if each["type"] == "mqtt-broker"}) == 1


@in_loop
async def test_watch_answers(changes: dict[str, str], broker_url: str, tmp_path: Path) -> None:
    """Each frame is shown with what was found, or with why there is no answer."""
    source = pictures(tmp_path / "in")
    async with node_red(tmp_path / "red") as red:
        await red.deploy("watch-answers.json", changes)
        await asyncio.to_thread(replay, broker_url, changes["mqinfer/v1"], source)
        await until(lambda: len(red.shown) == 2)
        names, (first, second) = zip(*red.shown, strict=True)
        assert names == ("answers", "answers")
        assert first.pop("ms") > 0
        stream = "car-1/" + stream_level(str(source))
        assert first == {"stream": stream, "frame": 0, "model": "blobs 1", "found": {"green": 1, "red": 1}}
        assert (second["frame"], second["found"]) == (1, {})
        await asyncio.to_thread(replay, broker_url, changes["mqinfer/v1"], source, timeout=1e-6)
        await until(lambda: len(red.shown) == 4)
        assert red.shown[2][0] == "errors"
        assert f"answers/blobs/{stream}: expired: " in red.shown[2][1]


@in_loop
async def test_ask_with_a_jpeg(changes: dict[str, str], tmp_path: Path) -> None:
    """A picture has its answer; a broken one, and a model that nobody serves, an error in words."""
    import cv2

    jpeg = tmp_path / "one.jpg"
    pixels = cv2.imread(str(pictures(tmp_path / "in") / "0.png"))
    assert pixels is not None
    cv2.imwrite(str(jpeg), pixels, [cv2.IMWRITE_JPEG_QUALITY, 95])
    changes |= {"/data/picture.jpg": str(jpeg), "drive_segmentation_onnx": "blobs"}
    async with node_red(tmp_path / "red") as red:
        ids = await red.deploy("ask-with-a-jpeg.json", changes)
        await red.press(ids["ask"])
        await until(lambda: red.shown)
        (name, answer) = red.shown.pop()
        assert (name, answer["model"], answer["found"]) == ("answer", "blobs 1", {"green": 1, "red": 1})
        assert [(each["class"], each["box"]) for each in answer["objects"]] == [
            ("green", [240, 128, 272, 160]),
            ("red", [64, 48, 96, 80]),
        ]
        jpeg.write_bytes(jpeg.read_bytes()[:20])
        await red.press(ids["ask"])
        await until(lambda: red.shown)
        name, text = red.shown.pop()
        assert name == "errors"
        assert ": bad_" in text
        changes |= {"drive_segmentation_onnx": "nobody", '"duration": "10"': '"duration": "1"'}
        ids = await red.deploy("ask-with-a-jpeg.json", changes)
        await red.press(ids["ask"])
        await until(lambda: red.shown)
        assert red.shown == [("errors", "no answer: does a worker serve this model?")]


@in_loop
async def test_alarm_on_presence(changes: dict[str, str], broker_url: str, tmp_path: Path) -> None:
    """The siren is switched on once while the class is there, and off when it is gone."""
    siren: list[bytes] = []
    root = changes["mqinfer/v1"]
    changes |= {"person": "red", "cmnd/siren": f"{root}/siren"}

    def hear(message: Message) -> None:
        siren.append(bytes(message.payload))

    source = pictures(tmp_path / "in")
    async with node_red(tmp_path / "red") as red:
        with closing(make_link(broker_url, client_id=random_name())) as link:
            await asyncio.to_thread(link.open)
            link.subscribe(f"{root}/siren/POWER", hear)
            await red.deploy("alarm.json", changes)
            await asyncio.to_thread(replay, broker_url, root, source)
            await until(lambda: len(siren) == len(red.shown) == 2)
        assert siren == [b"ON", b"OFF"]
        assert red.shown == [("alarm", "ON"), ("alarm", "OFF")]
