"""Which topics a topic filter matches (MQTT 5, section 4.7), and which handler receives a message."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from mqinfer.broker.link import Message, MessageHandler
from mqinfer.protocol.errors import BadTopic

_log = logging.getLogger("mqinfer.broker")

_LONGEST = 65_535  # bytes; a string travels behind a length of two bytes
# What a string must not contain, or should not and ends the connection to Mosquitto (MQTT 5, section 1.5.4): half a
# surrogate pair, control characters, and code points that are no characters.
_UNSUITABLE = re.compile(
    "[\0-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef"
    + "".join(f"{chr(plane + 0xFFFE)}{chr(plane + 0xFFFF)}" for plane in range(0, 0x110000, 0x10000))
    + "]"
)


@lru_cache(maxsize=1024)
def compile_filter(topic_filter: str) -> re.Pattern[str]:
    """Return the expression whose `fullmatch` decides whether a topic matches.

    Args:
        topic_filter: With `+` for one level and `#` for all that follow.

    Raises:
        BadTopic: A wildcard shares its level with other characters, or `#` is not the last level.
    """
    levels = topic_filter.split("/")
    if not is_suitable(topic_filter) or not 0 < len(topic_filter.encode()) <= _LONGEST:
        raise BadTopic(f"topic filter {topic_filter[:200]!r}: expected 1 to 65,535 bytes without control characters")
    if any(_is_misplaced(level, last=i == len(levels) - 1) for i, level in enumerate(levels)):
        raise BadTopic(f"topic filter {topic_filter!r}: '+' and '#' take a whole level, '#' only the last one")
    # A leading wildcard doesn't match the broker's own topics, which start with "$".
    guard = r"(?!\$)" if levels[0] in {"+", "#"} else ""
    if levels[-1] != "#":
        return re.compile(guard + "/".join(map(_expression, levels)), re.DOTALL)
    if levels == ["#"]:
        return re.compile(guard + ".*", re.DOTALL)
    return re.compile(guard + "/".join(map(_expression, levels[:-1])) + "(?:/.*)?", re.DOTALL)


def check_topic(topic: str) -> bytes:
    """Return a topic in UTF-8, if it can be published to.

    Raises:
        BadTopic: It is empty, has a wildcard or a control character, or is longer than 65,535 bytes.
    """
    is_sound = "+" not in topic and "#" not in topic and (topic.isprintable() or is_suitable(topic))
    if not is_sound or not 0 < len(encoded := topic.encode()) <= _LONGEST:
        raise BadTopic(f"topic {topic[:200]!r}: expected 1 to 65,535 bytes without wildcards and control characters")
    return encoded


def is_suitable(text: str) -> bool:
    """Return whether brokers accept a text: it is UTF-8 without control characters."""
    return _UNSUITABLE.search(text) is None


def _is_misplaced(level: str, *, last: bool) -> bool:
    return ("#" in level and (level != "#" or not last)) or ("+" in level and level != "+")


def _expression(level: str) -> str:
    return "[^/]*" if level == "+" else re.escape(level)


@dataclass(frozen=True, slots=True)
class Route:
    """A subscription: the filter as the broker receives it, the handler of what matches, and what it is made of."""

    subscription: str
    pattern: re.Pattern[str]
    handler: MessageHandler
    topic_filter: str
    share: str | None
    retained: bool

    @classmethod
    def make(cls, topic_filter: str, share: str | None, handler: MessageHandler, *, retained: bool = True) -> Route:
        """Return the route of a filter.

        Raises:
            BadTopic: The filter has a wildcard out of place.
        """
        name, pattern = subscription_name(topic_filter, share), compile_filter(topic_filter)
        return cls(name, pattern, handler, topic_filter, share, retained)


class Routes:
    """The subscriptions of a link. Any thread may change them; the link's thread looks messages up.

    The table is replaced as a whole, never changed, so a look-up needs no lock.
    """

    def __init__(self) -> None:
        self._table: tuple[Route, ...] = ()

    def __iter__(self) -> Iterator[Route]:
        return iter(self._table)

    def put(self, route: Route) -> None:
        """Add a route, replacing an older one of the same subscription."""
        self._table = (*self._without(route.subscription), route)

    def remove(self, subscription: str) -> None:
        """Remove a route."""
        self._table = self._without(subscription)

    def _without(self, subscription: str) -> tuple[Route, ...]:
        return tuple(route for route in self._table if route.subscription != subscription)

    def deliver(self, message: Message) -> None:
        """Call the handler of a message's topic; what the handler raises is logged and loses this message only."""
        for route in self._table:
            if route.pattern.fullmatch(message.topic):
                try:
                    route.handler(message)
                except Exception:  # noqa: BLE001 - foreign code on the link's thread
                    _log.exception("topic %s: the handler failed; the message is lost", message.topic)
                return
        _log.debug("topic %s: no handler any more", message.topic)


def subscription_name(topic_filter: str, share: str | None) -> str:
    """Return the filter as the broker receives it.

    Raises:
        BadTopic: The filter has a wildcard out of place, the group's name has a slash or a wildcard in it (MQTT 5,
            section 4.8.2), or both together are too long.
    """
    compile_filter(topic_filter)
    if share is None:
        return topic_filter
    name = f"$share/{share}/{topic_filter}"
    if not share or any(character in share for character in "/+#") or not is_suitable(share):
        raise BadTopic(f"share group {share[:200]!r}: expected a name without '/', '+', '#' and control characters")
    if len(name.encode()) > _LONGEST:
        raise BadTopic(f"topic filter {topic_filter[:200]!r}: longer than 65,535 bytes with its share group")
    return name
