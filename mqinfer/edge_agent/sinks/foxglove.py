"""Make Foxglove messages as JSON: schemas and bodies, see https://docs.foxglove.dev/docs/sdk/schemas.

The schemas hold the fields that mqinfer writes. Their names are Foxglove's, which its panels recognise.
Times are `{sec, nsec}`, bytes are base64.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mqinfer.edge_agent.sinks.outputs import Mask

__all__ = ["SCHEMAS", "Box", "compressed_image", "image_annotations", "raw_image", "time"]

JsonObject = dict[str, object]
_LINE_LOOP = 2
"""Type of `foxglove.PointsAnnotation` for a closed line."""


def _object(**properties: object) -> JsonObject:
    return {"type": "object", "properties": properties, "required": list(properties)}


def _list(items: object) -> JsonObject:
    return {"type": "array", "items": items}


_STRING: JsonObject = {"type": "string"}
_BYTES: JsonObject = {"type": "string", "contentEncoding": "base64"}
_NUMBER: JsonObject = {"type": "number"}
_COUNT: JsonObject = {"type": "integer", "minimum": 0}
_TIME: JsonObject = {"title": "time", **_object(sec=_COUNT, nsec={**_COUNT, "maximum": 999_999_999})}
_POINT = _object(x=_NUMBER, y=_NUMBER)
_COLOUR = _object(r=_NUMBER, g=_NUMBER, b=_NUMBER, a=_NUMBER)
_TEXT = _object(
    timestamp=_TIME, position=_POINT, text=_STRING, font_size=_NUMBER, text_color=_COLOUR, background_color=_COLOUR
)
_LINES = _object(timestamp=_TIME, type=_COUNT, points=_list(_POINT), outline_color=_COLOUR, thickness=_NUMBER)

SCHEMAS: Mapping[str, JsonObject] = {
    "foxglove.CompressedImage": _object(timestamp=_TIME, frame_id=_STRING, data=_BYTES, format=_STRING),
    "foxglove.RawImage": _object(
        timestamp=_TIME, frame_id=_STRING, width=_COUNT, height=_COUNT, encoding=_STRING, step=_COUNT, data=_BYTES
    ),
    "foxglove.ImageAnnotations": _object(
        timestamp=_TIME,
        circles=_list({"type": "object"}),
        points=_list(_LINES),
        texts=_list(_TEXT),
        metadata=_list(_object(key=_STRING, value=_STRING)),
    ),
}
"""JSON schema by schema name."""


def time(nanoseconds: int) -> JsonObject:
    """Split a time into whole seconds and nanoseconds."""
    seconds, rest = divmod(nanoseconds, 1_000_000_000)
    return {"sec": seconds, "nsec": rest}


def compressed_image(capture_time_ns: int, frame_id: str, data: bytes, image_format: str) -> JsonObject:
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
    """A box to draw: left, top, right, bottom in pixels, its text, and its RGB colour of 0 to 255."""

    sides: tuple[float, float, float, float]
    text: str
    colour: tuple[int, int, int]


def image_annotations(
    capture_time_ns: int, text: str, metadata: Mapping[str, str], boxes: Sequence[Box] = ()
) -> JsonObject:
    """Make a `foxglove.ImageAnnotations`: a line of text in the top left corner, key-value pairs, boxes with labels."""
    stamp = time(capture_time_ns)
    return {
        "timestamp": stamp,
        "circles": [],
        "points": [_outline(stamp, box) for box in boxes],
        "texts": [_text(stamp, (8, 24), text, 16), *(_text(stamp, box.sides[:2], box.text, 12) for box in boxes)],
        "metadata": [{"key": key, "value": value} for key, value in metadata.items()],
    }


def _outline(stamp: JsonObject, box: Box) -> JsonObject:
    left, top, right, bottom = box.sides
    red, green, blue = (part / 255 for part in box.colour)
    return {
        "timestamp": stamp,
        "type": _LINE_LOOP,
        "points": [{"x": x, "y": y} for x, y in ((left, top), (right, top), (right, bottom), (left, bottom))],
        "outline_color": {"r": red, "g": green, "b": blue, "a": 1},
        "thickness": 2,
    }


def _text(stamp: JsonObject, position: Sequence[float], text: str, size: int) -> JsonObject:
    """Return a text with its lower left corner at a position."""
    return {
        "timestamp": stamp,
        "position": {"x": position[0], "y": position[1]},
        "text": text,
        "font_size": size,
        "text_color": {"r": 1, "g": 1, "b": 1, "a": 1},
        "background_color": {"r": 0, "g": 0, "b": 0, "a": 0.6},
    }
