"""The cascade of one run: which frames get another one's answer, which the small model's, and which go to the cloud.

A replay hands each frame over as it is read (`decide`). A frame that hardly differs from an earlier one follows it and
gets its answer, at once or when that is there. Any other one goes to the small model, and if that is not sure, back to
the replay (`forward`), which sends it to the reference model. While that can't be reached, the small model's
answer counts, and says so.

Threads: the replay's reader decides; a few run or ask the small model; those of the client bring answers. Frames go
to the reference model in the order of reading.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

from mqinfer.client.requester import Requester
from mqinfer.client.result import InferResult
from mqinfer.client.window import NEWER_FRAME, DelayWindow, Policy, StreamWindow
from mqinfer.edge_agent.cascade.entry import CascadeFrame, SmallAnswer
from mqinfer.edge_agent.cascade.small import shown_as, size_of
from mqinfer.edge_agent.cascade.stage import SmallStage
from mqinfer.edge_agent.frames.order import ReadingOrder
from mqinfer.edge_agent.frames.pending import PendingFrame, failed_frame
from mqinfer.edge_agent.frames.prepared import PreparedFrame
from mqinfer.edge_agent.frames.reach import Reach
from mqinfer.edge_agent.frames.stages import EdgeStage
from mqinfer.edge_agent.preparing.preparer import Preparer
from mqinfer.judging.detector import Detector, read_picture
from mqinfer.judging.results import ResultMaker, reused
from mqinfer.judging.settings import CascadeSettings, with_changes
from mqinfer.judging.thumbnail import Thumbnail, thumbnail
from mqinfer.logs import log_once
from mqinfer.protocol.errors import (
    Cancelled,
    Corrupted,
    Expired,
    LinkError,
    MessageTooLarge,
    MqinferError,
    NotAuthorized,
    NotConnected,
    NoWorker,
    Rejected,
    Superseded,
    error_from_code,
)
from mqinfer.protocol.header import FALLBACK
from mqinfer.protocol.types import Outcome

__all__ = ["Cascade", "Conclude", "Forward", "Pace"]

log = logging.getLogger("mqinfer.edge_agent")
Forward: TypeAlias = Callable[[PendingFrame], None]
"""Sends a frame to the reference model."""
Conclude: TypeAlias = Callable[[PendingFrame, PreparedFrame | None, InferResult], None]
"""Ends a frame with its outcome."""
_ABSENT = (Expired, Rejected, Corrupted, NoWorker, LinkError)
_PRESENT = (MessageTooLarge, NotAuthorized)
"""Errors of a link that are no sign of a cloud that is gone."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How frames are sent, as for the replay.

    Attributes:
        policy: What happens to a frame that arrives while the window is full.
        window: Upper bound of the requests of one stream in flight.
        timeout: Of each request, in seconds.
        card_timeout: How long to wait for the card of a small model in the cloud, in seconds.
    """

    policy: Policy
    window: int
    timeout: float
    card_timeout: float


class _StreamState:
    """What is known of one stream. The cascade's lock guards all but `order`, which `releasing` guards."""

    def __init__(self, picture: Thumbnail | None, stage: StreamWindow[CascadeFrame]) -> None:
        self.detector: Detector[CascadeFrame] = Detector(picture)
        self.newest = -1
        """Number of the newest frame that follows no other one."""
        self.stage = stage
        """The frames for the small model."""
        self.tickets = 0
        self.order: ReadingOrder[CascadeFrame] = ReadingOrder()
        self.releasing = threading.Lock()


class Cascade:
    """Decides about the frames of one run. Thread-safe."""

    def __init__(
        self,
        answers: ResultMaker,
        pace: Pace,
        requester: Requester,
        preparer: Preparer,
        stage: SmallStage,
    ) -> None:
        """Prepare; `attach` before the first frame.

        Args:
            answers: Brings the answers to one form; has the settings.
            pace: How frames are sent.
            requester: Connected, or will be.
            preparer: Of the reference model.
            stage: Where the small model is; closed with the cascade.

        Raises:
            ConfigError: The picture to compare frames with can't be read.
        """
        self._now = answers
        self._pace = pace
        self._requester = requester
        self._preparer = preparer
        self._stage = stage
        difference = answers.settings.difference
        self._picture = None if difference is None else read_picture(difference)
        self._lock = threading.Lock()
        self._streams: dict[str, _StreamState] = {}
        self._entries: dict[int, CascadeFrame] = {}  # by number; bounded by the frames that the replay reads
        self._reach = Reach(is_connected=requester.connected)  # of the reference model; the lock guards it
        self._is_closed = False
        requester.watch(self._on_connection)

    def attach(self, forward: Forward, conclude: Conclude) -> None:
        """Hand frames on by these calls from now on."""
        self._forward, self._conclude = forward, conclude

    @property
    def settings(self) -> CascadeSettings:
        """As they are now."""
        return self._now.settings

    def change(self, changes: Mapping[str, object]) -> CascadeSettings:
        """Change thresholds or the placement, from the next frame on; return all settings.

        Raises:
            ConfigError: A key or value is wrong; nothing is changed then.
        """
        with self._lock:
            settings = with_changes(self.settings, changes)
            self._now = replace(self._now, settings=settings)
        log.info("cascade: %s", ", ".join(f"{key} = {value}" for key, value in changes.items()))
        return settings

    def close(self) -> None:
        """End the threads, and release the small model."""
        self._is_closed = True
        self._stage.close()

    def decide(self, pending: PendingFrame) -> None:
        """Decide about a frame that was just read; called in the order of reading."""
        now = self._now
        settings, state = now.settings, self._stream(pending.frame.source)
        pending.laps.begin(EdgeStage.COMPARE, time.monotonic_ns())
        entry = CascadeFrame(pending, self._thumbnail(pending, settings), now)
        leader = None
        with self._lock:
            if settings.difference is not None and settings.difference.t_diff and entry.seen is not None:
                leader = state.detector.leader(settings.difference, entry.seen, entry, size_of(pending.frame))
            pending.laps.begin(EdgeStage.QUEUE, time.monotonic_ns())
            if leader is None:
                self._entries[pending.number], state.newest = entry, pending.number
            elif leader.result is None:
                leader.followers.append(entry)
                return
        if leader is None:
            self._go_on(state, entry)
        else:
            self._reuse(entry, leader)

    def why_alone(self, pending: PendingFrame) -> MqinferError | None:
        """Return why a frame is not to be sent to the reference model: it can't be reached, and the edge can answer."""
        with self._lock:
            entry = self._entries.get(pending.number)
            if entry is None or not self._can_answer(entry):
                return None
            return self._reach.why_not(pending.number)

    def submitted(self) -> None:
        """Handle that a frame was sent: the connection may have been lost just before."""
        if not self._requester.connected:
            self._on_connection()

    def settled(self, pending: PendingFrame, prepared: PreparedFrame | None, result: InferResult) -> None:
        """End a frame that was sent to the reference model, by its answer or, if there is none, by that of the edge."""
        why = self._absence(result)
        with self._lock:
            entry = self._entries.get(pending.number)
            if result.outcome is Outcome.OK:
                self._reach.on_reply()
            elif why is not None:
                self._reach.on_absence(why)
            elif result.outcome is Outcome.SUPERSEDED:  # of a model that answers nothing, the edge makes more
                why = self._reach.silence
        if entry is not None:
            result = replace(result, bytes_sent=result.bytes_sent + entry.bytes_sent)
            entry.bytes_sent = result.bytes_sent
        if result.outcome is Outcome.OK:
            result = (self._now if entry is None else entry.now).of_reference(result)
        elif why is not None and entry is not None and self._can_answer(entry):
            self._answer_alone(entry, why, result)
            return
        self._conclude(pending, prepared, result)

    def ended(self, pending: PendingFrame, prepared: PreparedFrame | None, result: InferResult) -> None:
        """Handle the outcome of any frame: those that follow it get its answer, or go on without it."""
        with self._lock:
            entry = self._entries.pop(pending.number, None)
            if entry is None:
                return
            followers, entry.followers = entry.followers, []
            self._reach.ended(pending.number)
            if result.outcome is Outcome.OK:
                entry.prepared, entry.result = prepared, result
            if result.outcome is not Outcome.OK or FALLBACK in result.parameters:  # later frames may do better
                self._stream(pending.frame.source).detector.forget(entry)
        if result.outcome is Outcome.OK:
            for follower in followers:
                self._reuse(follower, entry)
        elif followers:
            self._leave(followers)

    def _stream(self, source: str) -> _StreamState:
        if source not in self._streams:  # the reader's first frame of it; others come later
            pace = self._pace
            window = DelayWindow.of(pace.policy, max(pace.window, self._stage.threads))
            self._streams[source] = _StreamState(self._picture, StreamWindow(pace.policy, window))
        return self._streams[source]

    def _thumbnail(self, pending: PendingFrame, settings: CascadeSettings) -> Thumbnail | None:
        compares = settings.difference is not None and settings.difference.t_diff > 0
        if not (compares or self._stage.takes_thumbnails):
            return None
        frame = pending.frame
        try:
            return thumbnail(frame.image, self._preparer.bit_depths.of(frame))
        except MqinferError:  # what is wrong with it, the preparer reports
            return None
        except Exception as error:  # noqa: BLE001 - a defect; the frame goes on all the same
            log_once(log, logging.WARNING, "cascade: a frame was not compared: %r", error)
            return None

    def _reuse(self, entry: CascadeFrame, leader: CascadeFrame) -> None:
        """End a frame by the answer of another one."""
        pending, answer, shown = entry.pending, leader.result, leader.prepared
        if answer is None:  # a defect: only a leader with an answer is followed
            raise RuntimeError("a frame follows one without an answer")
        prepared = None
        if shown is not None:
            picture = shown_as(self._preparer, pending.frame)
            prepared = PreparedFrame((), shown.placement, picture, shown.bytes_raw)
        waited = round((time.monotonic() - pending.read_at) * 1e9)
        self._conclude(pending, prepared, reused(answer, pending.capture, waited))

    def _leave(self, followers: list[CascadeFrame]) -> None:
        """Go on with frames whose leader has no answer; with `latest` only with one that no newer one has replaced."""
        state = self._stream(followers[0].pending.frame.source)
        with self._lock:
            going = followers
            if self._pace.policy is Policy.LATEST:
                going = [each for each in followers[-1:] if each.pending.number > state.newest]
            for entry in going:
                self._entries[entry.pending.number] = entry
                state.newest = max(state.newest, entry.pending.number)
        for entry in followers:
            if entry in going:
                self._go_on(state, entry)
            else:
                self._supersede(entry)

    def _supersede(self, entry: CascadeFrame) -> None:
        failed = failed_frame(self._now.reference.name, entry.pending, Superseded(NEWER_FRAME))
        self._conclude(entry.pending, None, failed)

    def _go_on(self, state: _StreamState, entry: CascadeFrame) -> None:
        """Hand a frame to the small model, or past it where there is none."""
        if entry.now.settings.small is None or (entry.seen is None and self._stage.takes_thumbnails):
            self._forward(entry.pending)
            return
        with self._lock:
            lost = state.stage.put(entry)
        self._start(state)
        if lost is not None:
            self._supersede(lost)

    def _start(self, state: _StreamState) -> None:
        """Start the small model on the frames that there is room for."""
        with self._lock:
            entered = state.stage.take()
            for entry in entered:
                entry.ticket, state.tickets = state.tickets, state.tickets + 1
        for entry in entered:
            self._stage.pool.submit(self._stage.ask, entry, partial(self._judge, state))

    def _judge(self, state: _StreamState, entry: CascadeFrame) -> None:
        """Take up the small model's answer, and hand on the frames that are next in the order of reading."""
        answer = entry.answer
        entry.pending.laps.begin(EdgeStage.QUEUE, time.monotonic_ns())
        with self._lock:
            if answer is None:
                state.stage.leave()
            else:
                state.stage.finish(answer.found, time.monotonic())
        self._start(state)
        with state.releasing:
            for each in state.order.put(entry.ticket, entry):
                self._release(each)

    def _release(self, entry: CascadeFrame) -> None:
        """End a frame that the small model is sure of; send any other one to the reference model, if that is there."""
        settings, answer, pending = entry.now.settings, entry.answer, entry.pending
        has_target = settings.target is not None
        if answer and settings.small and settings.small.is_sure(answer.confidence, has_target=has_target):
            self._conclude(pending, answer.prepared, answer.result)
        elif answer and (why := self.why_alone(pending)):
            self._answer_alone(entry, why, answer.result)
        else:
            self._forward(pending)

    def _can_answer(self, entry: CascadeFrame) -> bool:
        return entry.answer is not None or self._stage.network is not None

    def _answer_alone(self, entry: CascadeFrame, why: MqinferError, failed: InferResult) -> None:
        """End a frame by the small model's answer, sure or not, since the reference model can't be reached."""
        if entry.answer is None:
            self._stage.pool.submit(self._answer_late, entry, why, failed)
            return
        self._conclude_alone(entry, entry.answer, why)

    def _answer_late(self, entry: CascadeFrame, why: MqinferError, failed: InferResult) -> None:
        answer = self._stage.run_here(entry)
        if answer is None:
            self._conclude(entry.pending, None, failed)
        else:
            self._conclude_alone(entry, answer, why)

    def _conclude_alone(self, entry: CascadeFrame, answer: SmallAnswer, why: MqinferError) -> None:
        parameters = {**answer.result.parameters, FALLBACK: why.code}
        size = max(answer.result.bytes_sent, entry.bytes_sent)
        self._conclude(entry.pending, answer.prepared, replace(answer.result, parameters=parameters, bytes_sent=size))

    def _absence(self, result: InferResult) -> MqinferError | None:
        """Return why the reference model can't be reached, by the outcome of a request; None for any other outcome."""
        if result.error is None:
            return None
        error = error_from_code(result.error.code, result.error.message)
        if isinstance(error, Cancelled) and not self._requester.connected:
            return NotConnected(str(error))
        return error if isinstance(error, _ABSENT) and not isinstance(error, _PRESENT) else None

    def _on_connection(self) -> None:
        """Without a connection, answer at once what was sent: on a thread of its own, since this one is the link's."""
        with self._lock:
            self._reach.on_connection(is_connected=self._requester.connected)
        if not (self._requester.connected or self._is_closed):
            with suppress(RuntimeError):  # it is being closed
                self._stage.pool.submit(self._recall)

    def _recall(self) -> None:
        """Cancel the requests of frames that the edge can answer."""
        if self._requester.connected:
            return
        with self._lock:
            entries = [entry for entry in self._entries.values() if self._can_answer(entry)]
        for entry in entries:
            for request_id in (entry.small_request, entry.pending.request_id):
                if request_id:
                    self._requester.cancel(request_id, Cancelled("there is no connection; the edge answers alone"))
