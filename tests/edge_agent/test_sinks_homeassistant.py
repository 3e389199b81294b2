"""What Home Assistant is told of a stream: entities, answers and overlays a second, and what stays of them."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from mqinfer.edge_agent.frames.view import NO_VIEW
from mqinfer.edge_agent.sinks.homeassistant import HomeAssistant, discovery, encode_overlay
from mqinfer.edge_agent.sinks.mqtt_sink import MqttSink
from mqinfer.edge_agent.sinks.presence import ModelPresence, PresenceSettings
from mqinfer.protocol.card import ClassInfo
from mqinfer.protocol.topics import Topics
from mqinfer.protocol.types import Outcome
from tests.edge_agent.test_sinks_mqtt import CLASSES, FINDINGS, Client, frame, opened, result, view

SETTINGS = PresenceSettings(frames=1, of=1)
SMILING = (ClassInfo("😀", (0, 0, 0)),)


def introduced(client: Client, clock: list[float], **options: Any) -> MqttSink:
    """Open a sink for Home Assistant, whose clock shows the last number of a list."""
    presence = ModelPresence(SETTINGS, CLASSES)
    shown = HomeAssistant(Topics(), presence, clock=lambda: clock[-1], **options)
    return opened(client, presence=presence, homeassistant=shown)


def entities(client: Client) -> dict[str, dict[str, Any]]:
    """Return the newest configuration of each entity by its topic, without those that were removed."""
    found = {each.topic: bytes(each.payload) for each, _ in client.sent if each.topic.startswith("homeassistant/")}
    return {topic: json.loads(payload) for topic, payload in found.items() if payload}


def test_entities_are_those_of_what_a_model_answers() -> None:
    """Names differ, ids too, and each is below the edge's own name; two edges share none."""
    names: dict[str, set[str]] = {}
    for kind in ("boxes", "mask", "classes", "depth"):
        client = Client()
        introduced(client, [0]).write(frame(), view(FINDINGS[kind]), result(FINDINGS[kind]))
        found = entities(client)
        names[kind] = {each["name"] for each in found.values()}
        assert len({each["unique_id"] for each in found.values()}) == len(found) == len(names[kind])
        assert {tuple(topic.split("/")[2:3]) for topic in found} == {("car-1",)}
        assert len({json.dumps(each["device"]) for each in found.values()}) == 1
        client.name = "car-1.front"
    usual = {"rate", "last answer", "overlay", "car", "road"}
    assert names["boxes"] == usual | {"car count", "road count"}
    assert names["mask"] == usual | {"car share", "road share"}
    assert (names["classes"], names["depth"]) == (usual | {"top class"}, usual)
    own: list[set[str]] = []
    for name in ("a.b", "a-b", "adb", "a_b"):
        client = Client()
        client.name = name
        introduced(client, [0]).write(frame(), view(FINDINGS["boxes"]), result(FINDINGS["boxes"]))
        own.append({topic.split("/")[2] for topic in entities(client)})
    assert len(set[str]().union(*own)) == 4


def test_names_beyond_the_basic_plane() -> None:
    """They stand in templates as they are: Jinja makes two characters of a pair of escapes, and finds nothing."""
    found = discovery(Topics(), ("m", "car-1", "front"), "front 😀", {"counts": {}}, ModelPresence(SETTINGS, SMILING))
    templates = [json.loads(config).get("value_template", "") for _, config in found]
    assert sum('"😀"' in each for each in templates) == sum('"front 😀"' in each for each in templates) == 1


def test_one_answer_and_one_overlay_a_second() -> None:
    """Failed frames are none of them; with --sink mqtt each answer is published, and states change at once."""
    for has_all, answers in ((False, 3), (True, 25)):
        client, clock = Client(), [0.0]
        sink = introduced(client, clock, has_all=has_all)
        for number in range(25):
            clock.append(number / 10)
            outputs = FINDINGS["boxes"] if number < 5 else FINDINGS["no objects"]
            lost = number == 12
            sink.write(
                frame(number * 10**9),
                NO_VIEW if lost else view(outputs),
                result({} if lost else outputs, Outcome.EXPIRED if lost else Outcome.OK),
            )
            client.acknowledge()
        topics = [each.topic.split("/")[2] for each, _ in client.sent]
        assert (topics.count("answers"), topics.count("overlays"), topics.count("presence")) == (answers, 3, 4)
        assert sink.counts.published == answers


def test_what_stays_at_the_end() -> None:
    """The entities of a run that was stopped; nothing of one that ended, and no state of presence of either."""
    for is_stopped in (True, False):
        client = Client()
        sink = introduced(client, [0], is_stopped=lambda: is_stopped)  # noqa: B023 - it is called within the loop
        sink.write(frame(), view(FINDINGS["boxes"]), result(FINDINGS["boxes"]))
        client.acknowledge()
        count = len(entities(client))
        sink.close()
        assert len(entities(client)) == (count if is_stopped else 0)
        presence = {each.topic: bytes(each.payload) for each, _ in client.sent if "/presence/" in each.topic}
        assert set(presence.values()) == {b""}


def test_an_overlay_is_small() -> None:
    """At most 640 pixels wide, and 64 KiB."""
    noise = np.random.default_rng(1).integers(0, 255, (1200, 1920, 3)).astype(np.uint8)
    assert 10_000 < len(encode_overlay(noise)) <= 64 * 1024
