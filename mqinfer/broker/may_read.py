"""Finds out whether a broker's access rules let a link read topics, by messages to itself.

Mosquitto 2.0 grants every subscription and then hands over nothing that its rules deny. A member of a share group that
may not read takes its turn all the same: its part of the requests vanishes (measured: 50 of 100). So whoever joins one
asks first.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

from mqinfer.broker.link import Link, Message, ReasonCode

__all__ = ["unreadable"]

_log = logging.getLogger("mqinfer.broker")
_REFUSED = ReasonCode.UNSPECIFIED  # this and all above it


class _Tally:
    """What became of the messages."""

    def __init__(self, topics: Sequence[str]) -> None:
        self._changed = threading.Condition()
        self._unanswered = set(topics)
        self.missing = set(topics)

    def came(self, message: Message) -> None:
        with self._changed:
            self.missing.discard(message.topic)
            self._changed.notify_all()

    def acked(self, topic: str, code: int) -> None:
        with self._changed:
            self._unanswered.discard(topic)
            if code >= _REFUSED:
                _log.info("the broker refuses the message by which this client finds out whether it may read %s", topic)
                self.missing.discard(topic)
            self._changed.notify_all()

    def wait(self, timeout: float) -> bool:
        """Wait until every message has come or was refused; says whether the broker answered each at least."""
        with self._changed:
            self._changed.wait_for(lambda: not self.missing, timeout)
            return not self._unanswered


def unreadable(link: Link, topics: Sequence[str], timeout: float = 2.0) -> list[str]:
    """Publish an empty message on each topic and list those from which it did not come back.

    Args:
        link: Open; it must not be subscribed to the topics.
        topics: In the link's own name. Whoever else reads them has to put up with an empty message.
        timeout: In seconds, for all messages.

    Returns:
        Topics on which the link may publish and not read; none where the broker does not answer in time.

    Raises:
        NotConnected: The link is down.
        NotAuthorized: The broker refused a subscription.
    """
    tally = _Tally(topics)
    subscribed = []
    try:
        for topic in topics:
            link.subscribe(topic, tally.came)
            subscribed.append(topic)
        for topic in topics:
            link.publish(Message(topic, b""), lambda code, topic=topic: tally.acked(topic, code))  # type: ignore[misc]
        answered = tally.wait(timeout)
    finally:
        for topic in subscribed:
            link.unsubscribe(topic)
    return sorted(tally.missing) if answered else []
