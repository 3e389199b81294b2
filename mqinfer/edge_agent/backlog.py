"""What a replay keeps on the disk while there is no connection, and sends, oldest first, when there is one again."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from enum import Enum
from functools import partial

from mqinfer.bags.frame import Frame
from mqinfer.client.requester import Requester
from mqinfer.client.result import InferResult
from mqinfer.codecs import decode_tensor
from mqinfer.edge_agent.preparation import PreparedFrame
from mqinfer.edge_agent.results import Job, capture_of
from mqinfer.edge_agent.sinks.sink import Picture
from mqinfer.edge_agent.spool import Spool, SpooledFrame
from mqinfer.edge_agent.window import Stream
from mqinfer.images.picture import RawImage
from mqinfer.protocol.errors import Cancelled
from mqinfer.protocol.types import ErrorInfo, Outcome

__all__ = ["Backlog", "Place", "Send"]

Send = Callable[[Job, PreparedFrame], None]
"""Submits a frame."""
_FULL_CHECK_S = 1.0
"""How often a frame that waits for a connection is offered to a full disk again: somebody may have made room."""


class Place(Enum):
    """Where a frame goes next."""

    LINK = "link"
    """To a worker; it has entered its stream."""
    DISK = "disk"
    """Into the spool."""
    NOWHERE = "nowhere"
    """The run is stopped, there is no connection, and the spool takes no more."""


class Backlog:
    """The frames in a spool, and the thread that sends them."""

    def __init__(
        self, spool: Spool, requester: Requester, changed: threading.Condition, send: Send, timeout: float
    ) -> None:
        """Prepare; `start` starts the thread.

        Args:
            spool: Where the frames lie.
            requester: Tells of connections.
            changed: Guards streams, and is notified when one of them has room.
            send: How a frame is sent.
            timeout: Of a frame that is sent, in seconds.
        """
        self._timeout = timeout
        self._up_since = -math.inf  # infinite while there is no connection
        self._spool = spool
        self._requester = requester
        self._changed = changed
        self._send = send
        self._jobs: dict[int, Job] = {}
        self._is_leaving = False
        self._is_closed = False
        self._thread = threading.Thread(target=self._drain, name="mqinfer-replay-spool")
        requester.watch(self._notice)

    def adopt(self, stream_of: Callable[[str], Stream[Job]]) -> list[Job]:
        """Take over what an earlier run left: it goes first, numbered from 0."""
        adopted: list[Job] = []
        found = self._spool.after(0)
        while found:
            stream = stream_of(found.capture.source)
            adopted.append(Job(len(adopted), _frame_of(found), stream, found.number))
            self._jobs[found.number] = adopted[-1]
            found = self._spool.after(found.number)
        return adopted

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    @property
    def is_needed(self) -> bool:
        """Whether a frame can't be sent now: there is no connection, or others come first."""
        return bool(self._jobs) or not self._requester.connected

    def place(self, job: Job, prepared: PreparedFrame) -> Place:
        """Say where a frame goes that has entered its stream; what can't be sent waits while the disk is full."""
        with self._changed:
            job.stream.give_up()  # it may have come in without there being room
            while not (self.is_needed and self._keep(job, prepared)):
                self._changed.wait_for(lambda: self._can_send(job) or self._is_lost, _FULL_CHECK_S)
                if self._can_send(job):
                    job.stream.enter()
                    return Place.LINK
                if self._is_lost:
                    return Place.NOWHERE
            return Place.DISK

    def _keep(self, job: Job, prepared: PreparedFrame) -> bool:
        number = self._put(job, prepared)
        if number is None:
            return False
        self._jobs[number] = replace(job, frame=_without_pixels(job.frame), spooled_as=number)
        self._changed.notify_all()
        return True

    def _put(self, job: Job, prepared: PreparedFrame) -> int | None:
        return self._spool.put(prepared.tensor, capture_of(job.frame), prepared.bytes_raw)

    def _can_send(self, job: Job) -> bool:
        return job.stream.has_room and self._requester.connected

    @property
    def _is_lost(self) -> bool:
        """Whether nothing more is sent in this run."""
        return self._is_leaving and not self._requester.connected

    def take_back(self, job: Job, prepared: PreparedFrame, result: InferResult) -> bool:
        """Keep a frame that was sent, and expired since there was no connection: it is sent again with the next one.

        Returns:
            False where that is not what happened to it, or where it does not fit.
        """
        if result.outcome is not Outcome.EXPIRED:
            return False
        with self._changed:
            was_up = self._up_since <= time.monotonic() - self._timeout
            if was_up or self._is_leaving or not self._keep(job, prepared):
                return False
            job.stream.give_up()
        if job.spooled_as:
            self._spool.remove(job.spooled_as)  # it lies there under a new number, behind what came meanwhile
        return True

    def ended(self, job: Job, prepared: PreparedFrame | None, result: InferResult) -> InferResult:
        """Let go of a frame that has its outcome; one that was taken back is on the disk, for the next run.

        Returns:
            The outcome, which says so where the frame could not be kept.
        """
        if result.outcome is not Outcome.CANCELLED:
            if job.spooled_as:
                self._spool.remove(job.spooled_as)
            return result
        if job.spooled_as or prepared is None or self._put(job, prepared) is not None:
            return result
        return replace(result, error=ErrorInfo(Cancelled.code, self.not_kept))

    @property
    def not_kept(self) -> str:
        """Say why a frame is not kept, and what to do."""
        return (
            f"not sent, and not kept in the spool ({self._spool.refusal}); make room there, or give another --spool, "
            "and replay this part again"
        )

    def leave(self) -> list[Job]:
        """Give up what is not sent yet; it stays on the disk for the next run."""
        with self._changed:
            self._is_leaving = True
            left = list(self._jobs.values())
            self._jobs.clear()
            self._changed.notify_all()
            return left

    def close(self) -> None:
        """Join the thread."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join()

    def _drain(self) -> None:
        sent = 0
        while found := self._next(sent):
            sent = found.number
            with self._changed:
                job = self._jobs.pop(sent, None)
                if job is None:
                    continue
                self._changed.wait_for(partial(_has_room, job))
                job.stream.enter()
            prepared = PreparedFrame(found.tensor, partial(_picture_of, found), found.bytes_raw)
            self._send(job, prepared)

    def _next(self, sent: int) -> SpooledFrame | None:
        """Wait for a frame that can be sent; None once closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or (bool(self._jobs) and self._requester.connected))
            return None if self._is_closed else self._spool.after(sent)

    def _notice(self) -> None:
        with self._changed:
            self._up_since = time.monotonic() if self._requester.connected else math.inf
            self._changed.notify_all()


def _has_room(job: Job) -> bool:
    return job.stream.has_room


def _without_pixels(frame: Frame) -> Frame:
    """Keep what sinks ask of a frame whose pixels are on the disk."""
    image = frame.image
    return replace(frame, image=replace(image, data=b"")) if isinstance(image, RawImage) else frame


def _picture_of(spooled: SpooledFrame) -> Picture:
    pixels: Picture = decode_tensor(spooled.tensor)[0]
    return pixels


def _frame_of(spooled: SpooledFrame) -> Frame:
    """Make a frame of what an earlier run left: its stamps, and its size as it travels."""
    capture = spooled.capture
    height, width = spooled.tensor.shape[1:3]
    image = RawImage("rgb8", height, width, 3 * width, is_bigendian=False, data=b"")
    stamp = capture.capture_time_ns or 0
    return Frame(capture.source, capture.sequence or 0, stamp, stamp, capture.frame_id, image)
