"""Introduce a stream to Home Assistant by MQTT discovery: a device whose entities read what is published anyway.

Sensors read the answers in words and the states of presence; rate and availability come from the edge's own state,
whose will makes all of them unavailable. They are known by `unique_id`, so what they are called there may change.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from xxhash import xxh3_64_hexdigest

from mqinfer._version import __version__
from mqinfer.answers.outputs import Picture
from mqinfer.answers.words import MOST_BYTES
from mqinfer.bags.frame import Frame
from mqinfer.broker.link import Message
from mqinfer.client.result import InferResult
from mqinfer.edge_agent.frames.view import FrameView
from mqinfer.edge_agent.sinks.drawing.overlay import draw_result, encode_picture
from mqinfer.edge_agent.sinks.presence import FRAME, ModelPresence
from mqinfer.images.placement import fit
from mqinfer.protocol.topics import HOME_ASSISTANT, Topics, entity_topic
from mqinfer.protocol.types import Outcome

_PERIOD_S, _MOST_WIDTH = 1.0, 640
"""Time between two overlays of a stream, and their width in pixels."""
_IS_READY = "{{ 'online' if value_json is defined and value_json.status == 'ready' else 'offline' }}"
_RATE = (
    "{{ value_json.streams | default([]) | selectattr('source', 'eq', %s) | selectattr('model', 'eq', %s)"
    " | map(attribute='rate') | first | default(0) | round(2) }}"
)
_STAMP = "{{ (value_json.capture_time_ns / 1000000000) | as_datetime }}"
_COUNT = "{{ value_json.counts[%s] | default(0) if value_json.counts is defined else None }}"
_SHARE = (
    "{{ (value_json.class_shares[%s] | default(0) * 100) | round(2) if value_json.class_shares is defined else None }}"
)
_TOP = "{{ value_json.top[0]['class'] if value_json.top is defined else None }}"
_MEASURED, _OCCUPIED = {"state_class": "measurement"}, {"device_class": "occupancy"}

Own = tuple[str, str, str]
"""Model, client and stream, as levels of topics."""
_Entity = tuple[str, str, dict[str, object]]


class HomeAssistant:
    """What Home Assistant gets of the streams of one model beside the answers and the states of presence.

    Args:
        topics: Of the site.
        presence: What is watched.
        has_all: Whether every answer is published; else one a second is enough.
        is_stopped: Returns whether the run ends by a signal: the streams stay known then, and are unavailable.
        clock: In seconds.
    """

    def __init__(
        self,
        topics: Topics,
        presence: ModelPresence,
        *,
        has_all: bool = False,
        is_stopped: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._topics, self._presence = topics, presence
        self._has_all, self._is_stopped, self._clock = has_all, is_stopped, clock
        self._next_s: dict[str, float] = {}
        self._entities: dict[str, list[Message]] = {}

    def messages(
        self, own: Own, frame: Frame, view: FrameView, result: InferResult, words: Mapping[str, Any]
    ) -> tuple[bool, list[Message]]:
        """Return whether the answer, in words, is to be published, and what else is: entities, an overlay."""
        source, now_s = frame.source, self._clock()
        if result.outcome is not Outcome.OK or now_s < self._next_s.get(source, now_s):
            return self._has_all, self._entities.get(source, [])
        self._next_s[source] = now_s + _PERIOD_S
        if source not in self._entities:
            found = discovery(self._topics, own, source, words, self._presence)
            self._entities[source] = [Message(topic, config, retain=True) for topic, config in found]
        overlay = encode_overlay(draw_result(frame, view, result))
        return True, [*self._entities[source], Message(self._topics.overlay(*own), overlay)]

    def stays(self, state: Message) -> bool:
        """Return whether the end of a run leaves a retained message: that of an entity, if the run was stopped."""
        return self._is_stopped() and state.topic.startswith(f"{HOME_ASSISTANT}/")


def discovery(
    topics: Topics, own: Own, source: str, words: Mapping[str, Any], held: ModelPresence
) -> list[tuple[str, bytes]]:
    """Return topic and payload for each entity of a stream.

    Args:
        topics: Of the site.
        own: Model, client and stream, as levels of topics.
        source: The stream's whole name.
        words: Its first answer, with presence: what there is in it has sensors.
        held: The classes that are watched, and the levels of the states.
    """
    model, client, _ = own
    shared = {
        "device": {
            "identifiers": ["-".join(("mqinfer", *own))],
            "name": f"{client} {source}",
            "model": model,
            "manufacturer": "mqinfer",
        },
        "origin": {"name": "mqinfer", "sw_version": __version__},
        "availability": [{"topic": topics.client_state(client), "value_template": _IS_READY}],
    }
    configs: list[tuple[str, bytes]] = []
    for kind, name, entity in (
        *_of_answers(topics, own, source, words, held.watched),
        *_of_presence(topics, own, held.states(words)),
    ):
        unique = "-".join(("mqinfer", *own, name))
        config = {"name": name, "unique_id": unique, **entity, **shared}
        topic = entity_topic(kind, client, xxh3_64_hexdigest(unique.encode()))
        configs.append((topic, json.dumps(config).encode()))
    return configs


def _of_answers(
    topics: Topics, own: Own, source: str, words: Mapping[str, Any], watched: Sequence[str]
) -> Iterator[_Entity]:
    edge, answer = topics.client_state(own[1]), topics.answers(*own)
    rate = _RATE % (_quoted(source), _quoted(own[0]))
    yield "sensor", "rate", {"state_topic": edge, "value_template": rate, "unit_of_measurement": "fps", **_MEASURED}
    yield "sensor", "last answer", {"state_topic": answer, "value_template": _STAMP, "device_class": "timestamp"}
    yield "image", "overlay", {"image_topic": topics.overlay(*own), "content_type": "image/jpeg"}
    if "top" in words:
        yield "sensor", "top class", {"state_topic": answer, "value_template": _TOP}
    kinds = (("counts", "count", _COUNT, "objects"), ("class_shares", "share", _SHARE, "%"))
    for called, template, unit in (each for what, *each in kinds if what in words):
        for name in watched:
            value = {"state_topic": answer, "value_template": template % _quoted(name), "unit_of_measurement": unit}
            yield "sensor", f"{name} {called}", {**value, **_MEASURED}


def _quoted(text: str) -> str:
    """Return a text as a literal of Jinja, which knows no pairs of surrogates."""
    return json.dumps(text, ensure_ascii=False)


def _of_presence(topics: Topics, own: Own, states: Iterable[tuple[str, str, str]]) -> Iterator[_Entity]:
    for place, what, value in states:
        topic = {"state_topic": topics.presence(*own, place, what)}
        if value.isdecimal():
            yield "sensor", f"{place} {what}", {**topic, "state_class": "total_increasing"}
        else:
            called = what.replace("_", " ")
            yield "binary_sensor", called if place == FRAME else f"{place} {called}", {**topic, **_OCCUPIED}


def encode_overlay(drawn: Picture) -> bytes:
    """Return a picture as a JPEG for dashboards: at most 640 pixels wide, 64 KiB where its quality can be that low."""
    height, width = drawn.shape[:2]
    if width > _MOST_WIDTH:
        drawn = fit(drawn, _MOST_WIDTH, max(1, round(height * _MOST_WIDTH / width)))
    encoded = b""
    for quality in (80, 50, 20):
        encoded = encode_picture(drawn, ".jpg", quality)
        if len(encoded) <= MOST_BYTES:
            break
    return encoded
