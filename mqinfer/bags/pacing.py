"""When each recorded frame is due."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace

from mqinfer.bags.frame import Frame, FrameSource
from mqinfer.protocol.errors import ConfigError

__all__ = ["Pacer", "replay"]


class Pacer:
    """Holds frames back until their log time comes round again.

    Log times that step backwards (a bag played from its beginning again, a recorder's clock that was set) begin a new
    count from the present moment; a consumer that falls behind is not held back until it has caught up.

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
            raise ConfigError(f"rate is {rate}; 1 plays as recorded, 2 twice as fast, 0 as fast as possible")
        self._rate = rate
        self._clock = clock
        self._wait = wait
        self._origin: tuple[float, int] | None = None
        self._latest_ns = 0

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


def replay(
    source: FrameSource,
    pacer: Pacer,
    *,
    loop: bool = False,
    is_stopped: Callable[[], bool] = lambda: False,
) -> Iterator[Frame]:
    """Yield a source's frames when they are due.

    Args:
        source: Where frames come from.
        pacer: Says when.
        loop: Begin again at the end, for ever; sequence numbers go on, so that they stay unique.
        is_stopped: Asked before each frame; the replay ends when it says so.

    Raises:
        SourceError: The source broke off.
    """
    counts: Counter[str] = Counter()
    while True:
        before = counts.total()
        for frame in source.frames():
            pacer.wait_for(frame.log_time_ns)
            if is_stopped():
                return
            yield replace(frame, sequence=counts[frame.source])
            counts[frame.source] += 1
        if not loop or counts.total() == before:
            return
