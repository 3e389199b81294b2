"""What a worker subscribes to, and draining: it leaves the models' channels first and its lane last.

Clients that have not received its state yet still send to the lane; what comes over it is served until it is left.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence

from mqinfer.broker.link import Link, MessageHandler

_SILENCE_S = 0.1
"""A draining worker leaves its lane after so long without a request: clients know of the draining then. What comes from
one that was held up for longer the broker turns away, and it is sent elsewhere."""
_QUIET_S = 1.0
"""The same for one that an operator drains: nobody waits for its process, and its machine may be busy."""
Subscription = tuple[str, str | None]
"""Topic filter, and the group that shares it; None for the worker's own."""


class Intake:
    """The subscriptions of one worker.

    Attributes:
        draining: Whether nothing is accepted from the models' channels any more.
        came: Set by the receiver with each request that comes while draining.
    """

    def __init__(
        self,
        link: Link,
        channels: Sequence[Subscription],
        lane: Subscription,
        receive: MessageHandler,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare; `join` subscribes.

        Args:
            link: Connection to the broker.
            channels: What all workers of a model share.
            lane: What is sent to this worker alone.
            receive: Called with each message.
            clock: In seconds.
        """
        self.draining = False
        self.came = threading.Event()
        self._link = link
        self._channels = channels
        self._all = [*channels, lane]
        self._receive = receive
        self._clock = clock
        self._quiet_since = 0.0  # as far as `is_left` has found out
        self._subscribed: set[Subscription] = set()

    def join(self) -> None:
        """Subscribe to everything, or again to what was left.

        Raises:
            LinkError: The broker does not answer or refuses; call it again.
        """
        self.draining = False
        for topic_filter, share in self._all:
            if (topic_filter, share) not in self._subscribed:
                self._link.subscribe(topic_filter, self._receive, share=share, retained=False)
                self._subscribed.add((topic_filter, share))

    def leave_channels(self) -> None:
        """Accept nothing more but what comes over the lane.

        Raises:
            BrokerUnreachable: The broker does not answer; call it again.
        """
        self._leave(self._channels)

    def begin_to_drain(self) -> None:
        """Count from now how long no request has come."""
        self.draining, self._quiet_since = True, self._clock()

    def is_left(self) -> bool:
        """Return whether everything is left: the lane is, once nothing has come over it for `_QUIET_S`.

        Raises:
            BrokerUnreachable: The broker does not answer; call it again.
        """
        if self.came.is_set():
            self.came.clear()
            self._quiet_since = self._clock()
        if self._clock() - self._quiet_since >= _QUIET_S:
            self._leave(self._all)
        return not self._subscribed

    def leave(self, timeout: float) -> None:
        """Leave everything, the lane once no request has come for a moment, the time is over or the link is down.

        Raises:
            BrokerUnreachable: The broker does not answer.
        """
        end = self._clock() + timeout
        while self._subscribed and self._link.connected and self._clock() < end:
            self.came.clear()
            if not self.came.wait(min(_SILENCE_S, timeout)):
                break
        self._leave(self._all)

    def _leave(self, subscriptions: Iterable[Subscription]) -> None:
        for topic_filter, share in subscriptions:
            if (topic_filter, share) in self._subscribed:
                self._link.unsubscribe(topic_filter, share=share)
                self._subscribed.remove((topic_filter, share))
