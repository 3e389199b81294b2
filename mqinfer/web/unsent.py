"""Replies that callers have not taken yet: bounded in bytes, and in the time that each may take.

Whoever asks for much and reads nothing makes a server hold the answers; no bound on requests holds for those.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from mqinfer.logs import log_dropped
from mqinfer.web.peers import close_connections

_LOOKS = 64
"""Times, at most, that all replies are looked at while one has its time."""


@dataclass(slots=True, eq=False)
class UnsentReply:
    """A reply that is there and has not been taken.

    Attributes:
        caller: Who asked for it.
        size: Its bytes.
        give_up: Ends the connection, or the call.
        deadline: When it must have been taken, on the loop's clock.
    """

    caller: str
    size: int
    give_up: Callable[[], object]
    deadline: float


class Unsent:
    """Used by the loop's thread alone.

    Args:
        log: Says what was given up.
        most_bytes: Bytes of all replies; above them the caller with most of them loses its oldest.
        patience_s: Time in which a reply has to be taken.

    Attributes:
        bytes: Of the replies that are there now.
        given_up: Replies that were dropped: `slow`, or `bytes`.
    """

    def __init__(self, log: logging.Logger, most_bytes: int, patience_s: float) -> None:
        self.bytes = 0
        self.given_up: Counter[str] = Counter()
        self._log, self._most_bytes, self._patience_s = log, most_bytes, patience_s
        self._replies: dict[UnsentReply, None] = {}  # the oldest first
        self._timer: asyncio.TimerHandle | None = None
        self._closing: set[str] = set()

    @contextmanager
    def sending(self, caller: str, size: int, give_up: Callable[[], object], *, timed: bool = True) -> Iterator[None]:
        """Count a reply within the context; arguments as of `begin`."""
        reply = self.begin(caller, size, give_up, timed=timed)
        try:
            yield
        finally:
            self.end(reply)

    def begin(self, caller: str, size: int, give_up: Callable[[], object], *, timed: bool = True) -> UnsentReply:
        """Count a reply until `end`.

        Args:
            caller: Who asked for it.
            size: Its bytes.
            give_up: Called where it is not taken in time or there are too many bytes; frees it.
            timed: Whether its time runs; it does not for one that waits for another to be taken.
        """
        loop = asyncio.get_running_loop()
        reply = UnsentReply(caller, size, give_up, loop.time() + self._patience_s if timed else math.inf)
        self._replies[reply] = None
        self.bytes += size
        if timed and self._timer is None:
            self._timer = loop.call_at(reply.deadline, self._expire)
        if self.bytes > self._most_bytes:
            self._make_room()
        return reply

    def end(self, reply: UnsentReply) -> None:
        """Forget a reply that was taken or given up."""
        if reply in self._replies:
            del self._replies[reply]
            self.bytes -= reply.size

    def close_connection(self, name: str) -> None:
        """End a connection of gRPC by its name, together with others: to look for many takes as long as for one."""
        if not self._closing:
            asyncio.get_running_loop().call_soon(self._close)
        self._closing.add(name)

    def _close(self) -> None:
        names, self._closing = self._closing, set()
        close_connections(names)

    def _make_room(self) -> None:
        held: Counter[str] = Counter()
        for reply in self._replies:
            held[reply.caller] += reply.size
        while self.bytes > self._most_bytes:
            most = max(held, key=held.__getitem__)
            oldest = next(each for each in self._replies if each.caller == most and each.size)
            held[most] -= oldest.size
            self._give_up(oldest, "bytes")

    def _expire(self) -> None:
        """Give up what was not taken in time, and look again when the next one is due."""
        loop, self._timer = asyncio.get_running_loop(), None
        for reply in [each for each in self._replies if each.deadline <= loop.time()]:
            self._give_up(reply, "slow")
        due = min((each.deadline for each in self._replies), default=math.inf)
        if due < math.inf:
            self._timer = loop.call_at(max(due, loop.time() + self._patience_s / _LOOKS), self._expire)

    def _give_up(self, reply: UnsentReply, reason: str) -> None:
        self.end(reply)
        self.given_up[reason] += 1
        what = f"a reply of {reply.size} bytes, which {reply.caller} does not take"
        log_dropped(self._log, what, reason, self.given_up[reason])
        reply.give_up()
