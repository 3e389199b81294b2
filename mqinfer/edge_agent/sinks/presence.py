"""What is there in a stream, and where: answers flicker, these states hold; objects that cross a line are counted.

Pure: time is the frames' own stamps, so two runs over the same frames agree. A frame without an answer changes nothing,
since it does not show that nobody is there.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Annotated, Any

import numpy as np
from msgspec import Meta

from mqinfer.answers.outputs import PRESENT
from mqinfer.answers.tracks import Tracks
from mqinfer.bags.frame import Frame
from mqinfer.broker.link import Message
from mqinfer.client.result import InferResult
from mqinfer.codecs.opencv import opencv
from mqinfer.edge_agent.frames.view import FrameView
from mqinfer.edge_agent.sinks.sink import StreamNames
from mqinfer.protocol.card import ClassInfo
from mqinfer.protocol.errors import ConfigError
from mqinfer.protocol.topics import Topics, instead_of, stream_level
from mqinfer.protocol.types import Outcome, Positive

FRAME, OBJECT = "frame", "object"
"""The place that is all of the picture, and the class of objects that have none."""
_PLACE = re.compile(r"[A-Za-z0-9_-]{1,64}")
_MOST_POINTS, _MOST_STATES = 64, 128
"""Points of a polygon, and states of a stream."""
_FARTHEST = 1_000_000
"""No picture has so many pixels on a side; far beyond it single precision ends."""
_MOST_OBJECTS = 1000
"""Objects of a stream whose side of each line is known."""
_BAND = 0.05
"""Nearer to a line than this share of its height an object stays on its side: boxes tremble."""


@dataclass(frozen=True, slots=True)
class Area:
    """A zone, a polygon of three corners or more, or a line of two ends.

    An object is where the middle of its box's lower edge is. Seen along a line, `in` is to the left of it.

    Attributes:
        points: In pixels of the recorded frame, as boxes are.
        classes: Those that count; empty for all that are watched.
        source: The stream that it belongs to; None for every stream.
    """

    points: tuple[tuple[float, ...], ...]
    classes: tuple[str, ...] = ()
    source: str | None = None


@dataclass(frozen=True, slots=True)
class PresenceSettings:
    """What is watched, and for how long it holds.

    Attributes:
        classes: Those that are watched; empty for all that the model has.
        frames: Of the last `of` frames with an answer, in how many a class has to be seen to be there.
        of: How many frames are looked at.
        hold_s: How long it has to be out of sight to be gone, in seconds.
        min_score: Least score of an object, or of a picture's best class.
        min_share: Least share of a mask.
        zones: By name.
        lines: By name.
    """

    classes: tuple[str, ...] = ()
    frames: Positive = 3
    of: Annotated[int, Meta(ge=1, le=1000)] = 5
    hold_s: float = 2.0
    min_score: float = 0.5
    min_share: float = 0.01
    zones: Mapping[str, Area] = field(default_factory=dict)
    lines: Mapping[str, Area] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.frames > self.of or self.hold_s < 0:
            raise ValueError(
                f"frames = {self.frames}, of = {self.of}, hold_s = {self.hold_s:g}: expected frames of at most `of`, "
                "and a hold_s of 0 or more"
            )
        for name, zone in self.zones.items():
            _check_area(name, zone, 3, _MOST_POINTS)
        for name, line in self.lines.items():
            _check_area(name, line, 2, 2)
        if both := sorted(self.zones.keys() & self.lines.keys()):
            raise ValueError(f"{both[0]!r} is a zone and a line; rename one")


def _check_area(name: str, area: Area, least: int, most: int) -> None:
    if name == FRAME or not _PLACE.fullmatch(name):
        raise ValueError(f"{name!r}: expected a name of its own, of letters, digits, '_' or '-'")
    if not least <= len(set(area.points)) <= most or {len(point) for point in area.points} != {2}:
        raise ValueError(f"{name}.points: expected {least} to {most} different points [x, y]")
    if farthest := next((each for point in area.points for each in point if abs(each) > _FARTHEST), 0.0):
        raise ValueError(f"{name}.points: {farthest:g}: expected pixels from {-_FARTHEST} to {_FARTHEST}")


class ModelPresence:
    """The states of the streams of one model.

    Args:
        settings: What is watched.
        classes: Of the model's card.
        target: Of a cascade with one, which is the only class in its answers; None without one.

    Raises:
        ConfigError: The model lacks a class that is named, or there are too many states.
        MissingExtra: OpenCV is not installed, and there are zones.
    """

    def __init__(self, settings: PresenceSettings, classes: Sequence[ClassInfo], target: str | None = None) -> None:
        self.watched = _watched(settings, [each.name for each in classes] if target is None else [target])
        if settings.zones:
            opencv()
        self._settings, self._target = settings, target
        self._streams: dict[str, StreamPresence] = {}
        self._held: dict[str, dict[str, Any]] = {}
        self._sent: dict[str, tuple[Mapping[str, Any], list[Message]]] = {}
        self._levels = StreamNames(stream_level)

    def update(self, frame: Frame, view: FrameView, result: InferResult, words: Mapping[str, Any]) -> dict[str, Any]:
        """Return the states of a frame's stream for JSON, as `StreamPresence.update` does; empty before an answer."""
        if result.outcome is Outcome.OK:
            if frame.source not in self._streams:
                self._streams[frame.source] = StreamPresence(self._settings, self.watched, frame.source)
            target = None if self._target is None else bool(np.any(view.outputs.get(PRESENT, False)))
            held = self._streams[frame.source].update(frame.capture_time_ns / 1e9, words, target=target)
            if held != self._held.get(frame.source):
                self._held[frame.source] = held
        return self._held.get(frame.source, {})

    def messages(self, topics: Topics, own: tuple[str, str, str], held: Mapping[str, Any]) -> list[Message]:
        """Return the messages of a stream's states, made anew only where `update` returned others.

        `own` is model, client and stream, as levels of topics.
        """
        if held is not self._sent.get(own[2], (None,))[0]:
            states = ((topics.presence(*own, place, what), value) for place, what, value in self.states(held))
            self._sent[own[2]] = held, [Message(each, value.encode(), retain=True) for each, value in states]
        return self._sent[own[2]][1]

    def states(self, held: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
        """Yield the levels for place and class or direction, and `ON`, `OFF` or a count, for each state."""
        for place, classes in held.get("presence", {}).items():
            yield from ((place, self._levels.of(name), "ON" if is_on else "OFF") for name, is_on in classes.items())
        for line, ways in held.get("crossings", {}).items():
            yield from ((line, way, str(count)) for way, count in ways.items())


def _watched(settings: PresenceSettings, known: Sequence[str]) -> tuple[str, ...]:
    areas = *settings.zones.values(), *settings.lines.values()
    named = tuple(dict.fromkeys(chain(settings.classes, *(each.classes for each in areas))))
    if unknown := [each for each in named if known and each not in known]:
        raise ConfigError(f"presence: the model has no class {unknown[0]!r}, but {instead_of(unknown[0], known)}")
    watched = settings.classes or named or tuple(known) or (OBJECT,)
    if (count := len(watched) * (1 + len(settings.zones)) + 2 * len(settings.lines)) > _MOST_STATES:
        raise ConfigError(f"presence: {count} states of a stream are too many; name fewer classes in `classes`")
    return watched


class StreamPresence:
    """The states of one stream, for the classes that are watched."""

    def __init__(self, settings: PresenceSettings, watched: Sequence[str], source: str) -> None:
        self._settings = settings
        zones, self._lines = (_of_stream(each, watched, source) for each in (settings.zones, settings.lines))
        self._polygons = {name: np.array(zone.points, np.float32) for name, zone in zones.items()}
        places = {FRAME: watched, **{name: zone.classes for name, zone in zones.items()}}
        self._held = {place: {each: _Held(settings) for each in names} for place, names in places.items()}
        self._counts = {name: {"in": 0, "out": 0} for name in self._lines}
        self._tracks = Tracks(sure=settings.min_score)
        self._sides: dict[int, dict[str, bool]] = {}

    def update(self, now_s: float, words: Mapping[str, Any], *, target: bool | None = None) -> dict[str, Any]:
        """Take an answer; return `presence` by place and class, and `crossings` by line where there are any.

        Args:
            now_s: The frame's stamp, in seconds.
            words: As `answers.words.describe_answer` returns them.
            target: Whether the target of a cascade is there, which is the only class watched; None without one.
        """
        objects = [each for each in words.get("detections", ()) if each["score"] >= self._settings.min_score]
        found: dict[str, Any] = {"presence": {}}
        for place, held in self._held.items():
            seen = self._inside(place, objects) if place in self._polygons else self._seen(words, objects)
            found["presence"][place] = {
                name: each.update(now_s, is_seen=name in seen if target is None else target)
                for name, each in held.items()
            }
        if self._lines:
            for own, each in zip(self._ids(now_s, objects), objects, strict=True):
                self._cross(own, each)
            found["crossings"] = {name: dict(each) for name, each in self._counts.items()}
        return found

    def _seen(self, words: Mapping[str, Any], objects: Sequence[Mapping[str, Any]]) -> set[str]:
        top = [each["class"] for each in words.get("top", ())[:1] if each["score"] >= self._settings.min_score]
        shares = words.get("class_shares", {}).items()
        return {*map(_name, objects), *top, *(name for name, share in shares if share >= self._settings.min_share)}

    def _inside(self, zone: str, objects: Sequence[Mapping[str, Any]]) -> set[str]:
        test, polygon = opencv().pointPolygonTest, self._polygons[zone]
        return {_name(each) for each in objects if test(polygon, _foot(each["box"]), measureDist=False) >= 0}

    def _ids(self, now_s: float, objects: Sequence[Mapping[str, Any]]) -> list[int]:
        """Return the id of each object: that which its answer has, else that of its track."""
        boxes = np.array([each["box"] for each in objects]).reshape(-1, 4)
        own = self._tracks.follow(now_s, boxes, [each["score"] for each in objects], [*map(_name, objects)])
        return [each.get("id", -track) for each, track in zip(objects, own, strict=True)]

    def _cross(self, own: int, found: Mapping[str, Any]) -> None:
        sides = self._sides.pop(own, {})
        self._sides[own] = sides  # the last one: those that were seen long ago are forgotten
        if len(self._sides) > _MOST_OBJECTS:
            del self._sides[next(iter(self._sides))]
        for name, line in self._lines.items():
            is_left = _is_left(line.points, found["box"]) if _name(found) in line.classes else None
            if is_left is not None and sides.setdefault(name, is_left) is not is_left:
                sides[name] = is_left
                self._counts[name]["in" if is_left else "out"] += 1


def _of_stream(areas: Mapping[str, Area], watched: Sequence[str], source: str) -> dict[str, Area]:
    own = {name: each for name, each in areas.items() if each.source in {None, source}}
    return {name: replace(each, classes=each.classes or tuple(watched)) for name, each in own.items()}


class _Held:
    """Whether one class is there in one place: the hysteresis."""

    def __init__(self, settings: PresenceSettings) -> None:
        self._frames, self._hold_s = settings.frames, settings.hold_s
        self._recent: deque[bool] = deque(maxlen=settings.of)
        self._seen_s = 0.0
        self.is_on = False

    def update(self, now_s: float, *, is_seen: bool) -> bool:
        self._recent.append(is_seen)
        self._seen_s = now_s if is_seen else min(self._seen_s, now_s)  # stamps go back where a recording starts anew
        if is_seen:
            self.is_on = self.is_on or sum(self._recent) >= self._frames
        elif now_s - self._seen_s >= self._hold_s:
            self.is_on = False
        return self.is_on


def _name(found: Mapping[str, Any]) -> str:
    return found["class"] or OBJECT


def _foot(box: Sequence[float]) -> tuple[float, float]:
    return (box[0] + box[2]) / 2, box[3]


def _is_left(ends: Sequence[Sequence[float]], box: Sequence[float]) -> bool | None:
    """Return whether a box stands left of a line; None on the line, where boxes tremble, and beyond its ends."""
    ((x0, y0), (x1, y1)), (x, y) = ends, _foot(box)
    dx, dy = x1 - x0, y1 - y0
    along, across, length = (x - x0) * dx + (y - y0) * dy, (y - y0) * dx - (x - x0) * dy, dx * dx + dy * dy
    if not 0 <= along <= length or abs(across) < _BAND * (box[3] - box[1]) * length**0.5:
        return None
    return across < 0
