"""A live source that is opened again when it breaks off: a camera is unplugged, a network stream drops."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from mqinfer.bags.frame import WHOLE, Frame, FrameSource, StreamInfo, TimeRange
from mqinfer.protocol.errors import ConfigError, SourceError

log = logging.getLogger("mqinfer.bags")

_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 10.0
"""Pauses between attempts to open: each is twice the one before, until a frame comes."""
_CHECK_S = 0.2
"""A stop is noticed within this time."""


class ReturningSource:
    """Frames of a live source, through all its outages; the sequence numbers go on.

    An outage is logged when it begins and when the next frame comes. A stream that states its length is a file that a
    server sends, so its end is no outage.

    Args:
        name: Name of its stream.
        reopen: Opens it; it has one stream.
        span: How long to read; a live source has no later start.
        is_stopped: Asked before each frame, and during an outage; True ends the frames.
        waits: Whether the source may be away at the start, too; its size is unknown then.
        clock: Nanoseconds since the epoch.

    Raises:
        SourceError: It can't be opened.
        ConfigError: A start was asked for.
    """

    def __init__(  # noqa: PLR0913 - what a live source has beside its name
        self,
        name: str,
        reopen: Callable[[], FrameSource],
        *,
        span: TimeRange = WHOLE,
        is_stopped: Callable[[], bool] = lambda: False,
        waits: bool = False,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        if span.start:
            raise ConfigError(f"{name}: a live source starts now; leave out the start of {span.start:g} s")
        self._name, self._reopen, self._span, self._clock = name, reopen, span, clock
        self._is_stopped, self._is_halted = is_stopped, threading.Event()
        self._lost_at: float | None = None
        self._source: FrameSource | None = None
        try:
            self._source = reopen()
        except SourceError as error:
            if not waits:
                raise
            self._lose(error)
        known = self._source.streams()[0] if self._source else StreamInfo("", "camera", "", 0, 0, None, None)
        self._stream = replace(known, source=name)

    def streams(self) -> tuple[StreamInfo, ...]:
        """List the stream of the source, as it was when it was first opened."""
        return (self._stream,)

    def frames(self) -> Iterator[Frame]:
        """Yield frames until the duration is over, or the stop is set.

        Raises:
            SourceError: A stream that states its length broke off.
        """
        _, end = self._span.bounds(self._clock())
        sequence, pause = 0, _SHORTEST_PAUSE_S
        while not self._is_over(end):
            try:
                self._source = self._source or self._reopen()
                for frame in self._source.frames():
                    if self._is_over(end):
                        return
                    self._regain()
                    pause = _SHORTEST_PAUSE_S
                    yield replace(frame, source=self._name, sequence=sequence)
                    sequence += 1
            except SourceError as error:
                if self._is_file():
                    raise
                self._lose(error)
            else:
                return
            self._pause(pause, end)
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    def halt(self) -> None:
        """End the frames, from any thread."""
        self._is_halted.set()

    def close(self) -> None:
        """Close the source, if it is open."""
        if self._source is not None:
            self._source.close()
            self._source = None

    def _is_over(self, end: int | None) -> bool:
        return self._is_halted.is_set() or self._is_stopped() or (end is not None and self._clock() >= end)

    def _pause(self, seconds: float, end: int | None) -> None:
        until = time.monotonic() + seconds
        while not self._is_over(end) and (left := until - time.monotonic()) > 0:
            self._is_halted.wait(min(left, _CHECK_S))

    def _is_file(self) -> bool:
        return self._source is not None and any(stream.count for stream in self._source.streams())

    def _lose(self, error: SourceError) -> None:
        self.close()
        if self._lost_at is None and not self._is_over(None):
            self._lost_at = time.monotonic()
            text = str(error)
            log.warning("%s; trying again", text if text.startswith(self._name) else f"{self._name}: {text}")

    def _regain(self) -> None:
        if self._lost_at is not None:
            log.warning("%s is back after %.1f s", self._name, time.monotonic() - self._lost_at)
            self._lost_at = None
