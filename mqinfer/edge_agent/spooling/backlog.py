"""Frames that a replay keeps on the disk while there is no connection, and sends, oldest first, once there is one."""

from __future__ import annotations

import math
import operator
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from enum import Enum
from functools import partial
from itertools import takewhile

from mqinfer.answers.outputs import Picture
from mqinfer.bags.frame import Frame
from mqinfer.client.requester import Requester
from mqinfer.client.result import InferResult
from mqinfer.client.window import StreamWindow
from mqinfer.codecs import decode_tensor
from mqinfer.edge_agent.frames.pending import PendingFrame, capture_of
from mqinfer.edge_agent.frames.prepared import PreparedFrame
from mqinfer.edge_agent.spooling.spool import Spool, SpooledFrame
from mqinfer.images.decode import as_image, to_rgb
from mqinfer.images.demosaic import Demosaic
from mqinfer.images.picture import CompressedImage, RawImage
from mqinfer.images.placement import Placement
from mqinfer.images.resize import fit
from mqinfer.protocol.card import BAYER
from mqinfer.protocol.errors import Cancelled
from mqinfer.protocol.header import BIT_DEPTH, DEMOSAIC, IMAGE_ENCODING
from mqinfer.protocol.types import Capture, EncodedTensor, ErrorInfo, Outcome

__all__ = ["DAMAGED", "KEPT", "Backlog", "Destination", "Submit"]

Submit = Callable[[PendingFrame, PreparedFrame], None]
"""Hands a frame to the client."""
Prepare = Callable[[PendingFrame], PreparedFrame | InferResult]
"""Prepares a frame; returns its outcome if that fails."""
DAMAGED = "damaged in the spool, and set aside there; replay this part of the recording again, and check the disk"
"""Message of the outcome of a frame whose bytes on the disk are not what was stored."""
KEPT = "kept in the spool for the next run"
"""Message of the outcome of a frame that a stopped run leaves in the spool."""
_PICTURES = ("jpeg", "png")
_FULL_CHECK_S = 1.0
"""While the disk is full, a frame that waits for a connection is offered to it again this often."""


class Destination(Enum):
    """Where a prepared frame goes."""

    LINK = "link"
    """To the client; it is in its stream's window."""
    DISK = "disk"
    """Into the spool."""
    NOWHERE = "nowhere"
    """The run is stopped, there is no connection, and the spool takes no more."""


class Backlog:
    """The frames in a spool, and the thread that sends them."""

    def __init__(  # noqa: PLR0913 - its parts, each made by the replay
        self,
        spool: Spool,
        requester: Requester,
        changed: threading.Condition,
        submit: Submit,
        *,
        prepare: Prepare,
        on_failed: Callable[[PendingFrame, InferResult | None], None],
        placement: Callable[[int, int], Placement],
        timeout: float,
    ) -> None:
        """Prepare; `start` starts the thread.

        Args:
            spool: Stores the frames.
            requester: Reports connections and their loss.
            changed: Guards streams and pending frames, and is notified when a stream has room.
            submit: Hands a frame to the client.
            prepare: Prepares a frame that was stored as recorded.
            on_failed: Ends a frame that can't be prepared or, without a result, was damaged on the disk.
            placement: Returns where a frame of a width and height lies in what the model sees.
            timeout: Of a request, in seconds.
        """
        self._prepare = prepare
        self._on_failed = on_failed
        self._placement = placement
        self._timeout = timeout
        self._up_since = -math.inf  # infinite while there is no connection
        self._spool = spool
        self._requester = requester
        self._changed = changed
        self._submit = submit
        self._spooled: dict[int, PendingFrame] = {}
        self._is_leaving = False
        self._is_closed = False
        self._thread = threading.Thread(target=self._drain, name="mqinfer-replay-spool")
        requester.watch(self._on_connection)

    def adopt(self, stream_of: Callable[[str], StreamWindow[PendingFrame]]) -> list[PendingFrame]:
        """Adopt the frames that are in the spool at the start; they go first, numbered from 0."""
        adopted: list[PendingFrame] = []
        found = self._spool.after(0)
        while found:
            stream = stream_of(found.capture.source)
            adopted.append(PendingFrame(len(adopted), _frame_of(found), stream, found.number))
            self._spooled[found.number] = adopted[-1]
            found = self._spool.after(found.number)
        return adopted

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def is_left(self, pending: PendingFrame) -> bool:
        """Return whether an earlier run left this frame; else this run stored it before the model was known."""
        return self._spool.is_left(pending.spooled_as)

    @property
    def is_needed(self) -> bool:
        """Whether a frame can't be sent now: there is no connection, or older ones go first."""
        return bool(self._spooled) or not self._requester.connected

    def place(self, pending: PendingFrame, prepared: PreparedFrame) -> Destination:
        """Wait for room in the window or, without a connection, on the disk, and return where a prepared frame goes."""
        with self._changed:
            self._changed.wait_for(lambda: self.is_needed or self._can_send(pending))
            while not (self.is_needed and self._keep(pending, prepared)):
                self._changed.wait_for(lambda: self._can_send(pending) or self._is_lost, _FULL_CHECK_S)
                if self._can_send(pending):
                    pending.stream.enter()
                    return Destination.LINK
                if self._is_lost:
                    return Destination.NOWHERE
            return Destination.DISK

    def _keep(self, pending: PendingFrame, prepared: PreparedFrame) -> bool:
        number = self._put(pending, prepared)
        if number is None:
            return False
        pending.frame, pending.spooled_as = _without_pixels(pending.frame), number
        pending.placement = prepared.placement
        self._spooled[number] = pending
        self._changed.notify_all()
        return True

    def _put(self, pending: PendingFrame, prepared: PreparedFrame) -> int | None:
        frame = pending.frame
        return self._spool.put(
            prepared.tensors,
            pending.capture,
            prepared.bytes_raw,
            frame.log_time_ns,
            [capture_of(each) for each in frame.joined],
            cameras=[each.camera for each in (frame, *frame.joined)],
            placement=prepared.placement,
        )

    def _can_send(self, pending: PendingFrame) -> bool:
        return pending.stream.has_room and self._requester.connected

    @property
    def _is_lost(self) -> bool:
        """Whether nothing more is sent in this run."""
        return self._is_leaving and not self._requester.connected

    def take_back(self, pending: PendingFrame, prepared: PreparedFrame, result: InferResult) -> bool:
        """Keep a frame that expired because the connection was lost; it is sent again over the next one.

        Returns:
            False if it expired for another reason or has another outcome, or if it does not fit.
        """
        if result.outcome is not Outcome.EXPIRED:
            return False
        before = pending.spooled_as
        with self._changed:
            was_up = self._up_since <= time.monotonic() - self._timeout
            if was_up or self._is_leaving or not self._keep(pending, prepared):
                return False
            pending.stream.leave()
        if before:
            self._spool.remove(before)  # it has a new number now, behind the frames that came meanwhile
        return True

    def settle(self, pending: PendingFrame, prepared: PreparedFrame | None, result: InferResult) -> InferResult:
        """Remove a frame that has its outcome from the spool; keep a cancelled one there for the next run.

        Returns:
            The outcome, with the reason if the frame could not be kept.
        """
        if result.outcome is not Outcome.CANCELLED:
            if pending.spooled_as:
                self._spool.remove(pending.spooled_as)
            return result
        if pending.spooled_as or prepared is None or self._put(pending, prepared) is not None:
            return result
        return replace(result, error=ErrorInfo(Cancelled.code, self.not_kept))

    @property
    def not_kept(self) -> str:
        """Why a frame was not kept, and what to do."""
        return (
            f"not sent, and not kept in the spool ({self._spool.refusal}); make room there, or give another --spool, "
            "and replay this part again"
        )

    def leave(self) -> list[PendingFrame]:
        """Stop sending; return the frames that stay on the disk for the next run."""
        with self._changed:
            self._is_leaving = True
            left = list(self._spooled.values())
            self._spooled.clear()
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
        while self._wait_for_frames():
            with self._changed:
                found = self._spool.after(sent)
                last = max(self._spooled, default=sent) if found is None else found.number
                end = last if found else last + 1
                passed = list(takewhile(partial(operator.gt, end), self._spooled))  # numbers ascend
                damaged = [self._spooled.pop(number) for number in passed]
                pending = self._spooled.pop(last, None)
            for each in damaged:
                self._on_failed(each, None)
            sent = last
            if found and pending:
                self._send(pending, found)

    def _send(self, pending: PendingFrame, found: SpooledFrame) -> None:
        prepared = self._prepared(pending, found)
        if isinstance(prepared, InferResult):
            self._spool.remove(found.number)
            self._on_failed(pending, prepared)
            return
        with self._changed:
            self._changed.wait_for(partial(_has_room, pending))
            pending.stream.enter()
        self._submit(pending, prepared)

    def _prepared(self, pending: PendingFrame, found: SpooledFrame) -> PreparedFrame | InferResult:
        if not found.is_recorded:
            height, width = found.tensors[0].shape[1:3]
            placement = pending.placement or _placed(found, self._placement(width, height))
            picture = partial(_frame_in, found, placement)
            return PreparedFrame(found.tensors, placement, picture, found.bytes_raw)
        pending.frame = _with_pixels(pending.frame, found)
        prepared = self._prepare(pending)
        pending.frame = _without_pixels(pending.frame)
        return prepared

    def _wait_for_frames(self) -> bool:
        """Wait for a frame that can be sent; return False once closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or (bool(self._spooled) and self._requester.connected))
            return not self._is_closed

    def _on_connection(self) -> None:
        with self._changed:
            self._up_since = time.monotonic() if self._requester.connected else math.inf
            self._changed.notify_all()


def _has_room(pending: PendingFrame) -> bool:
    return pending.stream.has_room


def _without_pixels(frame: Frame) -> Frame:
    """Return the frame without the pixels that are on the disk, with everything else that sinks read."""
    joined = tuple(_without_pixels(each) for each in frame.joined)
    return replace(frame, image=replace(frame.image, data=b""), joined=joined)


def _with_pixels(frame: Frame, found: SpooledFrame) -> Frame:
    image, *others = (_image_of(tensor) for tensor in found.tensors)
    joined = tuple(replace(each, image=other) for each, other in zip(frame.joined, others, strict=True))
    return replace(frame, image=image, joined=joined)


def _image_of(tensor: EncodedTensor) -> RawImage | CompressedImage:
    if tensor.encoding in _PICTURES and _kind(tensor) == "rgb8":
        return CompressedImage(tensor.encoding, bytes(tensor.data))
    return as_image(decode_tensor(tensor)[0], _kind(tensor))


def _frame_in(spooled: SpooledFrame, placement: Placement) -> Picture:
    """Return the frame that was sent, without margins and at the size that it was recorded in."""
    sent = spooled.tensors[0]
    if _kind(sent).startswith(BAYER):  # it has the size of the frame
        method = Demosaic(str(sent.parameters.get(DEMOSAIC, Demosaic.BILINEAR)))
        bits = sent.parameters.get(BIT_DEPTH)
        image = as_image(decode_tensor(sent)[0], _kind(sent))
        return to_rgb(image, method=method, bit_depth=bits if isinstance(bits, int) else None)
    picture = fit(decode_tensor(sent)[0], *placement.picture)
    rows = slice(placement.top, placement.top + placement.height)
    columns = slice(placement.left, placement.left + placement.width)
    _, _, width, height = placement.region or (0, 0, *placement.frame)
    return to_rgb(as_image(placement.region_to_frame(fit(picture[rows, columns], width, height)), _kind(sent)))


def _placed(found: SpooledFrame, as_sent: Placement) -> Placement:
    """Return where a frame of an earlier run lies in what the model sees.

    Args:
        found: The frame.
        as_sent: Where the picture that was stored lies there, taken as a whole frame: it is one for files of older
            versions, and where the model takes other pictures by now.
    """
    stored = found.placement
    return stored if stored is not None and stored.picture == as_sent.picture else as_sent


def _kind(tensor: EncodedTensor) -> str:
    """Return the encoding of a picture's pixels."""
    return str(tensor.parameters[IMAGE_ENCODING])


def _frame_of(spooled: SpooledFrame) -> Frame:
    """Make a frame of what was left: its stamps, and the sizes of its tensors."""
    captures = spooled.capture, *spooled.joined
    cameras = spooled.cameras or (None,) * len(captures)
    parts = zip(captures, spooled.tensors, cameras, strict=True)
    frame, *joined = (
        replace(_frame_at(capture, tensor, spooled.log_time_ns), camera=camera) for capture, tensor, camera in parts
    )
    return replace(frame, joined=tuple(joined))


def _frame_at(capture: Capture, tensor: EncodedTensor, log_time_ns: int) -> Frame:
    height, width = tensor.shape[1:3]
    image = RawImage("rgb8", height, width, 3 * width, is_bigendian=False, data=b"")
    stamp = capture.capture_time_ns or 0
    return Frame(capture.source, capture.sequence or 0, stamp, log_time_ns, capture.frame_id, image)
