"""The turns of one connection on the thread of an asyncio loop, while the link's own thread waits.

What the loop's tasks send leaves on their own thread, and what comes is handed to them there: no message changes the
thread. Dialling, pauses and all that is between two connections stay on the link's thread, since they block.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait

from mqinfer.broker.paho.session import Session
from mqinfer.broker.waker import Waker

_LOOK_S = 1.0
"""Between looks of the link's thread at whether the loop was closed."""
_TICK_S = 1.0
"""Between turns in which nothing is ready: whether the connection is alive is looked at."""
_NOTHING: tuple[object, ...] = ()


class Hosting:
    """One connection, served on a loop's thread from `run` to its end. The other methods are for that thread.

    Args:
        loop: The loop.
        session: The connection.
        waker: Woken by other threads that have queued something.
        take_turn: Reads and writes; called with what is ready.
        time_to_sleep: Arms the waker; returns in how many seconds a turn is needed in any case, 0 for at once.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        session: Session,
        waker: Waker,
        take_turn: Callable[[Sequence[object]], None],
        time_to_sleep: Callable[[], float],
    ) -> None:
        self._loop, self._session, self._waker = loop, session, waker
        self._take_turn, self._time_to_sleep = take_turn, time_to_sleep
        self._descriptor = session.fileno()  # paho closes the socket before the loop is to forget it
        self._ended: Future[None] = Future()
        self._is_over = False  # as `_ended` says, without its lock
        self._is_due = False  # a turn runs, or is scheduled
        self._is_writing = False
        self._tick: asyncio.TimerHandle | None = None
        self._timer: asyncio.TimerHandle | None = None  # for what is due before the next tick
        self._timer_s = 0.0

    def run(self) -> bool:
        """Wait until the connection has ended, on the link's thread; raises what a turn has raised.

        Returns:
            False where the loop was closed before, and nobody serves the connection any more.
        """
        try:
            self._loop.call_soon_threadsafe(self._begin)
        except RuntimeError:
            return False
        while not wait([self._ended], _LOOK_S).done:
            if self._loop.is_closed():
                return False
        self._ended.result()
        return True

    def soon(self) -> None:
        """Take a turn once the loop's ready tasks have run: what they send leaves together."""
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._take, _NOTHING)

    def _begin(self) -> None:
        self._loop.add_reader(self._waker.fileno(), self._take, (self._waker,))
        self._loop.add_reader(self._descriptor, self._take, (self._session,))
        self._on_tick()

    def _take(self, ready: Sequence[object]) -> None:
        if self._is_over:  # it was scheduled before
            return
        self._is_due = True  # what handlers send now leaves with this turn
        try:
            self._take_turn(ready)
            if self._session.alive:
                self._wait_for_next()
                return
        except BaseException as error:
            self._end()
            self._ended.set_exception(error)
            if not isinstance(error, Exception):  # the program is to end
                raise
            return
        self._end()
        self._ended.set_result(None)

    def _wait_for_next(self) -> None:
        self._is_due = False
        sleep_s = self._time_to_sleep()
        if not sleep_s:
            self.soon()
        is_writing = self._session.client.want_write()
        if is_writing != self._is_writing:
            self._is_writing = is_writing
            if is_writing:
                self._loop.add_writer(self._descriptor, self._take, _NOTHING)
            else:
                self._loop.remove_writer(self._descriptor)
        if sleep_s == self._timer_s:
            return
        self._timer_s = sleep_s
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if 0.0 < sleep_s < _TICK_S:
            self._timer = self._loop.call_later(sleep_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer, self._timer_s = None, 0.0
        self._take(_NOTHING)

    def _on_tick(self) -> None:
        self._tick = self._loop.call_later(_TICK_S, self._on_tick)
        self._take(_NOTHING)

    def _end(self) -> None:
        self._is_over = True
        self._loop.remove_reader(self._waker.fileno())
        self._loop.remove_reader(self._descriptor)
        self._loop.remove_writer(self._descriptor)
        for timer in (self._tick, self._timer):
            if timer is not None:
                timer.cancel()
