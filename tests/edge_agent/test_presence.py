"""What is there in a stream, where, and how many objects cross a line: hysteresis, zones, lines, and their states."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqinfer.broker.link import ReasonCode
from mqinfer.edge_agent.frames.view import NO_VIEW
from mqinfer.edge_agent.sinks.mqtt_sink import AnswerDrop
from mqinfer.edge_agent.sinks.presence import Area, ModelPresence, PresenceSettings, StreamPresence
from mqinfer.models.repository.tables import read_toml, table_of
from mqinfer.protocol.card import ClassInfo
from mqinfer.protocol.datatypes import Array
from mqinfer.protocol.errors import ConfigError
from mqinfer.protocol.types import Outcome
from tests.edge_agent.test_sinks_mqtt import CLASSES, Client, frame, opened, result, view

YARD = Area(((0, 0), (40, 0), (40, 40), (0, 40)))
SEEN: dict[str, Any] = {"detections": [{"class": "car", "score": 0.9, "box": [0, 0, 10, 10]}]}
ROOT = "mqinfer/v1/presence/net/car-1/camera_image"


def at(x: float, y: float, **more: Any) -> dict[str, Any]:
    """Return an object of 10 by 10 pixels that stands there."""
    return {"class": "car", "score": 0.9, "box": [x - 5, y - 10, x + 5, y], **more}


def car(stream: StreamPresence, now_s: float, *, is_seen: bool) -> bool:
    """Show a stream a frame with a car or without, and return whether a car counts as there."""
    there: bool = stream.update(now_s, SEEN if is_seen else {})["presence"]["frame"]["car"]
    return there


@given(
    st.lists(st.tuples(st.sampled_from((0.0, 0.1, 0.5, 3.0)), st.booleans()), max_size=60),
    st.integers(1, 5),
    st.integers(0, 5),
    st.sampled_from((0.0, 0.5, 2.0)),
)
def test_hysteresis(frames: list[tuple[float, bool]], least: int, more: int, hold_s: float) -> None:
    """On comes only with k of n frames, off only after the hold time without a sight, and both as soon as they may."""
    stream = StreamPresence(PresenceSettings(frames=least, of=least + more, hold_s=hold_s), ("car",), "/s")
    now = last = 0.0
    was_on = False
    for index, (step, is_seen) in enumerate(frames):
        now += step
        last = now if is_seen else last
        recent = [seen for _, seen in frames[max(0, index + 1 - least - more) : index + 1]]
        is_on = car(stream, now, is_seen=is_seen)
        expected = (is_seen and sum(recent) >= least) if not was_on else (is_seen or now - last < hold_s)
        assert is_on == expected
        was_on = is_on


def test_stamps_that_go_back() -> None:
    """A recording that starts anew holds its states no longer than the hold time from there."""
    stream = StreamPresence(PresenceSettings(frames=1, of=1, hold_s=1), ("car",), "/s")
    assert car(stream, 100, is_seen=True)
    assert [car(stream, now, is_seen=False) for now in (5, 5.5, 6)] == [True, True, False]


def test_what_is_seen_of_each_kind_of_model() -> None:
    """Objects by score, a mask by share, a classifier by its best class, a cascade by its target alone."""
    settings = PresenceSettings(frames=1, of=1, hold_s=0)
    stream = StreamPresence(settings, ("car", "road", "object"), "/s")
    found: list[dict[str, Any]] = [
        {"detections": [at(0, 0), {**at(0, 0), "class": "road", "score": 0.4}, {**at(0, 0), "class": None}]},
        {"class_shares": {"car": 0.009, "road": 0.9, "unknown": 0.1}},
        {"top": [{"class": "road", "score": 0.6}, {"class": "car", "score": 0.55}]},
        {"top": [{"class": "road", "score": 0.2}]},
    ]
    states = [stream.update(now, each)["presence"]["frame"] for now, each in enumerate(found)]
    assert [{name for name, is_on in each.items() if is_on} for each in states] == [
        {"car", "object"},
        {"road"},
        {"road"},
        set(),
    ]
    of_target = StreamPresence(settings, ("car",), "/s")
    assert [of_target.update(0, SEEN, target=is_there)["presence"]["frame"]["car"] for is_there in (True, False)] == [
        True,
        False,
    ]


@given(st.lists(st.tuples(st.integers(-50, 90), st.integers(-50, 90)), max_size=5))
def test_zones(feet: list[tuple[int, int]]) -> None:
    """A class is in a zone if the middle of a lower edge is; zones of other streams and classes take no part."""
    zones = {"yard": YARD, "roads": Area(YARD.points, ("road",)), "other": Area(YARD.points, (), "/else")}
    stream = StreamPresence(PresenceSettings(frames=1, of=1, zones=zones), ("car", "road"), "/s")
    found = stream.update(0, {"detections": [at(*foot) for foot in feet]})["presence"]
    is_inside = any(0 <= x <= 40 and 0 <= y <= 40 for x, y in feet)
    assert found == {
        "frame": {"car": bool(feet), "road": False},
        "yard": {"car": is_inside, "road": False},
        "roads": {"road": False},
    }


@given(st.lists(st.lists(st.integers(-40, 40), min_size=1, max_size=30), min_size=1, max_size=3), st.booleans())
def test_crossings(walks: list[list[int]], has_ids: bool) -> None:  # noqa: FBT001 - Hypothesis calls it
    """Each object alternates between in and out, whether the model follows it or its boxes overlap.

    Objects walk in steps of up to 4 pixels, each in its own column, across a line from left to right: in is upwards.
    """
    line = Area(((0, 0), (1000, 0)))
    stream = StreamPresence(PresenceSettings(lines={"gate": line}), ("car",), "/s")
    expected = {"in": 0, "out": 0}
    found: dict[str, Any] = {"crossings": {"gate": expected}}
    sides: dict[int, bool] = {}
    places = [each[0] for each in walks]
    for step in range(max(map(len, walks)) * 20):
        for column, walk in enumerate(walks):
            goal = walk[min(step // 20, len(walk) - 1)]
            places[column] += max(-4, min(4, goal - places[column]))
            if abs(places[column]) >= 0.5:  # 5 % of the height of the box
                is_in = places[column] < 0
                if sides.setdefault(column, is_in) != is_in:
                    expected["in" if is_in else "out"] += 1
                sides[column] = is_in
        objects = [at(100 * (1 + i), y, **({"id": 70 + i} if has_ids else {})) for i, y in enumerate(places)]
        found = stream.update(step, {"detections": objects})
    assert found["crossings"]["gate"] == expected


def test_what_does_not_cross() -> None:
    """One beside the line, one of another class, one that trembles on it, and two far from each other in turn."""
    lines = {"gate": Area(((0, 100), (100, 100)), ("car",))}
    stream = StreamPresence(PresenceSettings(lines=lines), ("car", "road"), "/s")
    found: dict[str, Any] = {}
    for frame_number in range(40):
        y = 90 if frame_number % 2 else 110
        objects = [
            at(150, y, id=1),
            {**at(50, y, id=2), "class": "road"},
            at(20, 100 + (y - 100) / 50, id=3),
        ]
        found = stream.update(frame_number, {"detections": objects})
    assert found["crossings"] == {"gate": {"in": 0, "out": 0}}
    alone = StreamPresence(PresenceSettings(lines=lines), ("car",), "/s")
    for step in range(40):
        found = alone.update(step, {"detections": [at(50, 70 if step % 2 else 130)]})
    assert found["crossings"] == {"gate": {"in": 0, "out": 0}}


def test_the_work_is_bounded() -> None:
    """Objects that come and go are forgotten."""
    stream = StreamPresence(PresenceSettings(lines={"gate": Area(((0, 0), (9, 0)))}), ("car",), "/s")
    for number in range(300):
        stream.update(number, {"detections": [at(number * 100, 5), at(number * 100, 50, id=1000 + number)]})
    assert len(stream._tracks._tracks) == 60
    assert len(stream._sides) == 600


BOXES: dict[str, Array] = {
    "boxes": np.array([[5, 5, 15, 10]], np.float32),
    "scores": np.array([0.875], np.float32),
    "classes": np.array([0], np.int64),
}
QUICK = PresenceSettings(frames=1, of=1, hold_s=0, zones={"yard": YARD}, lines={"gate": Area(((0, 0), (80, 0)))})


def states(client: Client) -> dict[str, str]:
    """Return the newest message of each state's topic."""
    found = [each for each, _ in client.sent if each.topic.startswith(ROOT)]
    assert all(each.retain and each.qos == 1 for each in found)
    return {each.topic.removeprefix(ROOT + "/"): bytes(each.payload).decode() for each in found}


def test_states_beside_the_answers() -> None:
    """They are in each message by the schema, kept by the broker, sent again only where they change, and cleared."""
    client = Client()
    classes = [ClassInfo(each, (0, 0, 0)) for each in ("traffic light", "traffic_light")]
    sink = opened(client, presence=ModelPresence(QUICK, classes))
    sink.write(frame(), NO_VIEW, result({}, Outcome.EXPIRED))
    assert not states(client), "nothing is known before the first answer"
    sink.write(frame(1), view(BOXES, classes), result(BOXES))
    assert states(client) == {
        "frame/traffic_light": "ON",
        "frame/traffic_light-2": "OFF",
        "yard/traffic_light": "ON",
        "yard/traffic_light-2": "OFF",
        "gate/in": "0",
        "gate/out": "0",
    }
    client.acknowledge()
    sent = len(client.sent)
    sink.write(frame(2), view(BOXES, classes), result(BOXES))
    sink.write(frame(3), NO_VIEW, result({}, Outcome.EXPIRED))
    assert len(client.sent) == sent + 2
    client.sent = [pair for pair in client.sent if "answers" in pair[0].topic]
    assert [each.get("presence", {}).get("yard") for each in client.documents] == [
        None,
        *[{"traffic light": True, "traffic_light": False}] * 3,
    ]
    client.sent.clear()
    sink.write(frame(10**10), view({}), result({}))
    assert states(client) == {"frame/traffic_light": "OFF", "yard/traffic_light": "OFF"}
    sink.close()
    assert set(states(client).values()) == {""}
    assert len(states(client)) == 6


def test_a_state_that_was_lost_is_sent_again() -> None:
    """With the next frame, after an outage or a refusal; answers are counted apart."""
    client = Client()
    sink = opened(client, presence=ModelPresence(PresenceSettings(frames=1, of=1), CLASSES))
    sink.write(frame(), view(BOXES), result(BOXES))
    client.connect(on=False)
    client.connect(on=True)
    client.sent.clear()
    sink.write(frame(1), view(BOXES), result(BOXES))
    assert states(client) == {"frame/car": "ON", "frame/road": "OFF"}
    client.acknowledge(ReasonCode.NOT_AUTHORIZED)
    client.sent.clear()
    sink.write(frame(2), view(BOXES), result(BOXES))
    assert states(client) == {"frame/car": "ON", "frame/road": "OFF"}
    client.acknowledge()
    client.connect(on=False)
    for number in range(3, 300):
        sink.write(frame(number), view(BOXES), result(BOXES))
    client.connect(on=True)
    client.acknowledge()
    sink.close()
    assert sink.counts.published == 1 + 256
    dropped = {reason: count for reason, count in sink.counts.dropped.items() if count}
    assert sum(dropped.values()) - dropped[AnswerDrop.STATE] + sink.counts.published == 300


WRONG = {
    "frames = 6": "frames = 6, of = 5",
    "hold_s = -1": "hold_s = -1",
    "hold_s = inf": "a finite number",
    "zones = 3": "a table of names and values",
    "[zones.yard]\npoints = [[0, 0], [1e308, 1], [2, 2]]": "1e+308: expected pixels",
    "[zones.yard]\npoints = [[0, 0], [1, 1]]": "3 to 64 different points",
    "[zones.yard]\npoints = [[0, 0], [1, 1], [2]]": "3 to 64 different points",
    "[zones.frame]\npoints = [[0, 0], [1, 1], [1, 0]]": "a name of its own",
    '[zones."a/b"]\npoints = [[0, 0], [1, 1], [1, 0]]': "a name of its own",
    "[lines.gate]\npoints = [[0, 0], [1, 1], [2, 2]]": "2 to 2 different points",
    "[lines.gate]\npoints = [[0, 0], [0, 0]]": "2 to 2 different points",
    "[zones.a]\npoints = [[0, 0], [1, 1], [1, 0]]\n[lines.a]\npoints = [[0, 0], [1, 1]]": "'a' is a zone and a line",
    "[lines.gate]": "the key 'points' is missing",
    "class = 3": "unknown key 'class', did you mean 'classes'",
}


@pytest.mark.parametrize("text", WRONG)
def test_a_wrong_file(tmp_path: Path, text: str) -> None:
    """The error names file, key and what is expected."""
    path = tmp_path / "presence.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"presence\.toml") as raised:
        read_toml(path, table_of(PresenceSettings))
    assert WRONG[text] in str(raised.value)


def test_classes_that_do_not_fit() -> None:
    """One that the model lacks, and more states than a stream may have; a model without names has objects."""
    with pytest.raises(ConfigError, match="no class 'cart', but car, road; did you mean 'car'"):
        ModelPresence(PresenceSettings(classes=("cart",)), CLASSES)
    with pytest.raises(ConfigError, match="no class 'road', but car"):
        ModelPresence(PresenceSettings(zones={"yard": Area(YARD.points, ("road",))}), CLASSES, target="car")
    many = [ClassInfo(str(number), (0, 0, 0)) for number in range(1000)]
    with pytest.raises(ConfigError, match="1000 states of a stream are too many"):
        ModelPresence(PresenceSettings(), many)
    assert ModelPresence(PresenceSettings(classes=("7",)), many).watched == ("7",)
    assert ModelPresence(PresenceSettings(), ()).watched == ("object",)


def test_a_file_as_the_documents_have_it(tmp_path: Path) -> None:
    """Numbers, classes, zones and lines come as they are written."""
    path = tmp_path / "presence.toml"
    path.write_text(
        'classes = ["car"]\nframes = 2\nof = 2\n[zones.yard]\npoints = [[0, 0], [40, 0], [40, 40], [0, 40]]\n'
    )
    found = read_toml(path, table_of(PresenceSettings))
    assert found == PresenceSettings(("car",), 2, 2, zones={"yard": YARD})
    assert json.loads(json.dumps(StreamPresence(found, ("car",), "/s").update(0, {}))) == {
        "presence": {"frame": {"car": False}, "yard": {"car": False}}
    }
