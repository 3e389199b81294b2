"""Topics as NATS subjects, and back: `mqinfer/v1/models/seg/card` is `mqtt.mqinfer.v1.models.seg.card.live`.

A level is a token. What a token can't hold is escaped as `%` and two hexadecimal digits; an empty level is a lone `%`.
The last token tells what it is, so one pattern has all of a topic in it and nothing of another.
"""

from __future__ import annotations

import re
from functools import lru_cache

from mqinfer.protocol.errors import BadTopic

HEARD, KEPT, ANSWERS = "mqtt", "kept", "answers"
"""First token of what subscribers hear, of what is to be kept and then heard too, and of what the server answers."""
LIVE, RETAINED, WILL, ALIVE = "live", "retained", "will", "alive"
"""Last token: a message, one that is retained, and a link's will and its sign of life, with its client id behind."""

_LONGEST = 3_000  # bytes; the server accepts lines of 4,096, with the reply subject and the share group in them
_ESCAPED = re.compile(r"[%.*> \t\r\n\f]")
_ESCAPE = re.compile(r"%([0-9A-F]{2})")


@lru_cache(maxsize=4096)
def subject(topic: str, kind: str = HEARD, what: str = LIVE) -> str:
    """Return the subject of a topic without wildcards.

    Args:
        topic: As MQTT has it.
        kind: First token.
        what: Last token.

    Raises:
        BadTopic: It is too long for NATS.
    """
    return _bounded(topic, ".".join((kind, *map(token, topic.split("/")), what)))


def pattern(topic_filter: str, kind: str = HEARD, what: str = "*") -> str:
    """Return the pattern of a filter's subjects.

    Args:
        topic_filter: As MQTT has it; one that ends with `#` matches the level above it too.
        kind: First token.
        what: Last token, of no effect with `#`.

    Raises:
        BadTopic: It is too long for NATS.
    """
    *levels, last = topic_filter.split("/")
    ends = (">",) if last == "#" else (_wildcard(last), what)
    return _bounded(topic_filter, ".".join((kind, *map(_wildcard, levels), *ends)))


def topic(name: str) -> str:
    """Return the topic of a subject, which is the inverse of `subject`."""
    return "/".join(map(_level, name.split(".")[1:-1]))


def owned(what: str, client_id: str) -> str:
    """Return the last token of what belongs to a link."""
    return f"{what}~{token(client_id)}"


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
