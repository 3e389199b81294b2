"""Yield each recorded frame when it is due."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from mqinfer.bags.frame import Frame, FrameSource
from mqinfer.protocol.errors import ConfigError


class Pacer:
    """Delays frames by the differences of their log times.

    Log times that step backwards (a loop that starts again, a recorder's clock that was set) start a new count from the
    present moment. A consumer that has fallen behind is not delayed until it has caught up.

    Args:
        rate: 1 as recorded, 2 twice as fast, 0 without waiting.
        clock: Seconds, monotonic.
        wait: Called with the seconds to wait; may return early, as `threading.Event.wait` does when a replay ends.

    Raises:
        ConfigError: A rate that is negative or not finite.
    """

    def __init__(
        self,
        rate: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], object] = time.sleep,
    ) -> None:
        if not (math.isfinite(rate) and rate >= 0):
            raise ConfigError(f"rate is {rate}; expected 1 (as recorded), 2 (twice as fast), 0 (as fast as possible)")
        self._rate = rate
        self._clock = clock
        self._wait = wait
        self._origin: tuple[float, int] | None = None
        self._latest_ns = 0
        self.waited_ns = 0
        """How long it has waited altogether, in nanoseconds."""

    def wait_for(self, log_time_ns: int) -> None:
        """Wait until a frame is due; the first one is due at once."""
        if self._rate == 0:
            return
        now = self._clock()
        if self._origin is None or log_time_ns < self._latest_ns:
            self._origin = (now, log_time_ns)
        self._latest_ns = log_time_ns
        began, began_ns = self._origin
        delay = began + (log_time_ns - began_ns) / 1e9 / self._rate - now
        if delay > 0:
            self._wait(delay)
            self.waited_ns += round((self._clock() - now) * 1e9)


def replay(
    source: FrameSource,
    pacer: Pacer,
    *,
    loop: bool = False,
    is_stopped: Callable[[], bool] = lambda: False,
    skipped: int = 0,
) -> Iterator[Frame]:
    """Yield a source's frames when they are due.

    Args:
        source: Where the frames come from.
        pacer: Waits until a frame is due.
        loop: Start again at the end, for ever; from the second pass on, sequence numbers go on from the last one of
            the stream, so that they stay unique.
        is_stopped: Asked before each frame; True ends the replay.
        skipped: Number of frames at the beginning that come without waiting.

    Raises:
        SourceError: The source broke off.
    """
    following: dict[str, int] = {}  # the next sequence number, by stream
    is_first = True
    while True:
        before = dict(following)
        for frame in source.frames():
            if skipped:
                skipped -= 1
            else:
                pacer.wait_for(frame.log_time_ns)
            if is_stopped():
                return
            number = frame.sequence if is_first else following.get(frame.source, frame.sequence)
            yield frame if frame.sequence == number else _numbered(frame, number)
            following[frame.source] = number + 1
        if not loop or following == before:
            return
        is_first = False


def _numbered(frame: Frame, sequence: int) -> Frame:
    return replace(frame, sequence=sequence)
