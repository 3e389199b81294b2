"""Foxglove's messages as JSON: schemas and bodies, by https://docs.foxglove.dev/docs/sdk/schemas.

The schemas here hold the fields that mqinfer writes, under Foxglove's own names, by which its panels know them.
Times are `{sec, nsec}`, bytes are base64.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping

from mqinfer.edge_agent.sinks.outputs import Mask

__all__ = ["SCHEMAS", "compressed_image", "image_annotations", "raw_image", "time"]

JsonObject = dict[str, object]


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

SCHEMAS: Mapping[str, JsonObject] = {
    "foxglove.CompressedImage": _object(timestamp=_TIME, frame_id=_STRING, data=_BYTES, format=_STRING),
    "foxglove.RawImage": _object(
        timestamp=_TIME, frame_id=_STRING, width=_COUNT, height=_COUNT, encoding=_STRING, step=_COUNT, data=_BYTES
    ),
    "foxglove.ImageAnnotations": _object(
        timestamp=_TIME,
        circles=_list({"type": "object"}),
        points=_list({"type": "object"}),
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


def image_annotations(capture_time_ns: int, text: str, metadata: Mapping[str, str]) -> JsonObject:
    """Make a `foxglove.ImageAnnotations` with one line of text in the top left corner, and key-value pairs."""
    stamp = time(capture_time_ns)
    label = {
        "timestamp": stamp,
        "position": {"x": 8, "y": 24},
        "text": text,
        "font_size": 16,
        "text_color": {"r": 1, "g": 1, "b": 1, "a": 1},
        "background_color": {"r": 0, "g": 0, "b": 0, "a": 0.6},
    }
    pairs = [{"key": key, "value": value} for key, value in metadata.items()]
    return {"timestamp": stamp, "circles": [], "points": [], "texts": [label], "metadata": pairs}
