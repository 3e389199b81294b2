"""The results of a replay on their way to the sinks: a thread that writes them in the order of reading."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Generic, TypeVar

import numpy as np

from mqinfer.bags.frame import Frame
from mqinfer.client.result import InferResult
from mqinfer.edge_agent.preparation import PreparedFrame
from mqinfer.edge_agent.sinks.sink import Picture, Sink
from mqinfer.edge_agent.window import Stream
from mqinfer.protocol.errors import BadImage, MqinferError
from mqinfer.protocol.types import Capture

__all__ = ["Ended", "Job", "Reorder", "Results", "capture_of"]

log = logging.getLogger("mqinfer.edge_agent")
_NO_PICTURE: Picture = np.zeros((0, 0, 3), np.uint8)


class Results:
    """Takes outcomes from any thread."""

    def __init__(self, sink: Sink | None, on_written: Callable[[Ended], None]) -> None:
        """Prepare; `start` starts the thread.

        Args:
            sink: Gets every frame with its outcome; None where nobody wants them.
            on_written: Told when the sink is done with one.
        """
        self._sink = sink
        self._on_written = on_written
        self._queue: SimpleQueue[Ended | None] = SimpleQueue()  # bounded by those who put: frames in hand
        self._thread = threading.Thread(target=self._write_all, name="mqinfer-replay-sinks")
        self.error: MqinferError | None = None
        """Why the sink failed; nothing more is written then."""

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def put(self, ended: Ended) -> None:
        """Hand over an outcome."""
        self._queue.put(ended)

    def close(self) -> None:
        """Write what is there, and join the thread."""
        self._queue.put(None)
        self._thread.join()

    def _write_all(self) -> None:
        order: Reorder[Ended] = Reorder()
        while ended := self._queue.get():
            for item in order.put(ended.job.number, ended):
                self._write(item)
                self._on_written(item)

    def _write(self, ended: Ended) -> None:
        if self._sink is None or self.error:
            return  # the run is ending; what could not be kept is said once
        frame = ended.job.frame
        try:
            self._sink.write(frame, _picture(ended.prepared), ended.result)
        except MqinferError as error:
            self.error = error
        except Exception as error:  # a defect; said at the end of the run
            log.exception("writing the result of %s, frame %d", frame.source, frame.sequence)
            self.error = MqinferError(f"a sink failed: {error!r}")


def _picture(prepared: PreparedFrame | None) -> Picture:
    try:
        return prepared.picture() if prepared else _NO_PICTURE
    except BadImage:  # a JPEG that passed untouched; its outcome says the same
        return _NO_PICTURE


T = TypeVar("T")


class Reorder(Generic[T]):
    """Gives items out by their number, without gaps. Not thread-safe; as large as its owner lets numbers run ahead."""

    def __init__(self) -> None:
        self._next = 0
        self._early: dict[int, T] = {}

    def put(self, number: int, item: T) -> Iterator[T]:
        """Take an item in, and yield every item whose turn has come.

        Args:
            number: From 0, each number once.
            item: What to give out.
        """
        self._early[number] = item
        while self._next in self._early:
            item = self._early.pop(self._next)
            self._next += 1
            yield item


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """A frame, numbered in the order of reading, its stream, and its number in the spool; 0 where it is not there."""

    number: int
    frame: Frame
    stream: Stream[Job]
    spooled_as: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Ended:
    """A frame with its outcome, on its way to the sinks; `prepared` is None where it never became a request."""

    job: Job
    prepared: PreparedFrame | None
    result: InferResult


def capture_of(frame: Frame) -> Capture:
    """Say where a frame comes from, as it travels."""
    return Capture(frame.source, frame.sequence, frame.capture_time_ns, frame.frame_id)
