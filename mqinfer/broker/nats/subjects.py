"""Topics as NATS subjects, and back: `mqinfer/v1/models/seg/infer/car-7` is `mqtt.mqinfer.v1.models.seg.infer.car-7`.

A level is a token. What a token can't hold is escaped as `%` and two hexadecimal digits; an empty level is a lone `%`.
"""

from __future__ import annotations

import re
from functools import lru_cache

from mqinfer.protocol.errors import BadTopic

LIVE, RETAINED, WILLS, ANSWERS = "mqtt", "retained", "will", "answers"
"""First token of what is published, of what is kept for later subscribers, of wills that may come due, and of what the
server answers to a link."""

_LONGEST = 3_000  # bytes; the server accepts lines of 4,096, with the reply subject and the share group in them
_ESCAPED = re.compile(r"[%.*> \t\r\n\f]")
_ESCAPE = re.compile(r"%([0-9A-F]{2})")


@lru_cache(maxsize=4096)
def subject(topic: str, kind: str = LIVE) -> str:
    """Return the subject of a topic without wildcards.

    Args:
        topic: As MQTT has it.
        kind: First token.

    Raises:
        BadTopic: It is too long for NATS.
    """
    return _bounded(topic, ".".join((kind, *map(token, topic.split("/")))))


def subjects(topic_filter: str, kind: str = LIVE) -> list[str]:
    """Return the subjects of a filter: two where it ends with `#`, which matches the level above it too.

    Raises:
        BadTopic: It is too long for NATS.
    """
    *levels, last = topic_filter.split("/")
    tokens = [kind, *(_wildcard(level) for level in levels)]
    if last != "#":
        return [_bounded(topic_filter, ".".join((*tokens, _wildcard(last))))]
    below = _bounded(topic_filter, ".".join((*tokens, ">")))
    return [".".join(tokens), below] if levels else [below]


def topic(name: str) -> str:
    """Return the topic of a subject, which is the inverse of `subject`."""
    return "/".join(map(_level, name.split(".")[1:]))


def token(level: str) -> str:
    """Return a level, or any other text, as one token."""
    return _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", level) or "%"


def _level(name: str) -> str:
    if name == "%":
        return ""
    return _ESCAPE.sub(lambda found: chr(int(found[1], 16)), name)


def _wildcard(level: str) -> str:
    return "*" if level == "+" else token(level)


def _bounded(text: str, name: str) -> str:
    if len(name.encode()) > _LONGEST:
        raise BadTopic(f"topic {text[:200]!r}: longer than {_LONGEST} bytes as a NATS subject")
    return name
