"""Read a source once for several models: each of them gets every frame."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator

from mqinfer.bags.frame import Frame

_AHEAD = 4
"""A reader may be this many frames ahead of the slowest one; they are held in memory."""


class FanOut:
    """Frames of one iterator for several readers, each on a thread of its own.

    The reader that needs the next frame first reads it from the source, and so waits until it is due. What it raises,
    every reader raises after the frames before it.
    """

    def __init__(self, frames: Iterator[Frame], readers: int) -> None:
        """Prepare.

        Args:
            frames: Read once.
            readers: How many there will be.
        """
        self.readers = tuple(FrameReader(self, number) for number in range(readers))
        """Each yields every frame; one that reads no more must be closed, or the others wait for it."""
        self._frames = frames
        self._changed = threading.Condition()
        self._kept: deque[Frame] = deque()
        self._first = 0  # number of the oldest frame that is kept
        self._next = dict.fromkeys(range(readers), 0)  # number of the next frame, by reader
        self._is_reading = False
        self._end: BaseException | None = None

    def take(self, reader: int) -> Frame:
        """Return the next frame of a reader.

        Raises:
            StopIteration: There is none.
            SourceError: The source broke off.
        """
        while (frame := self._find(reader)) is None:
            self._read()
        return frame

    def leave(self, reader: int) -> None:
        """Wait for a reader no more."""
        with self._changed:
            self._next.pop(reader, None)
            self._forget()

    def _find(self, reader: int) -> Frame | None:
        """Wait for a frame that another reader reads; return None if this reader is the one that must read it."""
        with self._changed:
            while True:
                index = self._next[reader] - self._first
                if index < len(self._kept):
                    frame = self._kept[index]
                    self._next[reader] += 1
                    self._forget()
                    return frame
                if self._end is not None:
                    raise self._end
                if not self._is_reading and index < _AHEAD:
                    self._is_reading = True
                    return None
                self._changed.wait()

    def _read(self) -> None:
        frame, end = None, None
        try:
            frame = next(self._frames)
        except BaseException as error:  # noqa: BLE001 - each reader raises it
            end = error
        with self._changed:
            self._is_reading = False
            self._end = end
            if frame is not None:
                self._kept.append(frame)
            self._changed.notify_all()

    def _forget(self) -> None:
        """Drop the frames that every reader has; the lock is held."""
        while self._kept and min(self._next.values(), default=self._first + 1) > self._first:
            self._kept.popleft()
            self._first += 1
        self._changed.notify_all()


class FrameReader(Iterator[Frame]):
    """One reader's frames."""

    def __init__(self, source: FanOut, number: int) -> None:
        self._source = source
        self._number = number

    def __next__(self) -> Frame:
        """Return the next frame; wait while this reader is too far ahead of the others."""
        return self._source.take(self._number)

    def close(self) -> None:
        """Read no more."""
        self._source.leave(self._number)
