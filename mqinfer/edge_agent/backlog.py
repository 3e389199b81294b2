"""What a replay keeps on the disk while there is no connection, and sends, oldest first, when there is one again."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from mqinfer.bags.frame import Frame, RawImage
from mqinfer.client.requester import Requester
from mqinfer.codecs import decode_tensor
from mqinfer.edge_agent.job import Job, capture_of
from mqinfer.edge_agent.preparation import PreparedFrame
from mqinfer.edge_agent.sinks.sink import Picture
from mqinfer.edge_agent.spool import Spool, SpooledFrame
from mqinfer.edge_agent.stream import Stream

__all__ = ["Backlog", "Send"]

Send = Callable[[Job, PreparedFrame, Callable[[], None]], None]
"""Submits a frame; what is given last is called when it has its outcome."""


class Backlog:
    """The frames in a spool, and the thread that sends them."""

    def __init__(self, spool: Spool, requester: Requester, changed: threading.Condition, send: Send) -> None:
        """Prepare; `start` starts the thread.

        Args:
            spool: Where the frames lie.
            requester: Tells of connections.
            changed: Guards streams, and is notified when one of them has room.
            send: How a frame is sent.
        """
        self._spool = spool
        self._requester = requester
        self._changed = changed
        self._send = send
        self._jobs: dict[int, Job] = {}
        self._is_closed = False
        self._thread = threading.Thread(target=self._drain, name="mqinfer-replay-spool")
        requester.watch(self._notice)

    def adopt(self, stream_of: Callable[[str], Stream[Job]]) -> list[Job]:
        """Take over what an earlier run left: it goes first, numbered from 0."""
        adopted: list[Job] = []
        found = self._spool.after(0)
        while found:
            stream = stream_of(found.capture.source)
            adopted.append(Job(len(adopted), _frame_of(found), stream, is_spooled=True))
            self._jobs[found.number] = adopted[-1]
            found = self._spool.after(found.number)
        return adopted

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    @property
    def is_needed(self) -> bool:
        """Whether a frame can't be sent now: there is no connection, or others come first."""
        return bool(self._jobs) or not self._requester.link.connected

    def keep(self, job: Job, prepared: PreparedFrame) -> bool:
        """Take a frame that can't be sent now, or that others in the spool come before.

        Returns:
            False where it is to be sent at once, or does not fit.
        """
        with self._changed:
            if not self.is_needed:
                return False
            number = self._spool.put(prepared.tensor, capture_of(job.frame), prepared.bytes_raw)
            if number is None:
                return False
            job.stream.give_up()
            self._jobs[number] = replace(job, frame=_without_pixels(job.frame), is_spooled=True)
            self._changed.notify_all()
            return True

    def store(self, job: Job, prepared: PreparedFrame) -> None:
        """Put a frame that was sent and not answered on the disk, for the next run."""
        self._spool.put(prepared.tensor, capture_of(job.frame), prepared.bytes_raw)

    def leave(self) -> list[Job]:
        """Give up what is not sent yet; it stays on the disk for the next run."""
        with self._changed:
            left = list(self._jobs.values())
            self._jobs.clear()
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
            self._send(job, prepared, partial(self._spool.remove, found.number))

    def _next(self, sent: int) -> SpooledFrame | None:
        """Wait for a frame that can be sent; None once closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or (bool(self._jobs) and self._requester.link.connected))
            return None if self._is_closed else self._spool.after(sent)

    def _notice(self) -> None:
        with self._changed:
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
