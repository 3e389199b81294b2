"""Frames that a replay keeps on the disk while there is no connection, and sends, oldest first, once there is one."""

from __future__ import annotations

import logging
import math
import operator
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import takewhile

from mqinfer.answers.outputs import Picture
from mqinfer.bags.frame import Frame
from mqinfer.client.result import InferResult
from mqinfer.client.window import Policy
from mqinfer.codecs import decode_tensor
from mqinfer.edge_agent.frames.retries import PAUSE_S, Patience
from mqinfer.edge_agent.frames.table import FrameStage, PendingFrame, PreparedFrame, Settle, failed_frame
from mqinfer.edge_agent.previews import PreviewDrop
from mqinfer.edge_agent.remote import PREPARERS, StageParts, started_pool
from mqinfer.edge_agent.spooling.spool import FULL_CHECK_S, Spool, SpoolBusy, SpooledFrame
from mqinfer.images.decode import as_image, to_rgb
from mqinfer.images.picture import CompressedImage, RawImage
from mqinfer.images.pixel_format import Demosaic
from mqinfer.images.placement import Placement, fit
from mqinfer.protocol.card import BAYER
from mqinfer.protocol.errors import BadImage, Cancelled, Superseded
from mqinfer.protocol.header import BIT_DEPTH, DEMOSAIC, IMAGE_ENCODING
from mqinfer.protocol.types import Capture, EncodedTensor, ErrorInfo, Outcome

log = logging.getLogger("mqinfer.edge_agent")
DAMAGED = "damaged in the spool, and set aside there; replay this part of the recording again, and check the disk"
"""Message of the outcome of a frame whose bytes on the disk are not what was stored."""
KEPT = "kept in the spool for the next run"
"""Message of the outcome of a frame that a stopped run leaves in the spool."""
_OLDEST = "the spool was full, and newer frames of the stream came"
_PICTURES = ("jpeg", "png")
_BUSY_S = 30.0
"""Frames that can't be read now wait as long as this after the last one that could; then the next run sends them."""
_LEAVING_S = 3.0
"""The same for frames that can't be written while the run ends, which are lost then; and for those at its beginning."""


class Backlog:
    """The frames in a spool, and the threads that store and send them; a `FrameStage`.

    A frame goes on at once while there is a connection and nothing older on the disk, and where the edge can answer it.
    Any other one is prepared and stored, and so is one that was queued when the connection was lost. With `latest`
    the oldest one on the disk makes room where nothing more fits. What an earlier run has left there goes first.

    Args:
        spool: Stores the frames.
        behind: The next stage.
        parts: Of the run.
        on_left: Receives the stream of each frame that an earlier run has left, not this one before it had a card.
    """

    def __init__(self, spool: Spool, behind: FrameStage, parts: StageParts, *, on_left: Callable[[str], None]) -> None:
        self._spool = spool
        self._behind = behind
        self._requester = parts.requester
        self._options = parts.options
        self._preparation = parts.preparation
        self._table = parts.table
        self._changed = parts.changed
        self._retries = parts.retries
        self._failed = partial(failed_frame, parts.options.model)
        self._up_since = -math.inf if parts.requester.connected else math.inf
        self._reading, self._leaving = Patience(_BUSY_S), Patience(_LEAVING_S)
        self._spooled: dict[int, PendingFrame] = {}
        self._sent = 0  # number of the last frame that was read from the disk to be sent
        self._storing = 0  # frames that are on their way to the disk
        self._is_leaving = False
        self._is_closed = False
        self._pool = started_pool(PREPARERS, "mqinfer-replay-store")
        self._thread = threading.Thread(target=self._drain, name="mqinfer-replay-spool")
        self.left = self._adopt(on_left)

    def _adopt(self, on_left: Callable[[str], None]) -> Sequence[PendingFrame]:
        last, patience = 0, Patience(_LEAVING_S)
        while True:
            try:
                found = self._spool.after(last)
            except SpoolBusy as busy:
                if not patience.pause():
                    last = busy.number
                    log.warning("spool: frame %d can't be read now, and is left for the next run: %s", last, busy)
                continue
            if found is None:
                return tuple(self._spooled.values())
            patience.renew()
            last, source = found.number, found.capture.source
            frame = PendingFrame(len(self._spooled), _frame_of(found), self._table.stream(source), last)
            self._spooled[last] = frame
            if self._spool.is_left(last):
                on_left(source)

    def start(self, settle: Settle) -> None:
        """Start the stages behind, and send what is on the disk."""
        self._settle = settle
        self._behind.start(self._settled)
        self._requester.watch(self._on_connection)
        self._thread.start()

    def take(self, pending: PendingFrame, prepared: PreparedFrame | None = None) -> None:
        """Hand a frame on, or store it."""
        with self._changed:
            is_stored = not pending.edge_answers and (self._storing > 0 or self._is_behind)
            self._storing += is_stored
        if is_stored:
            self._pool.submit(self._store, pending)
            return
        self._behind.take(pending, prepared)
        if not self._requester.connected:  # lost just before
            self._withdraw()

    @property
    def _is_behind(self) -> bool:
        """Whether a frame can't be sent now: there is no connection, or older ones go first."""
        return bool(self._spooled) or not self._requester.connected

    def _withdraw(self) -> None:
        """Store what is queued behind a lost connection."""
        with self._changed:
            found = self._table.withdraw()
            self._storing += len(found)
        for pending in found:
            self._pool.submit(self._store, pending)

    def _store(self, pending: PendingFrame, sent: PreparedFrame | None = None) -> None:
        """Prepare a frame and store it; send it where nothing fits on the disk and a connection comes.

        Args:
            pending: The frame.
            sent: As it was sent without a result.
        """
        prepared = sent or self._preparation.prepare(pending)
        if isinstance(prepared, InferResult):
            with self._changed:
                self._storing -= 1
            self._settle(pending, None, prepared)
            return
        dropped: list[PendingFrame] = []
        is_sent = self._is_placed(pending, prepared, dropped)
        for each in dropped:
            self._settle(each, None, self._failed(each, Superseded(_OLDEST)))
        if is_sent:
            self._behind.take(pending, prepared)
            return
        self._preparation.forgo_preview(pending, PreviewDrop.SPOOLED)
        if not pending.spooled_as:
            self._settle(pending, prepared, self._failed(pending, Cancelled(self._not_kept)))

    def _is_placed(self, pending: PendingFrame, prepared: PreparedFrame, dropped: list[PendingFrame]) -> bool:
        """Wait for a place on the disk or in the window; return whether it is in the window."""
        with self._changed:
            while not (self._is_kept(pending, prepared, dropped) or self._is_given_up or self._can_send(pending)):
                self._changed.wait_for(lambda: self._can_send(pending) or self._is_given_up, FULL_CHECK_S)
            self._storing -= 1
            is_sent = not pending.spooled_as and self._can_send(pending)
            if is_sent:
                pending.stream.enter()
            return is_sent

    def _is_kept(self, pending: PendingFrame, prepared: PreparedFrame, dropped: list[PendingFrame]) -> bool:
        """Store a frame; with `latest` the oldest ones make room for it."""
        while not self._keep(pending, prepared):
            if self._options.policy is not Policy.LATEST or not self._spooled or not self._spool.is_full:
                return False
            oldest = self._spooled.pop(next(iter(self._spooled)))  # numbers ascend
            self._spool.remove(oldest.spooled_as)
            dropped.append(oldest)
        return True

    def _keep(self, pending: PendingFrame, prepared: PreparedFrame) -> bool:
        number = self._put(pending, prepared)
        if number is None:
            return False
        self._table.keep(pending, number)
        pending.frame = _without_pixels(pending.frame)
        self._spooled[number] = pending
        self._changed.notify_all()
        return True

    def _put(self, pending: PendingFrame, prepared: PreparedFrame) -> int | None:
        number = self._spool.put(SpooledFrame.of(pending.frame, prepared))
        if number is not None:
            self._leaving.renew()
        return number

    def _can_send(self, pending: PendingFrame) -> bool:
        return pending.stream.has_room and self._requester.connected

    @property
    def _is_given_up(self) -> bool:
        """Whether nothing more is sent in this run, and the disk that took no frame won't take one either."""
        if not self._is_leaving or self._requester.connected:
            return False
        return self._spool.is_full or self._leaving.is_over()

    def _settled(self, pending: PendingFrame, prepared: PreparedFrame | None, result: InferResult) -> None:
        """Take a frame with its outcome: the disk keeps it while it has none that counts, and forgets it else."""
        if pending.edge_answers:
            self._settle(pending, prepared, result)
            return
        if prepared is not None and self._is_taken_back(pending, prepared, result):
            return
        before = pending.spooled_as
        if prepared is not None:
            result = self._left(pending, result)
        if result.outcome is not Outcome.CANCELLED:
            if before:
                self._spool.remove(before)
        elif not before and prepared is not None and not self._put_at_last(pending, prepared):
            result = replace(result, error=ErrorInfo(Cancelled.code, self._not_kept))
        self._settle(pending, prepared, result)

    def _left(self, pending: PendingFrame, result: InferResult) -> InferResult:
        """Return the outcome of a frame: one that nobody could answer stays in the spool where the run ends."""
        is_kept = result.outcome is Outcome.CANCELLED or self._retries.is_unserved(result)
        return self._failed(pending, Cancelled(KEPT)) if self._is_leaving and is_kept else result

    def _is_taken_back(self, pending: PendingFrame, prepared: PreparedFrame, result: InferResult) -> bool:
        """Keep a frame that expired because the connection was lost, or that found no worker; it is sent again."""
        if not self._retries.is_for_later(result, self._up_since):
            return False
        with self._changed:
            if self._is_leaving:
                return False
            if pending.spooled_as:  # its file is still there
                self._spooled = dict(sorted([(pending.spooled_as, pending), *self._spooled.items()]))
                self._sent = min(self._sent, pending.spooled_as - 1)
                self._changed.notify_all()
                return True
            self._storing += 1
        self._pool.submit(self._store, pending, prepared)
        return True

    def _put_at_last(self, pending: PendingFrame, prepared: PreparedFrame) -> bool:
        """Store a frame that the run leaves; try again for a moment where that is not for want of room."""
        while self._put(pending, prepared) is None:
            if self._spool.is_full or not self._leaving.pause():
                return False
        return True

    @property
    def _not_kept(self) -> str:
        """Why a frame was not kept, and what to do."""
        return (
            f"not sent, and not kept in the spool ({self._spool.refusal}); make room there, or give another --spool, "
            "and replay this part again"
        )

    def leave(self) -> None:
        """End the frames on the disk, which keeps them, and those that nobody answers, which it keeps then."""
        with self._changed:
            self._is_leaving = True
            left = list(self._spooled.values())
            self._spooled.clear()
            self._changed.notify_all()
        for pending in left:
            self._settle(pending, None, self._failed(pending, Cancelled(KEPT)))
        self._behind.leave()

    def close(self) -> None:
        """End the threads."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        if self._thread.ident is not None:  # else it was never started
            self._thread.join()
        self._pool.shutdown()

    def _drain(self) -> None:
        while self._wait_for_frames():
            try:
                with self._changed:
                    found = self._spool.after(self._sent)
                    self._reading.renew()
                    last = max(self._spooled, default=self._sent) if found is None else found.number
                    end = last if found else last + 1
                    passed = list(takewhile(partial(operator.gt, end), self._spooled))  # numbers ascend
                    damaged = [self._spooled.pop(number) for number in passed]
                    pending = self._spooled.pop(last, None)
                    self._sent = last
            except SpoolBusy as busy:
                self._pass_over(busy)
                continue
            for each in damaged:
                self._settle(each, None, self._failed(each, BadImage(DAMAGED)))
            if found and pending:
                self._send(pending, found)

    def _pass_over(self, busy: SpoolBusy) -> None:
        """Wait for a frame that can't be read now, and leave it to the next run after a while."""
        with self._changed:
            if not self._reading.is_over():
                self._changed.wait_for(lambda: self._is_closed, PAUSE_S)
                return
            pending = self._spooled.pop(busy.number, None)
            self._sent = busy.number
        if pending:
            self._settle(pending, None, self._failed(pending, Cancelled(f"{KEPT}: it can't be read now: {busy}")))

    def _send(self, pending: PendingFrame, found: SpooledFrame) -> None:
        prepared = self._prepared(pending, found)
        if isinstance(prepared, InferResult):
            if prepared.outcome is not Outcome.CANCELLED:
                self._spool.remove(found.number)
            self._settle(pending, None, prepared)
            return
        with self._changed:
            self._changed.wait_for(lambda: pending.stream.has_room)
            pending.stream.enter()
        self._behind.take(pending, prepared)

    def _prepared(self, pending: PendingFrame, found: SpooledFrame) -> PreparedFrame | InferResult:
        if not found.is_recorded:
            height, width = found.tensors[0].shape[1:3]
            placement = _placed(found, self._preparation.preparer.placement(width, height))
            picture = partial(_frame_in, found, placement)
            return PreparedFrame(found.tensors, placement, picture, found.bytes_raw)
        pending.frame = _with_pixels(pending.frame, found)
        prepared = self._preparation.prepare(pending)
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
        if not self._requester.connected:
            self._withdraw()


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
