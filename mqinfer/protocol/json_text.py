"""JSON from strangers: bounded before it is parsed, one typed error for whatever is wrong with it."""

from __future__ import annotations

import json
from typing import Any

from mqinfer.protocol.errors import BadEnvelope, LimitExceeded
from mqinfer.protocol.types import Buffer

__all__ = ["MAX_JSON_BYTES", "MAX_STATE_BYTES", "parse_json", "parse_object", "write_object"]

MAX_JSON_BYTES = 8 << 20
"""Longest text that is parsed: Python makes up to 21 times as much memory of it (`[[],[],[]]`)."""

MAX_STATE_BYTES = 64 << 10
"""Longest state of a worker, server or edge."""


def parse_object(text: Buffer, what: str, limit: int = MAX_JSON_BYTES) -> dict[str, Any]:
    """Parse one JSON object.

    Args:
        text: UTF-8.
        what: Names it in messages, such as `model card`.
        limit: In bytes.

    Raises:
        BadEnvelope: It is no JSON object.
        LimitExceeded: It is longer than `limit`.
    """
    found = parse_json(text, what, limit)
    if type(found) is not dict:
        raise BadEnvelope(f"{what}: must be a JSON object, not {type(found).__name__}")
    return found


def parse_json(text: Buffer, what: str, limit: int = MAX_JSON_BYTES) -> Any:
    """Parse any JSON; arguments and errors as for `parse_object`. All of its strings can be written as UTF-8."""
    size = memoryview(text).nbytes
    if size > limit:
        raise LimitExceeded(f"{what}: {size} bytes of JSON; at most {limit} are accepted; send large tensors as binary")
    try:
        source = str(text, "utf-8-sig")
        found = json.loads(source, parse_constant=float)
        if "\\ud" in source or "\\uD" in source:
            json.dumps(found, ensure_ascii=False).encode()  # fails on halves of surrogate pairs, wherever they stand
    except UnicodeEncodeError as error:
        raise BadEnvelope(f"{what}: holds half of a surrogate pair; strings must be Unicode") from error
    except (ValueError, RecursionError) as error:
        raise BadEnvelope(f"{what}: no JSON in UTF-8: {error}") from error
    return found


def write_object(fields: dict[str, Any], what: str) -> bytes:
    """Write a JSON object, without blanks.

    Raises:
        BadEnvelope: A value is not one that JSON has; NaN and infinities are not.
    """
    try:
        return json.dumps(fields, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise BadEnvelope(
            f"{what}: can't be written as JSON ({error}); use booleans, finite numbers and strings"
        ) from error
