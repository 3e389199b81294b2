"""Requests that a server holds while they arrive and are worked on: bounded in bytes, also where gRPC alone has them.

gRPC hands a message over when all of it is there, and tells nothing before. What it holds of one is what a connection
has received, as the system counts it, less the messages that were handed over.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from typing import Any

from mqinfer.logs import log_dropped
from mqinfer.protocol.limits import DEFAULT_LIMITS
from mqinfer.web.peers import received_bytes

SHARE = 0.75
"""One caller, or one connection, may have this share, so that there is always room for another one."""
_TICK_S = 0.05
_RESTS = 20
"""Looking at the connections takes at most one part in so many of the time."""
_MOST_WAITING = 8192
"""Calls that wait for a message at a time; above them the connection with most of them loses its oldest."""
_PER_MESSAGE, _PER_BYTES = 1024, 128
"""What a message takes beside its bytes: headers; and one in so many for the frames of HTTP/2 and TLS."""


class Arriving:
    """Used by the loop's thread alone.

    Args:
        log: Says which calls were given up.
        most_bytes: Bytes of all requests.
        patience_s: Time in which a message has to be there that a call has one of.

    Attributes:
        given_up: Calls whose message was not waited for, by reason: `slow`, `bytes`, `calls`.
    """

    def __init__(self, log: logging.Logger, most_bytes: int, patience_s: float) -> None:
        self.given_up: Counter[str] = Counter()
        self._log, self._most_bytes, self._patience_s = log, most_bytes, patience_s
        self._share = max(SHARE * most_bytes, min(most_bytes, DEFAULT_LIMITS.payload_bytes))  # one request fits
        self._held: Counter[str] = Counter()  # by caller
        self._bytes = 0
        self._waiting: dict[asyncio.Task[Any], tuple[str, float, float]] = {}  # connection, since, deadline
        self._messages: Counter[str] = Counter()  # bytes handed over, by connection
        self._partial: dict[str, int] = {}  # by connection, as of the last look
        self._partial_bytes = 0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def bytes(self) -> int:
        """Bytes of all requests, as far as they have arrived."""
        return self._bytes + self._partial_bytes

    def take(self, caller: str, size: int) -> bool:
        """Count bytes of a request; return False, and do nothing, where there is no room for them."""
        held = self._held[caller] + size
        if self.bytes + size > self._most_bytes or held > self._share:
            return False
        self._held[caller] = held
        self._bytes += size
        return True

    def give(self, caller: str, size: int) -> None:
        """Forget bytes that were taken."""
        self._bytes -= size
        self._held[caller] -= size
        if self._held[caller] <= 0:
            del self._held[caller]

    def wait(self, connection: str, *, timed: bool) -> asyncio.Task[Any]:
        """Count what arrives for a call until `received`; where that is too much or too late, this task is cancelled.

        Args:
            connection: Its name, as of `name_connection`.
            timed: Whether the call has one message, which has its time.

        Returns:
            The task that runs, which is to be handed to `received`.

        Raises:
            RuntimeError: None does.
        """
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("no task runs")
        loop = asyncio.get_running_loop()
        now = loop.time()
        self._waiting[task] = connection, now, now + self._patience_s if timed else math.inf
        if self._timer is None:
            self._timer = loop.call_later(_TICK_S, self._look)
        if len(self._waiting) > _MOST_WAITING:
            calls = Counter(each for each, _, _ in self._waiting.values())
            self._give_up(max(calls, key=calls.__getitem__), "calls", 1)
        return task

    def received(self, task: asyncio.Task[Any], size: int) -> None:
        """Take note that a call has its message of this size, or that there is none any more."""
        found = self._waiting.pop(task, None)
        if found is not None:
            self._messages[found[0]] += size + _PER_MESSAGE + size // _PER_BYTES

    def is_waiting(self, task: asyncio.Task[Any]) -> bool:
        """Return whether a call still waits for its message, and was not given up."""
        return task in self._waiting

    def _look(self) -> None:
        """See what has arrived for the calls that wait, and end those for which it is too much or too late."""
        loop, self._timer = asyncio.get_running_loop(), None
        began = loop.time()
        for task, (connection, _, deadline) in list(self._waiting.items()):
            if deadline <= began:
                self._end(task, connection, "slow")
        if any(since + _TICK_S <= began for _, since, _ in self._waiting.values()):
            self._count(received_bytes())
            self._make_room()
        if self._waiting:
            self._timer = loop.call_later(max(_TICK_S, _RESTS * (loop.time() - began)), self._look)
        else:
            self._partial, self._partial_bytes = {}, 0

    def _count(self, received: dict[str, int]) -> None:
        waiting = {connection for connection, _, _ in self._waiting.values()}
        for connection in self._messages.keys() - received.keys():  # it is closed
            del self._messages[connection]
        self._partial = {}
        for connection, total in received.items():
            if connection not in waiting and connection not in self._messages:
                continue  # none of gRPC
            partial = total - self._messages[connection]
            if partial <= 0 or connection not in waiting:  # nothing is between two messages
                self._messages[connection] = total
            else:
                self._partial[connection] = partial
        self._partial_bytes = sum(self._partial.values())

    def _make_room(self) -> None:
        while self._partial:
            most = max(self._partial, key=self._partial.__getitem__)
            if self.bytes <= self._most_bytes and self._partial[most] <= self._share:
                return
            ended = self._partial.pop(most)
            self._messages[most] += ended
            self._partial_bytes -= ended
            self._give_up(most, "bytes", len(self._waiting))

    def _give_up(self, connection: str, reason: str, most: int) -> None:
        tasks = [task for task, (each, _, _) in self._waiting.items() if each == connection]
        for task in tasks[:most]:
            self._end(task, connection, reason)

    def _end(self, task: asyncio.Task[Any], connection: str, reason: str) -> None:
        del self._waiting[task]
        self.given_up[reason] += 1
        log_dropped(self._log, f"a call of {connection}, whose message is not there", reason, self.given_up[reason])
        task.cancel()
