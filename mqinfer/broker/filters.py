"""Which topics a topic filter matches (MQTT 5, section 4.7)."""

from __future__ import annotations

import re
from functools import lru_cache

from mqinfer.protocol.errors import BadTopic

__all__ = ["check_topic", "compile_filter"]

_LONGEST = 65_535  # bytes; a topic travels behind a length of two bytes


@lru_cache(maxsize=1024)
def compile_filter(topic_filter: str) -> re.Pattern[str]:
    """Make the expression whose `fullmatch` tells whether a topic matches.

    Args:
        topic_filter: With `+` for one level and `#` for all that follow.

    Raises:
        BadTopic: A wildcard shares its level with other characters, or `#` is not the last level.
    """
    levels = topic_filter.split("/")
    if not _is_sound(topic_filter) or any(
        _is_misplaced(level, last=i == len(levels) - 1) for i, level in enumerate(levels)
    ):
        raise BadTopic(f"topic filter {topic_filter!r}: '+' and '#' take a whole level, '#' only the last one")
    # A leading wildcard doesn't match the broker's own topics, which start with "$".
    guard = r"(?!\$)" if levels[0] in {"+", "#"} else ""
    if levels[-1] != "#":
        return re.compile(guard + "/".join(map(_expression, levels)), re.DOTALL)
    if levels == ["#"]:
        return re.compile(guard + ".*", re.DOTALL)
    return re.compile(guard + "/".join(map(_expression, levels[:-1])) + "(?:/.*)?", re.DOTALL)


def check_topic(topic: str) -> None:
    """Refuse a topic that can't be published to.

    Raises:
        BadTopic: It is empty, has a wildcard or a NUL, or is longer than 65,535 bytes.
    """
    if not _is_sound(topic) or "+" in topic or "#" in topic:
        raise BadTopic(f"topic {topic[:200]!r}: it must have 1 to 65,535 bytes, no wildcard and no NUL")


def _is_sound(topic: str) -> bool:
    # Only a topic near the bound is worth encoding to be measured: a character takes four bytes at most.
    return bool(topic) and "\0" not in topic and (len(topic) <= _LONGEST // 4 or len(topic.encode()) <= _LONGEST)


def _is_misplaced(level: str, *, last: bool) -> bool:
    return ("#" in level and (level != "#" or not last)) or ("+" in level and level != "+")


def _expression(level: str) -> str:
    return "[^/]*" if level == "+" else re.escape(level)
