"""Which handler gets a message."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass

from mqinfer.broker.filters import compile_filter
from mqinfer.broker.link import Message, MessageHandler
from mqinfer.protocol.errors import BadTopic

__all__ = ["Route", "Routes"]

_log = logging.getLogger("mqinfer.broker")


@dataclass(frozen=True, slots=True)
class Route:
    """A subscription: the filter as the broker is told it, and who gets what matches."""

    subscription: str
    pattern: re.Pattern[str]
    handler: MessageHandler

    @classmethod
    def make(cls, topic_filter: str, share: str | None, handler: MessageHandler) -> Route:
        """Make the route of a filter.

        Raises:
            BadTopic: The filter has a wildcard out of place.
        """
        return cls(subscription_name(topic_filter, share), compile_filter(topic_filter), handler)


class Routes:
    """The subscriptions of a link. Any thread may change them; the link's thread looks messages up.

    The table is replaced as a whole, never changed, so a look-up needs no lock.
    """

    def __init__(self) -> None:
        self._table: tuple[Route, ...] = ()

    def __iter__(self) -> Iterator[Route]:
        return iter(self._table)

    def put(self, route: Route) -> None:
        """Add a route, in the place of an older one of the same subscription."""
        self._table = (*self._without(route.subscription), route)

    def remove(self, subscription: str) -> None:
        """Take a route away."""
        self._table = self._without(subscription)

    def _without(self, subscription: str) -> tuple[Route, ...]:
        return tuple(route for route in self._table if route.subscription != subscription)

    def deliver(self, message: Message) -> None:
        """Hand a message to the handler of its topic; what the handler raises is logged and costs this message."""
        for route in self._table:
            if route.pattern.fullmatch(message.topic):
                try:
                    route.handler(message)
                except Exception:  # noqa: BLE001 - foreign code on the link's thread
                    _log.exception("topic %s: the handler failed; the message is lost", message.topic)
                return
        _log.debug("topic %s: no handler any more", message.topic)


def subscription_name(topic_filter: str, share: str | None) -> str:
    """The filter as the broker is told it.

    Raises:
        BadTopic: The group's name has a slash or a wildcard in it (MQTT 5, section 4.8.2).
    """
    if share is None:
        return topic_filter
    if not share or any(character in share for character in "/+#\0"):
        raise BadTopic(f"share group {share!r}: it needs a name without '/', '+' and '#'")
    return f"$share/{share}/{topic_filter}"
