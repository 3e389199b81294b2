"""The log of lost connections: one line for an outage, one a minute while it lasts, and one at its end.

A process may have several links to a broker, and each of them tries again every few seconds. For the log they are one.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from mqinfer.broker.process import abandon_in_children

_log = logging.getLogger("mqinfer.broker")
_REMINDER_S = 60.0
"""Interval of the lines that an outage lasts on."""


@dataclass(slots=True)
class _Outage:
    """An outage of one broker: since when, when the next reminder is due, and the links that have no connection."""

    since: float
    reminder_at: float
    links: set[object] = field(default_factory=set)


class Outages:
    """The outages of this process, by broker. Thread-safe.

    Args:
        clock: In seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._outages: dict[str, _Outage] = {}
        abandon_in_children(self)

    def abandon(self) -> None:
        """Forget everything, in a child that was forked off: the links are the parent's."""
        self._lock, self._outages = threading.Lock(), {}

    def failed(self, broker: str, link: object, why: Exception) -> None:
        """Record that a link has lost its connection or could not make it anew.

        Args:
            broker: Address without a login.
            link: Whose connection it is.
            why: The reason.
        """
        now = self._clock()
        with self._lock:
            is_new = broker not in self._outages
            outage = self._outages.setdefault(broker, _Outage(now, now + _REMINDER_S))
            outage.links.add(link)
            is_reminder = now >= outage.reminder_at
            if is_reminder:
                outage.reminder_at = now + _REMINDER_S
        reason = str(why).removeprefix(f"{broker}: ")
        if reason.startswith(broker):
            reason = f"it{reason.removeprefix(broker)}"
        if is_new:
            _log.warning(
                "lost the connection to %s: %s; trying again", broker, reason, extra={"event": "lost", "broker": broker}
            )
        elif is_reminder:
            _log.warning(
                "still no connection to %s after %.0f min: %s",
                broker,
                (now - outage.since) / 60,
                reason,
                extra={"event": "still_lost", "broker": broker, "seconds": round(now - outage.since, 1)},
            )

    def ended(self, broker: str, link: object, *, connected: bool) -> None:
        """Record that a link has its connection again, or gives it up; the last one of an outage ends that."""
        if broker not in self._outages:
            return
        with self._lock:
            outage = self._outages.get(broker)
            if outage is None or link not in outage.links:
                return
            outage.links.remove(link)
            if outage.links:
                return
            del self._outages[broker]
            seconds = self._clock() - outage.since
        if connected:
            _log.warning(
                "connected again to %s after %.1f s",
                broker,
                seconds,
                extra={"event": "connected_again", "broker": broker, "seconds": round(seconds, 1)},
            )


OUTAGES = Outages()
"""Those of all links of this process."""
