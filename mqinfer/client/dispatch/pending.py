"""The requests of a client without an outcome: pure bookkeeping, no thread, no link, an injected clock.

A request is queued, in flight (published and unanswered), or backs off until it is queued again. At most `window` are
in flight, so the queue is here, where it can be seen and bounded, and not in the broker. Whoever takes an entry out
(`remove`, `wake`) owns its one outcome: the table gives each entry out exactly once.
"""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from itertools import islice, takewhile
from typing import NamedTuple

from msgspec.structs import replace

from mqinfer.broker.link import Withdraw, already_sent
from mqinfer.client.dispatch.channels import Channel
from mqinfer.client.dispatch.lane import Lane
from mqinfer.client.result import InferResult
from mqinfer.fair_queue import LAST, turn_at
from mqinfer.protocol.datatypes import Array, Buffer
from mqinfer.protocol.errors import MqinferError
from mqinfer.protocol.states import PendingRequests
from mqinfer.protocol.types import ErrorInfo, InferRequest, InferResponse, Outcome
from mqinfer.telemetry.requests import RequestSpans

Settle = Callable[[InferResult], None]
Start = tuple[str, int]
"""A worker's name and its incarnation."""
SLACK = 64
"""Alarms of entries that have ended are swept once there are more than `2 * len(table) + SLACK` alarms."""


class RequestPlace(Enum):
    """Where an entry is."""

    QUEUED = "queued"
    IN_FLIGHT = "in flight"
    BACKING_OFF = "backing off"
    ENDED = "ended"


class EncodedMessage(NamedTuple):
    """What a request's next attempt publishes: the payload in pieces, and its size in bytes."""

    pieces: tuple[Buffer, ...]
    size: int


_NOT_ENCODED = EncodedMessage((), 0)


@dataclass(slots=True, eq=False)
class Trail:
    """What is known of a request's attempts, and of the workers that they went to.

    Attributes:
        bytes_sent: Bytes of all attempts together.
        withdraw: Gives up the last attempt, where it has not begun to leave.
        acknowledged: The last attempt that the broker acknowledged as delivered.
        earlier: The workers of the attempts before, None among them where one went over the model's channel.
        refused_since: When the request was turned away first on this connection, or None.
        lost_on: Workers that were lost while they had it, and have not come back.
        crashed_on: Those of them whose processes have crashed.
        silent: Workers that let an attempt time out, and when: they may still work on it.
        full_at: Workers at which the model's own `max_queue_size` was reached.
        is_answered: Whether the reply is here, and may still be decoded.
    """

    bytes_sent: int = 0
    withdraw: Withdraw = already_sent
    acknowledged: int = 0
    earlier: frozenset[str | None] = frozenset()
    refused_since: float | None = None
    lost_on: frozenset[Start] = frozenset()
    crashed_on: frozenset[Start] = frozenset()
    silent: dict[Lane, float] = field(default_factory=dict)
    full_at: frozenset[Lane] = frozenset()
    is_answered: bool = False


@dataclass(slots=True, eq=False)
class PendingRequest:
    """One request until its outcome. All times are the table's clock, in seconds.

    Attributes:
        request: What was asked; its `attempt` and `timeout_us` are set anew at each publication.
        settle: Receives the outcome, once.
        submitted: When the caller asked.
        deadline: When the request expires.
        worker: Where it is to go as long as that worker takes requests; empty for any.
        sent: When it was last published; 0 before that.
        channel: The model and version asked for, once it is submitted.
        place: Where it is.
        attempts: How often it was published.
        message: What the next attempt publishes; it is encoded by then.
        turn: Its place in its channel's line; the smallest goes first.
        lane: The worker that it was sent to, or None on a model's channel.
        due_at: When it counts as unanswered, if it is in flight; when it is queued again, if it backs off.
        trail: What is known of its attempts.
        spans: Its part of a trace; None where spans are not exported.
    """

    request: InferRequest
    settle: Settle
    submitted: float
    deadline: float
    worker: str = ""
    sent: float = 0.0
    channel: Channel = ("", None)
    place: RequestPlace = RequestPlace.QUEUED
    attempts: int = 0
    message: EncodedMessage = _NOT_ENCODED
    turn: int = 0
    lane: Lane | None = None
    due_at: float = math.inf
    trail: Trail = field(default_factory=Trail)
    spans: RequestSpans | None = None

    def belongs(self, response: InferResponse, topic: str | None) -> bool:
        """Return whether a reply is of the model, version and worker that were asked, and came where it was to come.

        Args:
            response: The reply.
            topic: Where it came; None where that was checked before.
        """
        request, version = self.request, self.request.model_version
        if response.model_name != request.model_name or topic not in {None, request.response_topic}:
            return False
        if version not in {None, response.model_version} and response.outcome is Outcome.OK:
            return False
        if response.attempt > self.attempts:
            return False
        earlier = self.trail.earlier
        if self.lane is None or None in earlier:
            return True
        return response.worker in {"", self.lane.worker} or response.worker in earlier

    def answered(
        self, response: InferResponse, outputs: Mapping[str, Array], problem: MqinferError | None, received: float
    ) -> InferResult:
        """Return the result of a reply.

        Args:
            response: The reply.
            outputs: Its tensors, decoded.
            problem: Why they could not be decoded, or None.
            received: When the reply came, by the table's clock, in seconds.
        """
        worker = response.timings
        return InferResult(
            id=response.id,
            outcome=response.outcome if problem is None else Outcome.ERROR,
            model_name=response.model_name,
            model_version=response.model_version,
            model_hash=response.model_hash,
            outputs=outputs,
            error=response.error if problem is None else ErrorInfo(problem.code, str(problem)),
            worker=response.worker,
            stage=response.stage,
            timings=replace(  # the client's own queue, and as transmission what the worker's stages don't explain
                worker,
                client_queue=round((self.sent - self.submitted) * 1e9),
                transmission=max(0, round((received - self.sent) * 1e9) - worker.server),
            ),
            capture=self.request.capture,
            attempts=self.attempts,
            bytes_sent=self.trail.bytes_sent,
            parameters=response.parameters,
            submitted=self.submitted,
        )

    def failed(self, why: MqinferError) -> InferResult:
        """Return the result of a request that got no reply."""
        return InferResult(
            id=self.request.id,
            outcome=why.outcome,
            model_name=self.request.model_name,
            error=ErrorInfo(why.code, f"model {self.request.model_name!r}: {why}"),
            capture=self.request.capture,
            attempts=self.attempts,
            bytes_sent=self.trail.bytes_sent,
            submitted=self.submitted,
        )


@dataclass(slots=True)
class PendingTable:
    """Requests by id, in the order in which they will be sent. Not thread-safe: its owner holds a lock.

    Attributes:
        window: Requests that may be in flight at a time.
        retries: Publications beyond each request's first.
        entries: All requests by id.
        in_flight: Those that are published and unanswered, in the order of publication.
        withheld: Those in flight that their workers let time out, and that the retry budget holds back: they take no
            place in the window or at the worker.
        queues: Those that are queued, by channel, in the order of their turns: what waits for one need not wait for
            another.
        queued: How many are queued.
        alarms: A heap of times at which `wake` has something to do, with ids: what has ended is not kept by its alarm.
        wakes_at: The first of them; infinite for none.
    """

    window: int
    retries: int = 0
    entries: dict[str, PendingRequest] = field(default_factory=dict)
    in_flight: dict[str, PendingRequest] = field(default_factory=dict)
    withheld: dict[str, PendingRequest] = field(default_factory=dict)
    queues: dict[Channel, OrderedDict[str, PendingRequest]] = field(default_factory=dict)
    queued: int = 0
    alarms: list[tuple[float, int, str]] = field(default_factory=list)
    wakes_at: float = math.inf
    _alarm_number: int = 0
    _turn: int = 0

    def add(self, entry: PendingRequest) -> None:
        """Queue a new request; its deadline runs from now on."""
        self.entries[entry.request.id] = entry
        self._enqueue(entry)
        self._set_alarm(entry.deadline, entry)

    def launch(self, entry: PendingRequest, lane: Lane | None, now: float) -> None:
        """Move a queued request into the window, to a worker or, without one, to its channel; models take turns."""
        self._withdraw(entry)
        channel = entry.channel
        if channel in self.queues:
            self.queues[channel] = self.queues.pop(channel)
        if entry.attempts:
            entry.trail.earlier |= {entry.lane.worker if entry.lane else None}
        entry.attempts += 1
        entry.sent = now
        entry.lane = lane
        entry.place = RequestPlace.IN_FLIGHT
        self.retries += entry.attempts > 1
        self.in_flight[entry.request.id] = entry

    def remove(self, request_id: str) -> PendingRequest | None:
        """Remove a request for good, and return it; None where it has its outcome already."""
        entry = self.entries.pop(request_id, None)
        if entry is None:
            return None
        self._withdraw(entry)
        entry.place = RequestPlace.ENDED
        return entry

    def back_off(self, entry: PendingRequest, until: float) -> bool:
        """Set a request aside and queue it again at `until`; return False if it is set aside already, or has ended."""
        if not self._withdraw(entry):
            return False
        entry.place = RequestPlace.BACKING_OFF
        entry.due_at = until
        self._set_alarm(until, entry)
        return True

    def postpone(self, entry: PendingRequest, until: float) -> None:
        """Wait until then at least for what a request waits for: its reply, or to be queued again."""
        if until > entry.due_at:
            entry.due_at = until
            if entry.place is RequestPlace.BACKING_OFF:
                self._set_alarm(until, entry)

    def requeue(self, entry: PendingRequest) -> bool:
        """Put a request in flight, or one that backs off, at the head of its queue; return False if it is neither."""
        if entry.place in {RequestPlace.QUEUED, RequestPlace.ENDED}:
            return False
        self._withdraw(entry)
        self._enqueue(entry, first=True)
        return True

    def recall(self, lane: Lane | None = None) -> list[PendingRequest]:
        """Put what is in flight back at the head of the queue, oldest first.

        Args:
            lane: Only what was sent to this worker: it is lost. None for everything: the connection was lost; on the
                next one all patience begins anew, since workers may need as long as clients to be there again.

        Returns:
            The entries.
        """
        recalled = [entry for entry in self.in_flight.values() if lane is None or entry.lane is lane]
        for entry in reversed(recalled):
            self.requeue(entry)
        if lane is None:
            for entry in self.entries.values():
                trail = entry.trail
                trail.refused_since = None
                trail.lost_on = trail.crashed_on  # wills of that connection are void, the servers' reports are not
        return recalled

    def replaceable(self, ids: Iterable[str], now: float, *, connected: bool) -> str | None:
        """Return the oldest of a stream's requests that a newer one may take the place of; None where there is none.

        That is one that waits to be sent or, at a worker that has fallen silent, behind another request of this client.
        The oldest at each place stays, so that a stream that is always replaced still gets results; without a
        connection there are none, and it goes, too. At a worker that answers in time nothing is replaced: the window
        lets a request wait there for half the model's time at most, and to send another in its place would cost more.

        Args:
            ids: The requests of the stream, the oldest first.
            now: The clock's reading.
            connected: Whether anything can be published.
        """
        kept = not connected
        for entry in filter(None, map(self.entries.get, ids)):
            if entry.place is not RequestPlace.IN_FLIGHT or entry.request.id in self.withheld:
                if kept:
                    return entry.request.id
                kept = True
            elif entry.lane and not entry.lane.is_usable(now) and entry.request.id in [*entry.lane.in_flight][1:]:
                return entry.request.id
        return None

    def by_model(self, now: float) -> tuple[PendingRequests, ...]:
        """Return how many requests there are for each model, and how old the oldest is."""
        counts: dict[str, list[float]] = {}  # queued or set aside, in flight, and when the oldest was submitted
        for entry in self.entries.values():  # in the order of submission
            of_model = counts.setdefault(entry.request.model_name, [0, 0, entry.submitted])
            of_model[entry.place is RequestPlace.IN_FLIGHT] += 1
        return tuple(
            PendingRequests(model, int(queued), int(in_flight), max(0, round((now - oldest) * 1e3)))
            for model, (queued, in_flight, oldest) in counts.items()
        )

    def overdue(self, now: float) -> list[PendingRequest]:
        """Return what is in flight and got no reply in the time of one attempt."""
        return [entry for entry in self.in_flight.values() if entry.due_at <= now]

    def next_overdue(self) -> float:
        """Return when the next entry in flight is overdue; infinite where none is in flight."""
        return min((entry.due_at for entry in self.in_flight.values()), default=math.inf)

    def wake(self, now: float) -> list[PendingRequest]:
        """Return the requests that are due: those that have expired, which are out, and those that are queued again."""
        due = []
        while self.alarms and self.alarms[0][0] <= now:
            _, _, request_id = heapq.heappop(self.alarms)
            entry = self.entries.get(request_id)
            if entry is None:
                continue
            if entry.deadline <= now:
                self.remove(request_id)
                due.append(entry)
            elif entry.place is RequestPlace.BACKING_OFF and entry.due_at <= now:
                self._enqueue(entry)
                due.append(entry)
        self.wakes_at = self.alarms[0][0] if self.alarms else math.inf
        return due

    def _enqueue(self, entry: PendingRequest, *, first: bool = False) -> None:
        queue = self.queues.get(entry.channel)
        if queue is None:
            queue = self.queues[entry.channel] = OrderedDict()
        queue[entry.request.id] = entry
        entry.place = RequestPlace.QUEUED
        self.queued += 1
        if first:
            queue.move_to_end(entry.request.id, last=False)
            return
        self._turn += 1
        if entry.request.priority:
            entry.turn = turn_at(self._turn, entry.request.priority)
            _overtake(queue, entry)
        else:
            entry.turn = self._turn + LAST

    def _withdraw(self, entry: PendingRequest) -> bool:
        """Remove a request from those in flight or queued; return False if it is among neither."""
        if entry.place is RequestPlace.IN_FLIGHT:
            del self.in_flight[entry.request.id]
            if self.withheld:
                self.withheld.pop(entry.request.id, None)
            if entry.lane is not None and entry.request.id in entry.lane.in_flight:
                entry.lane.land(entry.request.id)
            return True
        if entry.place is not RequestPlace.QUEUED:
            return False
        queue = self.queues[entry.channel]
        del queue[entry.request.id]
        self.queued -= 1
        if not queue:
            del self.queues[entry.channel]
        return True

    def _set_alarm(self, when: float, entry: PendingRequest) -> None:
        self._alarm_number += 1
        heapq.heappush(self.alarms, (when, self._alarm_number, entry.request.id))
        if len(self.alarms) > 2 * len(self.entries) + SLACK:
            self.alarms = [alarm for alarm in self.alarms if alarm[2] in self.entries]
            heapq.heapify(self.alarms)
        self.wakes_at = self.alarms[0][0]


def _overtake(queue: OrderedDict[str, PendingRequest], entry: PendingRequest) -> None:
    """Move the last request of a queue to its turn."""
    others = islice(reversed(queue.values()), 1, None)
    overtaken = list(takewhile(lambda each: each.turn > entry.turn, others))
    for each in reversed(overtaken):
        queue.move_to_end(each.request.id)


class RetryBudget:
    """How many requests may be sent again for want of a reply: a share of those sent, so no overload feeds itself.

    With retries unbounded, one outage of a second doubled a load for good: every reply came after its request had been
    sent again. A token bucket, as in Finagle's `RetryBudget` and gRPC's retry throttling. Not thread-safe.

    Args:
        share: Retries per request, in the long run.
        burst: Tokens at most, and at the start.
    """

    def __init__(self, share: float = 0.1, burst: float = 16.0) -> None:
        self._share = share
        self._burst = burst
        self._tokens = burst

    def earn(self) -> None:
        """Add a request's share of a token."""
        if self._tokens < self._burst:
            self._tokens = min(self._burst, self._tokens + self._share)

    def spend(self) -> bool:
        """Spend a token; return False where there is none left."""
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True
