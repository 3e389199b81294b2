"""The second stage: ask the small model, in this process or in the cloud; and a frame on its way through a cascade."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

from msgspec import structs

from mqinfer.client.request import make_request
from mqinfer.client.requester import Requester
from mqinfer.client.result import InferResult
from mqinfer.edge_agent.cascade.small import SmallInput, SmallNetwork
from mqinfer.edge_agent.frames.table import PendingFrame, PreparedFrame
from mqinfer.edge_agent.frames.times import EdgeStage
from mqinfer.edge_agent.remote import started_pool
from mqinfer.judging.results import ResultMaker
from mqinfer.judging.settings import RunsAt
from mqinfer.judging.thumbnail import Thumbnail
from mqinfer.logs import log_once
from mqinfer.protocol.errors import BadImage
from mqinfer.protocol.types import Outcome

log = logging.getLogger("mqinfer.edge_agent")
_THREADS = 2


@dataclass(slots=True, eq=False)
class OwnModel:
    """The small model in this process, and what prepares frames for it."""

    network: SmallNetwork
    input: SmallInput


@dataclass(slots=True, eq=False)
class SmallAnswer:
    """What the small model found: its confidence, what it saw, its own result, and that of the frame if it counts."""

    confidence: float
    prepared: PreparedFrame
    found: InferResult
    result: InferResult


@dataclass(slots=True, eq=False)
class CascadeFrame:
    """A frame that follows no other one, or did not yet.

    Attributes:
        pending: The frame.
        seen: Its thumbnail; None if nothing needs it.
        now: The settings when it was read, which hold for it, and the form of its answer.
        own: The small model in this process when it was read; None if it is not here.
        followers: Frames that get its answer.
        ticket: Its place among the frames of its stream that the small model has got.
        answer: The small model's; None if there is none.
        small_request: Id of the request to the small model in the cloud.
        bytes_sent: Size of that request.
        prepared: As it was shown to the model that answered.
        result: Its outcome, once that is `ok`.
    """

    pending: PendingFrame
    seen: Thumbnail | None
    now: ResultMaker
    own: OwnModel | None
    followers: list[CascadeFrame] = field(default_factory=list)
    ticket: int = 0
    answer: SmallAnswer | None = None
    small_request: str = ""
    bytes_sent: int = 0
    prepared: PreparedFrame | None = None
    result: InferResult | None = None


class SmallStage:
    """Where the small model is. Thread-safe.

    Attributes:
        own: The model in this process; None if it is not here. Another version of it may take its place.
        pool: Threads that run or ask it.

    Args:
        requester: Asks it in the cloud.
        timeout: Of such a request, in seconds.
        there: Prepares frames for the one in the cloud; None if there is none.
    """

    def __init__(
        self,
        requester: Requester,
        timeout: float,
        own: OwnModel | None = None,
        there: SmallInput | None = None,
    ) -> None:
        self.own = own
        self.threads = _THREADS if own is None else max(_THREADS, own.network.replicas)
        """How many frames it can work on at a time."""
        self.pool = started_pool(self.threads, "mqinfer-cascade")
        self._requester, self._timeout = requester, timeout
        self._there = there

    @property
    def takes_thumbnails(self) -> bool:
        """Whether the model's pictures are those that the difference detector compares."""
        prepares = self.own.input if self.own else self._there
        return prepares is not None and prepares.takes_thumbnails

    def ask(self, entry: CascadeFrame, then: Callable[[CascadeFrame], None]) -> None:
        """Ask the small model where it is placed; where it can't be reached there, the one in this process.

        Args:
            entry: The frame; `answer` is set before `then` is called, and is None where there is none.
            then: Called with the frame, on any thread.
        """
        entry.pending.laps.begin(EdgeStage.SMALL, time.monotonic_ns())
        small, there = entry.now.settings.small, self._there
        is_placed_there = small is not None and small.placement is RunsAt.CLOUD and self._requester.connected
        if there is not None and (is_placed_there or entry.own is None):
            try:
                self._ask_there(entry, there, then)
            except Exception as error:  # noqa: BLE001 - a defect among them; the frame goes on all the same
                log_once(log, logging.WARNING, "cascade: the small model in the cloud was not asked: %r", error)
                self._ask_here(entry, then)
        else:
            self._ask_here(entry, then)

    def run_here(self, entry: CascadeFrame) -> SmallAnswer | None:
        """Run the small model in this process; return None if that fails, since the reference model can answer."""
        if entry.own is None:
            return None
        try:
            prepared = entry.own.input.prepare(entry.pending.frame, entry.seen)
            outputs, timings = entry.own.network.run(prepared)
        except BadImage:  # what is wrong with it, the preparer of the reference model reports
            return None
        except Exception as error:  # noqa: BLE001 - an engine may raise anything; the frame goes on all the same
            log_once(log, logging.WARNING, "cascade: the small model failed: %r", error)
            return None
        return _made(entry, prepared, InferResult("", Outcome.OK, "", outputs=outputs, timings=timings))

    def _ask_here(self, entry: CascadeFrame, then: Callable[[CascadeFrame], None]) -> None:
        entry.answer = self.run_here(entry)
        then(entry)

    def _ask_there(self, entry: CascadeFrame, there: SmallInput, then: Callable[[CascadeFrame], None]) -> None:
        pending, small = entry.pending, entry.now.settings.small
        version = None if small is None else small.version
        prepared = there.prepare(pending.frame, entry.seen)
        inputs = {tensor.name: tensor for tensor in prepared.tensors}
        request = make_request(there.model, inputs, {"version": version, "capture": pending.capture})
        settle = partial(self._settle, entry, prepared, then)
        entry.small_request = self._requester.submit(request, self._timeout, settle)
        if not self._requester.connected and entry.own is not None:  # lost just before
            self._requester.cancel(entry.small_request)

    def _settle(
        self,
        entry: CascadeFrame,
        prepared: PreparedFrame,
        then: Callable[[CascadeFrame], None],
        result: InferResult,
    ) -> None:
        """Take the reply of the small model in the cloud, on a thread of the client."""
        entry.bytes_sent += result.bytes_sent
        if result.outcome is Outcome.OK:
            entry.answer = _made(entry, prepared, result)
            then(entry)
        else:
            self.pool.submit(self._ask_here, entry, then)

    def close(self) -> None:
        """End the threads, and release the model in this process."""
        self.pool.shutdown()
        if self.own is not None:
            self.own.network.close()


def _made(entry: CascadeFrame, prepared: PreparedFrame, found: InferResult) -> SmallAnswer | None:
    """Return the small model's answer in the cascade's form, or None if it can't be brought to it."""
    try:
        outputs, confidence = entry.now.of_small(found.outputs)
    except Exception as error:  # noqa: BLE001 - outputs come from outside, and may be anything
        log_once(log, logging.WARNING, "cascade: the small model's answer is not used: %r", error)
        return None
    pending = entry.pending
    waited = max(0, round((time.monotonic() - pending.read_at) * 1e9) - found.timings.total)
    timings = structs.replace(found.timings, client_queue=found.timings.client_queue + waited)
    result = entry.now.of_edge(pending.capture, outputs, confidence, replace(found, timings=timings))
    return SmallAnswer(confidence, prepared, found, result)
