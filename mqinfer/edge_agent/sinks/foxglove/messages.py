"""Make Foxglove messages as JSON, see https://docs.foxglove.dev/docs/sdk/schemas.

The schemas of Foxglove's messages in `schemas/` are those of the package @foxglove/schemas 2.1.0 (MIT licence). Times
are `{sec, nsec}`, bytes are base64.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any

from mqinfer.answers.outputs import Keypoint, Mask
from mqinfer.protocol.card import ModelCard
from mqinfer.protocol.types import Buffer

JsonObject = dict[str, object]
RESULT = "mqinfer.Result"
"""Schema name of the messages that carry the objects of `results.jsonl` and `times.jsonl`."""
OUTPUTS = "mqinfer.Outputs"
"""Schema name of the messages that carry the elements of large outputs."""
_POINTS, _LINE_LOOP, _LINE_LIST = 1, 2, 4
"""Types of `foxglove.PointsAnnotation`: single points, a closed line, lines of two points each."""
_NARROW = 960
"""Letters and lines have their plain size on images up to this width, in pixels."""


@lru_cache
def schema(name: str) -> bytes:
    """Return the JSON schema of a message, such as `foxglove.RawImage` or `mqinfer.Result`."""
    return files(__package__).joinpath("schemas", f"{name}.json").read_bytes()


def result_schema(card: ModelCard) -> bytes:
    """Return the schema of `mqinfer.Result` with a model's outputs and classes, which viewers offer for plots."""
    described: dict[str, Any] = json.loads(schema(RESULT))
    fields = described["properties"]["outputs"]
    entry = dict(fields["additionalProperties"]["properties"])
    del entry["values"]  # numbers or texts, which viewers can't describe
    shares = {"type": "object", "properties": {info.name: {"type": "number"} for info in card.classes}}
    fields["properties"] = {
        spec.name: {"type": "object", "properties": {**entry, "class_shares": {**entry["class_shares"], **shares}}}
        for spec in card.outputs
    }
    return json.dumps(described).encode()


def time(nanoseconds: int) -> JsonObject:
    """Split a time into whole seconds and nanoseconds."""
    seconds, rest = divmod(nanoseconds, 1_000_000_000)
    return {"sec": seconds, "nsec": rest}


def compressed_image(capture_time_ns: int, frame_id: str, data: Buffer, image_format: str) -> JsonObject:
    """Make a `foxglove.CompressedImage`; the format is `jpeg` or `png`."""
    return {
        "timestamp": time(capture_time_ns),
        "frame_id": frame_id,
        "data": base64.b64encode(data).decode(),
        "format": image_format,
    }


def raw_image(capture_time_ns: int, frame_id: str, mask: Mask) -> JsonObject:
    """Make a `foxglove.RawImage` of class numbers, `mono8`."""
    height, width = mask.shape
    return {
        "timestamp": time(capture_time_ns),
        "frame_id": frame_id,
        "width": width,
        "height": height,
        "encoding": "mono8",
        "step": width,
        "data": base64.b64encode(mask.tobytes()).decode(),
    }


@dataclass(frozen=True, slots=True)
class Box:
    """A box to draw: left, top, right, bottom in pixels, its text, its RGB colour of 0 to 255, points and lines."""

    sides: tuple[float, float, float, float]
    text: str
    colour: tuple[int, int, int]
    points: Sequence[Keypoint] = ()
    lines: Sequence[tuple[Keypoint, Keypoint]] = ()


def image_annotations(
    capture_time_ns: int,
    lines: Sequence[str],
    metadata: Mapping[str, str],
    boxes: Sequence[Box] = (),
    *,
    width: int = 0,
) -> JsonObject:
    """Make a `foxglove.ImageAnnotations`: lines of text in the top left corner, key-value pairs, boxes with labels.

    The label of a box at the upper edge stands inside it.

    Args:
        capture_time_ns: Stamp, the same as of the image.
        lines: The text.
        metadata: The pairs.
        boxes: In pixels of the image.
        width: Of the image; lines and letters of a large one are larger.
    """
    stamp, scale = time(capture_time_ns), max(1.0, width / _NARROW)
    return {
        "timestamp": stamp,
        "circles": [],
        "points": [each for box in boxes for each in _drawn(stamp, box, 2 * scale)],
        "texts": [
            *(
                _text(stamp, (8 * scale, 24 * (number + 1) * scale), line, 16 * scale)
                for number, line in enumerate(lines)
            ),
            *(_text(stamp, (box.sides[0], max(box.sides[1], 18 * scale)), box.text, 12 * scale) for box in boxes),
        ],
        "metadata": [{"key": key, "value": value} for key, value in metadata.items()],
    }


def _drawn(stamp: JsonObject, box: Box, thickness: float) -> Iterator[JsonObject]:
    """Yield the outline of a box, and its lines and points where it has some."""
    left, top, right, bottom = box.sides
    outline = (left, top), (right, top), (right, bottom), (left, bottom)
    yield _annotation(stamp, _LINE_LOOP, outline, box.colour, thickness)
    if box.lines:
        yield _annotation(stamp, _LINE_LIST, [end for line in box.lines for end in line], box.colour, thickness)
    if box.points:
        yield _annotation(stamp, _POINTS, box.points, box.colour, 2 * thickness)


def _annotation(
    stamp: JsonObject, kind: int, points: Sequence[Sequence[float]], colour: tuple[int, int, int], thickness: float
) -> JsonObject:
    red, green, blue = (part / 255 for part in colour)
    return {
        "timestamp": stamp,
        "type": kind,
        "points": [{"x": each[0], "y": each[1]} for each in points],
        "outline_color": {"r": red, "g": green, "b": blue, "a": 1},
        "outline_colors": [],
        "fill_color": {"r": 0, "g": 0, "b": 0, "a": 0},
        "thickness": thickness,
        "metadata": [],
    }


def _text(stamp: JsonObject, position: Sequence[float], text: str, size: float) -> JsonObject:
    """Return a text with its lower left corner at a position."""
    return {
        "timestamp": stamp,
        "position": {"x": position[0], "y": position[1]},
        "text": text,
        "font_size": size,
        "text_color": {"r": 1, "g": 1, "b": 1, "a": 1},
        "background_color": {"r": 0, "g": 0, "b": 0, "a": 0.6},
        "metadata": [],
    }
