"""The connection of a watch and its buffer: the link's thread fills it, the caller's thread reads what it takes.

A watch has a connection of its own, so that results of others never hold up a client's own; no filter of its overlaps
with one of the client's.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from mqinfer.broker.link import ConnectionHandler, Link, Message
from mqinfer.broker.process import Maker
from mqinfer.client.callbacks import Notifier
from mqinfer.client.watching.buffer import Buffer
from mqinfer.client.watching.seen import (
    DropReason,
    Reader,
    SeenPreview,
    SeenResult,
    WatchCounters,
    arrival_of,
    drop_reason,
)
from mqinfer.protocol.errors import ConfigError, MqinferError, NotAuthorized
from mqinfer.protocol.limits import DEFAULT_LIMITS, Limits
from mqinfer.protocol.topics import Topics

_HINT = (
    "only the login of a dashboard may read the results of others; add one with: mqinfer broker add DIR dashboard NAME"
)


@dataclass(frozen=True, slots=True)
class WatchSettings:
    """What is watched, and how much of it may wait.

    Attributes:
        model: Name of the model; None for all models.
        client: Name of the client whose results are wanted; None for those of all clients.
        buffer: Most messages that may wait to be taken; the oldest are dropped first.
        buffer_bytes: What they may take in memory.
        with_previews: Whether previews are received, too.

    Raises:
        ConfigError: A bound is below 1.
    """

    model: str | None = None
    client: str | None = None
    buffer: int = 256
    buffer_bytes: int = 64 << 20
    with_previews: bool = False

    def __post_init__(self) -> None:
        for name in ("buffer", "buffer_bytes"):
            if not getattr(self, name) >= 1:  # also catches NaN
                raise ConfigError(f"watch: {name} is {getattr(self, name)}; expected 1 or more")


class WatchFeed(Notifier):
    """The connection and the buffer of one watch. Thread-safe; `take` never waits.

    Who waits is woken when there is a message, or the end.

    Attributes:
        maker: The process that may use it.
    """

    def __init__(
        self,
        connect: Callable[[ConnectionHandler], Link],
        topics: Topics,
        settings: WatchSettings,
        limits: Limits = DEFAULT_LIMITS,
        clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """Prepare; `open` connects.

        Args:
            connect: Makes the link.
            topics: Below the root of the site.
            settings: What is watched.
            limits: Bounds of what a reply may contain.
            clock_ns: Nanoseconds since the epoch.

        Raises:
            BadTopic: The name of the model or of the client breaks the naming rules.
        """
        super().__init__()
        self.maker = Maker("a watch")
        self._reader = Reader(topics, settings.model, limits)
        self._buffer = Buffer(settings.buffer, settings.buffer_bytes)
        self._clock_ns = clock_ns
        self._filters = [self._reader.result_filter(settings.client)]
        if settings.with_previews:
            self._filters.append(self._reader.preview_filter(settings.client))
        self._closed = False
        self._was_connected = False
        self._link = connect(self._on_connection)

    def open(self, timeout: float) -> None:
        """Connect, and receive from now on.

        Args:
            timeout: For the connection, in seconds.

        Raises:
            BrokerUnreachable: No broker answers at the address.
            NotAuthorized: The broker refuses the login or the subscription.
        """
        try:
            self._link.open(timeout)
            for each in self._filters:
                self._link.subscribe(each, self._on_message, retained=False)
        except NotAuthorized as error:
            self.close()
            raise NotAuthorized(f"{error}; {_HINT}") from error
        except BaseException:
            self.close()
            raise

    @property
    def is_ready(self) -> bool:
        """Whether a message, or the end, can be taken now."""
        return len(self._buffer) > 0 or self.is_over

    @property
    def has_ended(self) -> bool:
        """Whether nothing more will come, and everything is taken."""
        return self.is_over and not len(self._buffer)

    @property
    def is_over(self) -> bool:
        """Whether nothing more will come: it is closed, or the connection has ended for good."""
        return self._closed or self._link.failure is not None

    def take(self) -> SeenResult | SeenPreview | None:
        """Read the oldest message; None if there is none, or it was not worth a result and is counted."""
        with self.changed:
            arrival = self._buffer.take()
        if arrival is None:
            return None
        seen: SeenResult | SeenPreview | None = None
        outcome: DropReason | bool = DropReason.UNREADABLE  # also of a defect, so that the books are right
        try:
            seen = self._reader.read(arrival)
            outcome = seen is not None
        except MqinferError as error:
            outcome = drop_reason(error)
        finally:
            with self.changed:
                self._buffer.settle(outcome)
        return seen

    def check(self) -> None:
        """Raise where nothing more will come because the connection has ended for good, and all is taken.

        Raises:
            LinkError: Why it has.
        """
        failure = self._link.failure
        if failure is not None and not self._closed and self.has_ended:
            raise failure

    def counters(self) -> WatchCounters:
        """Return what became of all messages, at one instant."""
        with self.changed:
            return self._buffer.counters()

    def close(self) -> None:
        """Accept nothing more, and disconnect; what is buffered can still be taken."""
        self.maker.check()
        self._closed = True
        self.notify()
        self._link.close()

    def _on_message(self, message: Message) -> None:
        if self._closed:
            return
        if self._reader.is_control(message.topic):
            with self.changed:
                self._buffer.ignore()
            return
        arrival = arrival_of(message, self._clock_ns())
        reason = self._reader.refuse(arrival)
        with self.changed:
            if reason is None:
                self._buffer.put(arrival)
            else:
                self._buffer.refuse(reason)
        self.notify()

    def _on_connection(self, connected: bool) -> None:  # noqa: FBT001  the link's signature
        if self._was_connected and not connected and not self._closed:
            with self.changed:
                self._buffer.disconnected += 1
        self._was_connected = connected
        self.notify()
