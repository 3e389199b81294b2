"""Reads the recordings for Foxglove that tests have had written."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import cv2
import jsonschema
import numpy as np
import numpy.typing as npt
from mcap.reader import make_reader

__all__ = ["decoded", "messages"]


def messages(path: Path) -> list[tuple[str, Any, Any, dict[str, Any]]]:
    """Read topic, schema, record and body of each message; the schema in the file allows the body."""
    found = []
    with path.open("rb") as file:
        for schema, channel, message in make_reader(file, validate_crcs=True).iter_messages():
            assert schema is not None
            body = json.loads(message.data)
            jsonschema.validate(body, json.loads(schema.data))
            found.append((channel.topic, schema, message, body))
    return found


def decoded(data: str, flags: int = cv2.IMREAD_COLOR_RGB) -> npt.NDArray[Any]:
    """Return the pixels of a picture in base64, in RGB."""
    picture = cv2.imdecode(np.frombuffer(base64.b64decode(data), np.uint8), flags)
    assert picture is not None
    return picture
