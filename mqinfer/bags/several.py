"""Several sources in one: recordings merged by their log times, or live sources as their frames come."""

from __future__ import annotations

import heapq
import logging
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from queue import SimpleQueue

from mqinfer.bags.frame import Frame, FrameSource, StreamInfo
from mqinfer.bags.live.returning import ReturningSource
from mqinfer.protocol.errors import ConfigError, MqinferError

log = logging.getLogger("mqinfer.bags")


class NamedSource:
    """A source whose stream has a name of its own, or whose streams have names below it.

    Args:
        name: Such as `front`.
        source: Whose streams it is for.
    """

    def __init__(self, name: str, source: FrameSource) -> None:
        self._source = source
        found = [stream.source for stream in source.streams()]
        self._names = {each: name if len(found) == 1 else f"{name}/{each.strip('/')}" for each in found}

    def streams(self) -> tuple[StreamInfo, ...]:
        """List the streams under their new names."""
        return tuple(replace(each, source=self._names[each.source]) for each in self._source.streams())

    def frames(self) -> Iterator[Frame]:
        """Yield the frames under the new names of their streams."""
        for frame in self._source.frames():
            yield replace(frame, source=self._names[frame.source])

    def close(self) -> None:
        """Close the source."""
        self._source.close()


class MergedSources:
    """Recordings merged by log time. One that breaks off is left out from there on, and the others go on.

    Args:
        sources: At least one.

    Raises:
        ConfigError: Two of them have a stream of the same name.
    """

    def __init__(self, sources: Sequence[FrameSource]) -> None:
        self._sources = sources
        self._streams = _streams_of(sources)

    def streams(self) -> tuple[StreamInfo, ...]:
        """List the streams of all sources."""
        return self._streams

    def frames(self) -> Iterator[Frame]:
        """Yield the frames of all sources, merged by log time.

        Raises:
            MqinferError: One or more broke off; what the others have was yielded.
        """
        failures: list[MqinferError] = []
        parts = [_until_failure(source, failures) for source in self._sources]
        yield from heapq.merge(*parts, key=lambda frame: frame.log_time_ns)
        _raise(failures)

    def close(self) -> None:
        """Close all of them."""
        for source in self._sources:
            source.close()


class LiveSources:
    """Live sources, each read on a thread of its own. One that ends is left out, and the others go on.

    Args:
        sources: At least one.

    Raises:
        ConfigError: Two of them have a stream of the same name.
    """

    def __init__(self, sources: Sequence[ReturningSource]) -> None:
        self._sources = sources
        self._streams = _streams_of(sources)
        self._is_closing = False
        self._failures: list[MqinferError] = []
        # A source puts its next frame here once the one before was taken, so there is one of each at most.
        self._queue: SimpleQueue[tuple[threading.Semaphore, Frame | None]] = SimpleQueue()
        self._rooms = [threading.Semaphore() for _ in sources]
        self._threads = [
            threading.Thread(target=self._read, args=each, name=f"mqinfer-source-{number}")
            for number, each in enumerate(zip(sources, self._rooms, strict=True))
        ]

    def streams(self) -> tuple[StreamInfo, ...]:
        """List the streams of all sources."""
        return self._streams

    def frames(self) -> Iterator[Frame]:
        """Yield the frames of all sources as they come; may be called once.

        Raises:
            MqinferError: One or more broke off; what the others had was yielded.
        """
        for thread in self._threads:
            thread.start()
        left = len(self._threads)
        while left:
            room, frame = self._queue.get()
            room.release()
            if frame is None:
                left -= 1
            else:
                yield frame
        _raise(self._failures)

    def close(self) -> None:
        """End the frames, join the threads, and close the sources; takes as long as a camera is waited for."""
        self._is_closing = True
        for source, room in zip(self._sources, self._rooms, strict=True):
            source.halt()
            room.release()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()
        for source in self._sources:
            source.close()

    def _read(self, source: ReturningSource, room: threading.Semaphore) -> None:
        for frame in _until_failure(source, self._failures):
            room.acquire()
            if self._is_closing:
                return
            self._queue.put((room, frame))
        room.acquire()
        self._queue.put((room, None))


def _until_failure(source: FrameSource, failures: list[MqinferError]) -> Iterator[Frame]:
    try:
        yield from source.frames()
    except MqinferError as error:
        log.warning("%s; the other sources go on", error)
        failures.append(error)
    except Exception as error:  # a defect; on a thread of its own nobody else would learn of it
        log.exception("a source failed")
        failures.append(MqinferError(f"a source failed: {error!r}"))


def _raise(failures: Sequence[MqinferError]) -> None:
    if failures:
        raise type(failures[0])("; ".join(map(str, failures)))


def _streams_of(sources: Sequence[FrameSource]) -> tuple[StreamInfo, ...]:
    streams = tuple(stream for source in sources for stream in source.streams())
    counts = Counter(stream.source for stream in streams)
    twice = sorted(name for name, count in counts.items() if count > 1)
    if twice:
        raise ConfigError(
            f"several sources have a stream {', '.join(twice)}; give each source a name of its own: NAME=SOURCE"
        )
    return streams
