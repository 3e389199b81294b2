"""Answers in words on a real broker: the frames of a drive, beside their JSON lines, read by a plain subscriber."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from importlib import resources
from pathlib import Path
from typing import Any

import cv2
import jsonschema
import numpy as np
import pytest

from mqinfer.broker import make_link
from mqinfer.broker.address import BrokerAddress
from mqinfer.broker.link import Message
from mqinfer.client.connection import connect, random_name
from mqinfer.edge_agent.reporting.report import published_words, summary
from mqinfer.edge_agent.settings import ReplayOptions
from mqinfer.edge_agent.sinks.presence import PresenceSettings
from mqinfer.lab import zoo
from mqinfer.lab.drives.lessons import lesson_drive, lessons_key
from mqinfer.lab.drives.recording import write_drive
from mqinfer.lab.drives.synthetic import CLASSES
from mqinfer.protocol.topics import Topics
from tests.patience import PATIENCE_S, wait_until
from tests.settings import run_session, settings_of
from tests.system.test_detections import blob_detector, pictures

pytestmark = [pytest.mark.broker, pytest.mark.slow]
SCHEMA = json.loads(resources.files("mqinfer.answers").joinpath("answer.schema.json").read_text())


@pytest.fixture
def heard(broker_url: str) -> Iterator[Callable[[Topics], list[Message]]]:
    """Subscribe to the answers of a site, as they come and as they are kept."""
    link = make_link(broker_url, client_id=random_name())
    link.open()

    def listen(topics: Topics) -> list[Message]:
        found: list[Message] = []
        link.subscribe(topics.answers.filter(), found.append)
        return found

    with closing(link):
        yield listen


@pytest.mark.parametrize(
    ("model", "frames", "words"),
    [
        ("drive_segmentation_onnx", 40, "class_shares"),
        pytest.param("yolo_v2_608_nms", 2, "counts", marks=pytest.mark.full),  # a network of seconds
        pytest.param("mobilenet_224_onnx", 4, "top", marks=pytest.mark.full),
        ("noscope_50_onnx", 4, "outputs"),
    ],
)
def test_the_messages_of_a_drive_are_its_json_lines(
    model: str,
    frames: int,
    words: str,
    serving: Callable[[Path], Topics],
    heard: Callable[[Topics], list[Message]],
    broker_url: str,
    tmp_path: Path,
) -> None:
    """One a frame, in order, equal to the line of the frame but for what differs between two runs; the last is kept."""
    zoo.build(tmp_path / "models", [model], lessons=zoo.Lessons(lesson_drive, CLASSES, lessons_key()))
    drive = write_drive(tmp_path / "drive.bag", ros=1, frames=frames, seed=1, width=192, height=120, truth_topic=False)
    topics = serving(tmp_path / "models")
    messages = heard(topics)
    settings = settings_of(drive, ReplayOptions(model), folder=tmp_path / "out", sinks=["jsonl", "mqtt"], retain=True)
    with closing(connect(broker_url, "car-1", topics)) as requester:
        report = run_session(settings, requester)
    assert report.answers is not None
    assert (report.answers.published, report.answers.cut) == (frames, {})
    assert published_words(report) == {"answers": f"{frames} published"}
    told: Any = summary(report)
    assert told["answers"]["published"] == frames
    wait_until(lambda: len(messages) == frames)
    found = [json.loads(bytes(each.payload)) for each in messages]
    lines = [json.loads(line) for line in (tmp_path / "out" / "results.jsonl").read_text().splitlines()]
    times = [json.loads(line) for line in (tmp_path / "out" / "times.jsonl").read_text().splitlines()]
    for answer, line, took in zip(found, lines, times, strict=True):
        jsonschema.validate(answer, SCHEMA)
        assert words in answer
        assert {key: answer[key] for key in line} == line
        assert [answer[key] for key in ("worker", "times", "id")] == [took[key] for key in ("worker", "times", "id")]
    assert {each.topic for each in messages} == {topics.answers(model, "car-1", "camera_image_raw")}
    kept = heard_later(broker_url, topics)
    assert [json.loads(bytes(each.payload))["sequence"] for each in kept] == [frames - 1]


def test_presence(
    serving: Callable[[Path], Topics], heard: Callable[[Topics], list[Message]], broker_url: str, tmp_path: Path
) -> None:
    """What is there stands in each message; its states are kept while the run lasts, and cleared at its end."""
    model = "drive_segmentation_onnx"
    zoo.build(tmp_path / "models", [model], lessons=zoo.Lessons(lesson_drive, CLASSES, lessons_key()))
    drive = write_drive(tmp_path / "drive.bag", ros=1, frames=6, seed=1, width=192, height=120, truth_topic=False)
    topics = serving(tmp_path / "models")
    messages, states = heard(topics), list[Message]()
    watched = PresenceSettings(classes=("road", "car"), frames=2, of=3)
    settings = settings_of(drive, ReplayOptions(model), sinks=["mqtt"], presence=watched)
    with closing(make_link(broker_url, client_id=random_name())) as link:
        link.open()
        link.subscribe(topics.presence.filter(), states.append)
        with closing(connect(broker_url, "car-1", topics)) as requester:
            run_session(settings, requester)
        wait_until(lambda: len(messages) == 6 and len(states) > 4)
    found = [json.loads(bytes(each.payload)) for each in messages]
    for each in found:
        jsonschema.validate(each, SCHEMA)
    assert [each["presence"]["frame"]["road"] for each in found] == [False, *[True] * 5]
    own = topics.presence(model, "car-1", "camera_image_raw", "frame", "road")
    assert [bytes(each.payload) for each in states if each.topic == own] == [b"OFF", b"ON", b""]
    with closing(make_link(broker_url, client_id=random_name())) as late:
        late.open()
        late.subscribe(topics.presence.filter(), states.append)
        late.subscribe(topics.card.filter(), messages.append)
        wait_until(lambda: len(messages) > 6)
    assert not [each for each in states if each.retain]


STRANGER = """
import json, sys
import cv2, jsonschema, numpy
from paho.mqtt.client import CallbackAPIVersion, Client

host, port, topics, document, folder = sys.argv[1:]
schema = json.load(open(document))
fields, drawn = schema["properties"], 0
objects = next(name for name, each in fields.items() if "box" in each.get("items", {}).get("required", ()))
names, _ = fields[objects]["items"]["properties"]["box"]["description"].split("; ")
sides = names.lower().split(", ")

def draw(client, _, message):
    global drawn
    answer = json.loads(message.payload)
    jsonschema.validate(answer, schema)
    picture = numpy.zeros((answer["height"], answer["width"]), numpy.uint8)
    for each in answer.get(objects, ()):
        box = {side: round(value) for side, value in zip(sides, each["box"], strict=True)}
        picture[box["top"]:box["bottom"], box["left"]:box["right"]] = 255
    cv2.imwrite(f"{folder}/{drawn}.png", picture)
    drawn += 1
    if drawn == 2:
        client.disconnect()

client = Client(CallbackAPIVersion.VERSION2)
client.on_message, client.on_subscribe = draw, lambda *_: print("subscribed", flush=True)
client.connect(host, int(port))
client.subscribe(topics, qos=1)
client.loop_forever()
assert not [name for name in sys.modules if name.split(".")[0] == "mqinfer"]
"""


def test_a_stranger_draws_the_boxes(serving: Callable[[Path], Topics], broker_url: str, tmp_path: Path) -> None:
    """A program with the schema's document and nothing else of the package finds the squares where they are."""
    topics, frames = serving(blob_detector(tmp_path / "models")), pictures(tmp_path / "in")
    document, address = tmp_path / "schema.json", BrokerAddress.parse(broker_url)
    document.write_text(json.dumps(SCHEMA))
    arguments = [address.host, str(address.port), topics.answers.filter(), str(document), str(tmp_path)]
    with subprocess.Popen([sys.executable, "-I", "-c", STRANGER, *arguments], stdout=subprocess.PIPE) as stranger:
        try:
            assert stranger.stdout
            assert stranger.stdout.readline() == b"subscribed\n"
            settings = settings_of(frames, ReplayOptions("blobs"), encoding="png", sinks=["mqtt"])
            with closing(connect(broker_url, "car-1", topics)) as requester:
                run_session(settings, requester)
            assert stranger.wait(PATIENCE_S) == 0
        finally:
            stranger.kill()
    for number in range(2):
        drawn, recorded = (cv2.imread(str(folder / f"{number}.png")) for folder in (tmp_path, frames))
        assert drawn is not None
        assert recorded is not None
        assert np.array_equal(drawn[..., 0] > 0, recorded.max(2) > 40), number  # what is not grey


def heard_later(url: str, topics: Topics) -> list[Message]:
    """Return what a broker has kept of the answers."""
    found: list[Message] = []
    with closing(make_link(url, client_id=random_name())) as link:
        link.open()
        link.subscribe(topics.answers.filter(), found.append)
        wait_until(lambda: bool(found))
    return found
