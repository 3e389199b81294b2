"""Answers in words over MQTT: the schema, what every kind of model answers, what is cut, and what is counted."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from importlib import resources
from typing import Any

import jsonschema
import numpy as np
import pytest

from mqinfer.answers.words import MOST_BYTES, document
from mqinfer.bags.frame import Frame
from mqinfer.broker.link import Ack, Message, ReasonCode, Withdraw, already_sent, ignore_ack
from mqinfer.client.result import InferResult
from mqinfer.edge_agent.frames.times import FrameTimes, Offset
from mqinfer.edge_agent.frames.view import NO_VIEW, FrameView
from mqinfer.edge_agent.sinks.jsonl_sink import describe_result
from mqinfer.edge_agent.sinks.mqtt_sink import AnswerDrop, MqttSink
from mqinfer.edge_agent.sinks.presence import ModelPresence, PresenceSettings
from mqinfer.images.picture import RawImage
from mqinfer.images.placement import Placement
from mqinfer.protocol.card import ClassInfo, Resize
from mqinfer.protocol.datatypes import Array
from mqinfer.protocol.errors import MessageTooLarge, NotConnected
from mqinfer.protocol.topics import Topics
from mqinfer.protocol.types import ErrorInfo, Outcome

SCHEMA = json.loads(resources.files("mqinfer.answers").joinpath("answer.schema.json").read_text())
CHECK = jsonschema.Draft202012Validator(SCHEMA)
CLASSES = (ClassInfo("car", (255, 0, 0)), ClassInfo("road", (0, 255, 0)))
TIMES = FrameTimes(15, {"edge_read": 5, "inference": 10}, Offset(-3, 2))
CAR = np.zeros((2, 20, 20), np.uint8)
CAR[0, 5:10, 5:15] = 1
BOXES: dict[str, Array] = {
    "boxes": np.array([[1, 2, 3, 4], [5, 5, 15, 10]], np.float32),
    "scores": np.array([0.5, 0.875], np.float32),
    "classes": np.array([1, 0], np.int64),
}
FINDINGS: dict[str, dict[str, Array]] = {
    "mask": {"mask": np.repeat(np.arange(2, dtype=np.uint8), 200).reshape(1, 20, 20)},
    "boxes": BOXES,
    "followed objects with masks": {**BOXES, "masks": CAR[::-1], "ids": np.array([7, 8])},
    "people": {**BOXES, "keypoints": np.arange(2 * 17 * 3, dtype=np.float32).reshape(2, 17, 3) / 128},
    "no objects": {"boxes": np.zeros((0, 4), np.float32), "scores": np.zeros(0, np.float32)},
    "classes": {"scores": np.array([[0.25, 0.75]], np.float32)},
    "depth": {"depth": np.arange(400, dtype=np.float32).reshape(1, 20, 20) / 8},
    "raw numbers": {"latent": np.full((1, 100), np.nan, np.float32), "sum": np.array([np.inf], np.float32)},
    "texts": {"text": np.array([b"\xff\x00", b"<&>"], np.object_)},
    "a cascade with a target": {"present": np.array([True]), "confidence": np.array([0.5], np.float32)},
}


class Client:
    """The part of a requester that the sink uses, with its link, which acknowledges when the test says so."""

    def __init__(self) -> None:
        self.connected, self.name, self.topics = True, "car-1", Topics()
        self.sent: list[tuple[Message, Ack]] = []
        self.limit = MOST_BYTES
        self.tell: Callable[[], None] = lambda: None

    @property
    def link(self) -> Client:
        """Itself."""
        return self

    def watch(self, callback: Callable[[], None]) -> None:
        """Keep the only callback."""
        self.tell = callback

    def publish(self, message: Message, on_ack: Ack = ignore_ack) -> Withdraw:
        """Keep a message, as a link that is up does."""
        if not self.connected:
            raise NotConnected("away")
        if len(message.payload) > self.limit:
            raise MessageTooLarge("large")
        self.sent.append((message, on_ack))
        return already_sent

    def connect(self, *, on: bool) -> None:
        """Lose the connection, or have it back."""
        self.connected = on
        self.tell()

    def acknowledge(self, code: int = ReasonCode.SUCCESS) -> None:
        """Acknowledge all that was sent, also what this makes room for."""
        done = 0
        while done < len(self.sent):
            self.sent[done][1](code)
            done += 1

    @property
    def documents(self) -> list[dict[str, Any]]:
        """What was sent, by the schema."""
        found = [json.loads(bytes(message.payload)) for message, _ in self.sent]
        for each in found:
            CHECK.validate(each)
        return found


def frame(number: int = 0, source: str = "/camera/image") -> Frame:
    """Make a frame whose pixels nobody reads."""
    return Frame(source, number, 10 + number, 20, "front", RawImage("rgb8", 40, 80, 240, is_bigendian=False, data=b""))


def result(outputs: dict[str, Array], outcome: Outcome = Outcome.OK) -> InferResult:
    """Make a result."""
    error = None if outcome is Outcome.OK else ErrorInfo("timeout", "too late")
    return InferResult("1", outcome, "net", "3", "sha256:a", outputs, error, "gpu.0", "worker", attempts=1)


def view(outputs: dict[str, Array], classes: Sequence[ClassInfo] = CLASSES) -> FrameView:
    """Show outputs of a letterboxed frame of 80 by 40 pixels."""
    placement = Placement.of((80, 40), (20, 20), Resize.LETTERBOX)
    return FrameView(np.zeros((40, 80, 3), np.uint8), placement, outputs, times=TIMES, classes=classes)


def opened(client: Client, **options: Any) -> MqttSink:
    """Open a sink; this client is all that it needs of one."""
    made: Any = MqttSink
    sink: MqttSink = made(client, "net", **options)
    return sink


@pytest.mark.parametrize("kind", FINDINGS)
def test_what_each_kind_of_model_answers(kind: str) -> None:
    """It fits the schema, and all of the JSON lines is in it, word for word."""
    client, outputs = Client(), FINDINGS[kind]
    opened(client).write(frame(), view(outputs), result(outputs))
    (found,) = client.documents
    line = json.loads(json.dumps(describe_result(frame(), view(outputs), result(outputs))))
    for each in found.get("detections", ()):
        each.pop("outline", None)
    assert {key: found[key] for key in line} == line
    assert (found["width"], found["height"], found["times"]) == (80, 40, TIMES.describe())
    assert (found["worker"], found["error"]) == ("gpu.0", None)


def test_the_words_of_each_finding() -> None:
    """Objects have class, score, box, id and outline in pixels of the frame; counts and shares stand beside them."""
    client = Client()
    sink = opened(client)
    for outputs in FINDINGS.values():
        sink.write(frame(), view(outputs), result(outputs))
    found = dict(zip(FINDINGS, client.documents, strict=True))
    car, road = found["followed objects with masks"]["detections"]
    assert (car["class"], car["score"], car["id"], road["id"]) == ("car", 0.875, 8, 7)
    assert car["box"] == [20, 0, 60, 20]
    assert sorted(map(tuple, car["outline"])) == [(20, 0), (20, 20), (60, 0), (60, 20)]
    assert "outline" not in road
    assert found["boxes"]["counts"] == {"car": 1, "road": 1}
    assert found["no objects"]["counts"] == {}
    assert found["classes"]["top"][0] == {"class": "road", "number": 1, "score": 0.75}
    assert found["mask"]["class_shares"] == {"car": 0.5, "road": 0.5}
    assert found["depth"]["depth"] == {"output": "depth", "least": 0, "greatest": 49.875}
    assert found["raw numbers"]["outputs"]["sum"]["values"] == ["Infinity"]
    assert found["a cascade with a target"]["outputs"]["present"]["values"] == [True]


def test_a_frame_without_a_result_has_its_message() -> None:
    """With outcome and error, by code and in words; a stream has one topic, two streams never the same."""
    client = Client()
    sink = opened(client, retain=True)
    sink.write(frame(5), NO_VIEW, result({}, Outcome.EXPIRED))
    sink.write(frame(0, "camera_image"), NO_VIEW, result({}, Outcome.CANCELLED))
    first, _ = client.documents
    assert first["error"] == {"code": "timeout", "message": "too late"}
    assert (first["outcome"], first["sequence"], "width" in first) == ("expired", 5, False)
    assert [each.topic for each, _ in client.sent] == [
        "mqinfer/v1/answers/net/car-1/camera_image",
        "mqinfer/v1/answers/net/car-1/camera_image-2",
    ]
    assert all(each.retain and each.qos == 1 and each.content_type == "application/json" for each, _ in client.sent)


def test_a_large_message_is_cut_in_order_and_counted() -> None:
    """First outlines, then the outputs; what was cut stands in it, and in the counts."""
    outputs: dict[str, Array] = {
        "boxes": np.tile(np.array([[0, 0, 20, 20]], np.float32), (100, 1)),
        "scores": np.full(100, 0.5, np.float32),
        "masks": np.tile(np.random.default_rng(1).integers(0, 2, (20, 20)).astype(np.uint8), (100, 1, 1)),
    }
    outputs["masks"][:, 5:15, ::2] = outputs["masks"][:, 0] = 1
    client = Client()
    sink = opened(client)
    sink.write(frame(), view(outputs), result(outputs))
    (found,) = client.documents
    assert found["cut"] == ["outline"]
    assert len(found["detections"]) == 100
    assert sink.counts.cut == {"outline": 1}
    payload, cut = document({"source": "x" * MOST_BYTES, "outcome": "ok", "error": None, "detections": []})
    assert (len(payload) < MOST_BYTES, cut[-1]) == (True, "others")


def test_long_names_that_begin_alike() -> None:
    """Streams and classes whose levels of a topic would be the same have topics of their own."""
    client, long = Client(), "/camera/" + "a" * 60
    named = ModelPresence(PresenceSettings(), [ClassInfo(f"{long}{number}", (0, 0, 0)) for number in range(12)])
    sink = opened(client, presence=named)
    for number in range(12):
        sink.write(frame(number, f"{long}{number}"), NO_VIEW, result({}))
        client.acknowledge()
    assert len({message.topic for message, _ in client.sent}) == 12 + 12 * 12


def test_an_outage_loses_by_reason_and_keeps_the_order() -> None:
    """What was in flight is counted and never sent twice, what waited comes next; the run is not held up."""
    client = Client()
    sink = opened(client)
    for number in range(70):  # 64 in flight, 6 wait
        sink.write(frame(number), view({}), result({}))
    assert len(client.sent) == 64
    client.connect(on=False)
    for number in range(70, 330):
        sink.write(frame(number), view({}), result({}))
    client.connect(on=True)
    client.acknowledge()
    numbers = [each["sequence"] for each in client.documents]
    assert numbers == [*range(64), *range(74, 330)]
    sink.close()
    assert sink.counts.published == 256
    dropped = {reason: count for reason, count in sink.counts.dropped.items() if count}
    assert dropped == {AnswerDrop.UNACKNOWLEDGED: 64, AnswerDrop.QUEUE_FULL: 10}


def test_what_the_broker_refuses_is_counted() -> None:
    """By its access rules, or for the size of the packet; what is left at the end, too."""
    client = Client()
    client.limit = 10
    sink = opened(client)
    sink.write(frame(), view({}), result({}))
    client.limit = MOST_BYTES
    sink.write(frame(), view({}), result({}))
    client.acknowledge(ReasonCode.NOT_AUTHORIZED)
    client.connect(on=False)
    sink.write(frame(), view({}), result({}))
    sink.close()
    counts = {reason: count for reason, count in sink.counts.dropped.items() if count}
    assert counts == {AnswerDrop.TOO_LARGE: 1, AnswerDrop.REFUSED: 1, AnswerDrop.NOT_CONNECTED: 1}
