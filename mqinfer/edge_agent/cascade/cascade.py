"""The cascade of one run: which frames get another one's answer, which the small model's, and which go to the cloud.

The first stage that a frame passes. One that hardly differs from an earlier one follows it and gets its answer, at once
or when that is there. Any other one goes to the small model, and if that is not sure, to the stages behind, which send
it to the reference model. While that can't be reached, the small model's answer counts, and says so.

Threads: the replay's reader decides; a few run or ask the small model; those of the client bring answers. Frames go
to the reference model in the order of reading.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial

from mqinfer.client.requester import Requester
from mqinfer.client.result import InferResult
from mqinfer.client.window import NEWER_FRAME, Policy, StreamWindow
from mqinfer.edge_agent.cascade.small import shown_as, size_of
from mqinfer.edge_agent.cascade.stage import CascadeFrame, OwnModel, SmallStage
from mqinfer.edge_agent.frames.table import (
    FrameStage,
    PendingFrame,
    PreparedFrame,
    ReadingOrder,
    Settle,
    absence,
    failed_frame,
)
from mqinfer.edge_agent.frames.times import EdgeStage
from mqinfer.edge_agent.preparing.preparer import Preparer
from mqinfer.edge_agent.settings import ReplayOptions
from mqinfer.judging.detector import Detector, read_picture
from mqinfer.judging.results import ResultMaker, reused
from mqinfer.judging.settings import CascadeSettings, to_record, with_changes
from mqinfer.judging.thumbnail import Thumbnail, thumbnail
from mqinfer.logs import log_once
from mqinfer.protocol.errors import Cancelled, MqinferError, Superseded
from mqinfer.protocol.header import FALLBACK
from mqinfer.protocol.types import Outcome

log = logging.getLogger("mqinfer.edge_agent")


Load = Callable[[ResultMaker], tuple[ResultMaker, OwnModel]]
"""Loads the small model that the settings name, and returns it with the form of its answers."""


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
    """Decides about the frames of one run, a `FrameStage`; `attach` comes before the first frame. Thread-safe.

    Args:
        answers: Brings the answers to one form; has the settings.
        options: How frames are sent.
        requester: Connected, or will be.
        preparer: Of the reference model.
        stage: Where the small model is; closed with the cascade.
        load: Loads the version of the small model that settings name into this process.

    Raises:
        ConfigError: The picture to compare frames with can't be read.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - its parts
        self,
        answers: ResultMaker,
        options: ReplayOptions,
        requester: Requester,
        preparer: Preparer,
        stage: SmallStage,
        load: Load,
    ) -> None:
        self._now = answers
        self._options = options
        self._requester = requester
        self._preparer = preparer
        self._stage = stage
        self._load = load
        difference = answers.settings.difference
        self._picture = None if difference is None else read_picture(difference)
        self._lock = threading.Lock()
        self._streams: dict[str, _StreamState] = {}
        self._entries: dict[int, CascadeFrame] = {}  # by number; bounded by the frames that the replay reads
        self._is_closed = False

    def attach(self, behind: FrameStage) -> None:
        """Hand frames on to this stage."""
        self._behind, self.left = behind, behind.left

    @property
    def settings(self) -> CascadeSettings:
        """As they are now."""
        return self._now.settings

    @property
    def runs(self) -> dict[str, str] | None:
        """The small model that runs in this process: name, version and hash; None if there is none."""
        own = self._stage.own
        if own is None:
            return None
        card = own.network.card
        return {"model": card.name, "version": card.version, "hash": card.parameters.model_hash}

    def change(self, changes: Mapping[str, object]) -> CascadeSettings:
        """Change thresholds, the placement or the small model's version, from the next frame on; return all settings.

        Another version is loaded and tried first, which takes a while; frames go to the former one meanwhile.

        Raises:
            ConfigError: A key or value is wrong; nothing is changed then.
            ModelNotLoadable: There is no such version, or it can't be loaded; nothing is changed then.
        """
        loaded = None
        if self._stage.own is not None and "version" in changes:
            loaded = self._load(replace(self._now, settings=with_changes(self.settings, changes)))
        with self._lock:
            settings = with_changes(self.settings, changes)  # another call may have changed others meanwhile
            if loaded:
                self._now, self._stage.own = loaded
            self._now = replace(self._now, settings=settings)
        log.info("cascade: %s", ", ".join(f"{key} = {value}" for key, value in changes.items()))
        return settings

    def answer(self, changes: Mapping[str, object]) -> dict[str, object]:
        """Return what a control call gets: the settings, after these changes, and which small model runs here.

        Raises:
            MqinferError: As of `change`.
        """
        settings = self.change(changes) if changes else self.settings
        runs = self.runs
        return {**to_record(settings), **({"runs": runs} if runs else {})}

    def start(self, settle: Settle) -> None:
        """Start the stages behind."""
        self._settle = settle
        self._behind.start(self._settled)
        self._requester.watch(self._on_connection)

    def leave(self) -> None:
        """Have the stages behind end what they can."""
        self._behind.leave()

    def close(self) -> None:
        """End the threads, and release the small model."""
        self._is_closed = True
        self._stage.close()

    def take(self, pending: PendingFrame, prepared: PreparedFrame | None = None) -> None:
        """Decide about a frame that was just read; no stage has prepared it."""
        del prepared
        with self._lock:
            now, own = self._now, self._stage.own
        settings, state = now.settings, self._stream(pending.frame.source)
        pending.laps.begin(EdgeStage.COMPARE, time.monotonic_ns())
        entry = CascadeFrame(pending, self._thumbnail(pending, settings), now, own)
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

    def _settled(self, pending: PendingFrame, prepared: PreparedFrame | None, result: InferResult) -> None:
        """End a frame that went to the reference model, by its answer or, if there is none, by that of the edge."""
        with self._lock:
            entry = self._entries.get(pending.number)
        if entry is not None:
            result = replace(result, bytes_sent=result.bytes_sent + entry.bytes_sent)
            entry.bytes_sent = result.bytes_sent
        if result.outcome is Outcome.OK:
            result = (self._now if entry is None else entry.now).of_reference(result)
        elif entry is not None and pending.edge_answers and (why := absence(result)):
            if entry.answer is None:  # it takes a while
                self._stage.pool.submit(self._answer_alone, entry, why, result)
            else:
                self._answer_alone(entry, why, result)
            return
        self._end(pending, prepared, result)

    def _end(self, pending: PendingFrame, prepared: PreparedFrame | None, result: InferResult) -> None:
        """End any frame: those that follow it get its answer, or go on without it."""
        self._settle(pending, prepared, result)
        with self._lock:
            entry = self._entries.pop(pending.number, None)
            if entry is None:
                return
            followers, entry.followers = entry.followers, []
            if result.outcome is Outcome.OK:
                entry.prepared, entry.result = prepared, result
            if result.outcome is not Outcome.OK or FALLBACK in result.parameters:  # later frames may do better
                self._stream(pending.frame.source).detector.forget(entry)
        entry.own = None  # later frames may still follow it, and its version be released
        if result.outcome is Outcome.OK:
            for follower in followers:
                self._reuse(follower, entry)
        elif followers:
            self._leave(followers)

    def _stream(self, source: str) -> _StreamState:
        if source not in self._streams:  # the reader's first frame of it; others come later
            options = self._options
            most = max(options.window, self._stage.threads)
            self._streams[source] = _StreamState(self._picture, StreamWindow(options.policy, most))
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
        self._end(pending, prepared, reused(answer, pending.capture, waited))

    def _leave(self, followers: list[CascadeFrame]) -> None:
        """Go on with frames whose leader has no answer; with `latest` only with one that no newer one has replaced."""
        state = self._stream(followers[0].pending.frame.source)
        with self._lock:
            going = followers
            if self._options.policy is Policy.LATEST:
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
        self._end(entry.pending, None, failed)

    def _go_on(self, state: _StreamState, entry: CascadeFrame) -> None:
        """Hand a frame to the small model, or past it where there is none."""
        if entry.now.settings.small is None or (entry.seen is None and self._stage.takes_thumbnails):
            self._forward(entry)
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
        settings, answer = entry.now.settings, entry.answer
        has_target = settings.target is not None
        if answer and settings.small and settings.small.is_sure(answer.confidence, has_target=has_target):
            self._end(entry.pending, answer.prepared, answer.result)
        else:
            self._forward(entry)

    def _forward(self, entry: CascadeFrame) -> None:
        """Send a frame to the reference model; in a silence one that the edge can answer comes back at once."""
        entry.pending.edge_answers = self._can_answer(entry)
        self._behind.take(entry.pending)

    def _can_answer(self, entry: CascadeFrame) -> bool:
        return entry.answer is not None or entry.own is not None

    def _answer_alone(self, entry: CascadeFrame, why: MqinferError, failed: InferResult) -> None:
        """End a frame by the small model's answer, sure or not, since the reference model can't be reached."""
        answer = entry.answer or self._stage.run_here(entry)
        if answer is None:
            self._end(entry.pending, None, failed)
            return
        parameters = {**answer.result.parameters, FALLBACK: why.code}
        size = max(answer.result.bytes_sent, entry.bytes_sent)
        self._end(entry.pending, answer.prepared, replace(answer.result, parameters=parameters, bytes_sent=size))

    def _on_connection(self) -> None:
        """Without a connection, answer at once what was asked: on another thread, since this one is the link's."""
        if not (self._requester.connected or self._is_closed):
            with suppress(RuntimeError):  # it is being closed
                self._stage.pool.submit(self._recall)

    def _recall(self) -> None:
        """Cancel the requests to the small model of frames that the edge can answer."""
        if self._requester.connected:
            return
        with self._lock:
            asked = [each.small_request for each in self._entries.values() if self._can_answer(each)]
        for request_id in filter(None, asked):
            self._requester.cancel(request_id, Cancelled("there is no connection; the edge answers alone"))
