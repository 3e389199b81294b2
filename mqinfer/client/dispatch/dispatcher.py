"""What happens to requests between their submission and their outcome: a pure state machine.

It has no thread, lock or link. Its owner reports each event with the clock's reading, and then calls `take` until that
returns nothing to send: it returns the next request to publish, and the requests that ended without a reply. All of the
policy is here: the window, patience with missing and busy workers, back-off, time-outs, retry budget, poison.

A request is sent again if its worker was lost or stopped, nobody subscribed (PUBACK 0x10), a worker was busy, the
connection was lost, it or its reply was damaged on the network, or no reply came in the time of one attempt. All but
the last two cost nothing from the retry budget: there the window bounds what is sent again.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from mqinfer.broker.link import ReasonCode
from mqinfer.client.dispatch.blame import Blame, poison
from mqinfer.client.dispatch.fleet import Fleet, NoLane
from mqinfer.client.dispatch.lane import CANARY, Lane, doubled
from mqinfer.client.dispatch.pending import Entry, PendingTable, Place, RetryBudget
from mqinfer.client.options import NAME_HINT, ClientOptions
from mqinfer.client.result import Counters
from mqinfer.protocol.errors import (
    BadTopic,
    Corrupted,
    Expired,
    MqinferError,
    NotAuthorized,
    NotConnected,
    NoWorker,
    Rejected,
)
from mqinfer.protocol.header import RETRY_AFTER
from mqinfer.protocol.states import PendingRequests, WorkerState, WorkerStatus, is_for_canary
from mqinfer.protocol.types import ErrorInfo, InferResponse, Outcome
from mqinfer.protocol.value import value_object

__all__ = ["Dispatcher", "Ended", "Step"]

_NO_BUDGET_S = 0.1
"""Pause before a request that the retry budget held back is tried again."""
_LONGEST_PAUSE_S = 1.0
"""A request that was turned away is sent again after this at the latest."""

Ended = tuple[Entry, MqinferError]
"""A request that got no reply, and why."""


@value_object(eq=False)
class Step:
    """What the owner does next.

    Attributes:
        send: The request to publish now, with its `lane` set; None where none can be.
        ended: Requests whose callers receive an error.
        more: Whether another `take` may return another request.
    """

    send: Entry | None
    ended: Sequence[Ended]
    more: bool


_NOTHING = Step(None, (), more=False)


class Dispatcher:
    """Not thread-safe: its owner holds a lock. Times are readings of the owner's clock, in seconds.

    Attributes:
        wake_at: When `take` has something to do, though no event came; infinite for never.
    """

    def __init__(self, name: str, options: ClientOptions | None = None) -> None:
        """Start with no request and no worker.

        Args:
            name: The client's, for messages.
            options: How it sends.
        """
        self._name = name
        self._options = options or ClientOptions()
        self._table = PendingTable(self._options.window)
        self._fleet = Fleet(self._options.silence)
        self._blame = Blame(self._table, self._fleet)
        self._budget = RetryBudget()
        self._ended: list[Ended] = []
        self._check_at = math.inf
        self._was_lost = False
        self._settled_by = -math.inf
        self._submitted = 0
        self._outcomes: Counter[Outcome] = Counter()
        self._late = 0
        self._mismatched = 0
        self._withheld = 0
        self.wake_at = math.inf

    @property
    def room(self) -> int:
        """Requests that may be submitted now."""
        return self._options.max_pending - len(self._table.entries)

    def counters(self, malformed: int = 0, retained: int = 0, bad_states: int = 0) -> Counters:
        """Return what became of all requests; the arguments are what the owner has counted."""
        return Counters(
            submitted=self._submitted,
            pending=len(self._table.entries),
            in_flight=len(self._table.in_flight),
            outcomes={outcome: self._outcomes[outcome] for outcome in Outcome},
            retries=self._table.retries,
            withheld=self._withheld,
            late=self._late,
            malformed=malformed,
            mismatched=self._mismatched,
            retained=retained,
            bad_states=bad_states,
        )

    def pending(self, now: float) -> tuple[PendingRequests, ...]:
        """Return what has no outcome, by model."""
        return self._table.by_model(now)

    def submit(self, entry: Entry) -> None:
        """Accept a request."""
        self._submitted += 1
        if self._fleet.shares:
            self._split(entry)
        self._table.add(entry)

    def take(self, now: float, *, connected: bool = True) -> Step:
        """Return what follows from the events so far, and from the time.

        Args:
            now: The clock's reading.
            connected: Whether anything can be published.
        """
        table = self._table
        if table.alarms and table.alarms[0][0] <= now:
            for due in table.wake(now):
                if due.place is Place.ENDED:
                    self._record_end(due, _expiry(due))
                elif self._blame.is_hopeless(due):
                    self._end(due, poison(due))
                elif self._blame.holds(due):
                    table.back_off(due, now + self._options.silence.attempt)
        if now >= self._check_at:
            self._retry_overdue(now)
        has_room = connected and table.queued > 0 and len(table.in_flight) < table.window
        entry = self._launch_next(now) if has_room else None
        wake_at = min(self._check_at, table.alarms[0][0] if table.alarms else math.inf)
        if has_room and entry is None:
            wake_at = min(wake_at, self._fleet.next_opening(now))
        self.wake_at = wake_at
        if entry is None and not self._ended:
            return _NOTHING
        ended, self._ended = self._ended, []
        return Step(entry, ended, more=entry is not None and table.queued > 0)

    def acked(self, entry: Entry, attempt: int, code: int, now: float) -> None:
        """Handle the reason code of the PUBACK to a request's attempt."""
        if code == ReasonCode.SUCCESS:  # no promise of a reply
            entry.acknowledged = attempt
        elif entry.place is not Place.IN_FLIGHT or entry.attempts != attempt:
            return  # it was sent again since
        elif code in {ReasonCode.NOT_AUTHORIZED, ReasonCode.NO_MATCHING_SUBSCRIBERS} and entry.lane is not None:
            self._fleet.close(entry.lane)
            self._table.requeue(entry)
        elif code == ReasonCode.NOT_AUTHORIZED:
            message = f"the broker does not allow client {self._name!r} to ask for this model; {NAME_HINT}"
            self._end(entry, NotAuthorized(message))
        elif code != ReasonCode.NO_MATCHING_SUBSCRIBERS:
            self._refused(entry, f"the broker turned it away with reason code 0x{code:02x}", now)
        else:
            self._unserved(entry, now)

    def unsent(self, entry: Entry, attempt: int, why: MqinferError, now: float) -> None:
        """Handle an attempt that can't be published: without a connection it is tried again, else the request ends."""
        if entry.attempts != attempt:
            return  # recalled and sent again since
        if isinstance(why, NotConnected):
            if entry.place is Place.IN_FLIGHT:  # else it was recalled, and is sent again in any case
                self._table.back_off(entry, now + self._options.backoff)
        elif isinstance(why, BadTopic) and entry.lane is not None:  # the worker's name, not the request
            self._fleet.close(entry.lane)
            self._table.requeue(entry)
        else:
            self._end(entry, why)

    def replied(self, response: InferResponse, now: float, topic: str | None = None) -> bool:
        """Handle a reply, and what it reports of its worker.

        Args:
            response: The reply.
            now: The clock's reading.
            topic: Where it came; None where that was checked before.

        Returns:
            Whether it is the outcome of a request, which `settle` then ends; False where it is late, does not belong to
            the request, or turned the request away, which is sent again.
        """
        entry = self._table.entries.get(response.id)
        if entry is not None and not entry.belongs(response, topic):
            self._mismatched += 1
            return False
        if entry is not None and response.outcome is Outcome.REJECTED:
            self._rejected(entry, response, now)
            return False
        lane = entry.lane if entry else None
        if entry is None:
            self._late += 1
        elif entry.place is Place.IN_FLIGHT:
            if lane is None:
                self._fleet.shared_reply(response.model_name, now - entry.sent)
            elif lane.worker == response.worker:
                lane.run = response.timings.inference / 1e9
                lane.measure_transit(max(0.0, now - entry.sent - response.timings.server / 1e9))
        if lane is None or lane.worker != response.worker:  # of an earlier attempt, or late
            lane = self._fleet.lane(response.worker)
        if lane and _may_report(lane, response.id, entry):
            lane.update_load(response.load, now)
        return entry is not None

    def settle(self, request_id: str, outcome: Outcome) -> Entry | None:
        """End a request with a reply; return None, and count the reply as late, where it has its outcome already."""
        entry = self._table.remove(request_id)
        if entry is None:
            self._late += 1
        else:
            self._outcomes[outcome] += 1
        return entry

    def corrupted(self, request_id: str) -> None:
        """Handle a request or reply that was damaged: the request is sent again at once where the budget allows.

        The id may be damaged as well; at worst another request is sent twice.
        """
        if entry := self._table.in_flight.get(request_id):
            self._retry(entry)

    def update(self, state: WorkerState, now: float) -> None:
        """Handle a worker's state; what a lost or stopped worker had is sent elsewhere, unless it may be poison.

        A worker that is lost may only have lost its connection. That it crashed its server reports.
        """
        start = (state.worker, state.incarnation)
        if state.status is WorkerStatus.READY:
            self._blame.is_back(start)
        if lane := self._fleet.update(state):
            recalled = self._table.recall(lane)
            if state.status is not WorkerStatus.STOPPED:
                self._blame.lost(lane, recalled, now, displaced=state.status is WorkerStatus.READY)
        if state.status is WorkerStatus.CRASHED:
            for entry in self._blame.crashed(start, state.running, now):
                self._end(entry, poison(entry))

    def removed(self, worker: str) -> None:
        """Handle the removal of a worker's state: it gets nothing more, and what it had is sent elsewhere."""
        if lane := self._fleet.remove(worker):
            self._table.recall(lane)

    def connected(self, now: float) -> None:
        """Handle a connection: after a loss patience does not end before workers had time to reconnect, too."""
        if self._was_lost:
            self._settled_by = now + self._options.settling

    def disconnected(self) -> int:
        """Drop the workers, and queue everything in flight again; return how much that is."""
        self._was_lost = True
        recalled = len(self._table.recall())
        self._blame.clear()
        self._fleet.clear()
        return recalled

    def cancel(self, request_id: str, why: MqinferError) -> Entry | None:
        """End a request for its caller; return None where it has its outcome already."""
        entry = self._table.remove(request_id)
        if entry is not None:
            self._outcomes[why.outcome] += 1
        return entry

    def replaceable(self, ids: Iterable[str], now: float, *, connected: bool) -> str | None:
        """Return which of a stream's requests a newer one may take the place of; as of `PendingTable`."""
        return self._table.replaceable(ids, now, connected=connected)

    def cancel_all(self, why: MqinferError) -> Sequence[Ended]:
        """End every request: the client closes, or will never be connected again."""
        for entry in self._table.drain():
            self._record_end(entry, why)
        ended, self._ended = self._ended, []
        self._check_at = self.wake_at = math.inf
        return ended

    def _split(self, entry: Entry) -> None:
        """Assign a request without a version to the model's canary, if it is one of its share."""
        model, version = entry.channel
        share = self._fleet.shares.get(model)
        if share and version is None and is_for_canary(entry.request.id, share):
            entry.channel = (model, CANARY)

    def _launch_next(self, now: float) -> Entry | None:
        table, fleet = self._table, self._fleet
        for channel, queue in table.queues.items():
            entry = next(iter(queue.values()))
            crashed = bool(entry.lost_on)
            to = fleet.pinned(entry.worker, channel, now) if entry.worker and not entry.attempts else None
            if to is None:
                to = fleet.choose(channel, now, queued=len(queue), crashed=crashed, deadline=entry.deadline)
            if channel[1] == CANARY and isinstance(to, NoLane) and fleet.falls_back(channel, now, len(queue)):
                to = fleet.choose((channel[0], None), now, crashed=crashed, deadline=entry.deadline)
            if to is NoLane.SHARED and crashed:
                # It would meet the next worker before that is known, and the crash would be nobody's.
                if (other := _first_without_loss(queue)) is None:
                    continue
                entry, crashed = other, False
            if isinstance(to, Lane) and to.in_flight and not crashed and entry.deadline < (finish := to.finish(now)):
                if (in_time := _first_in_time(queue, finish)) is None:
                    continue
                entry = in_time
            if to is NoLane.WAIT:
                continue
            table.launch(entry, to if isinstance(to, Lane) else None, now)
            entry.retry_at = fleet.sent(entry.request.id, to, channel, now, crashed=crashed)
            self._check_at = min(self._check_at, entry.retry_at)
            if entry.attempts == 1:
                self._budget.earn()
            return entry
        return None

    def _unserved(self, entry: Entry, now: float) -> None:
        """Hold back all who ask for the model while there is patience, else end with `NoWorker`."""
        since = self._fleet.close_channel(entry.channel, now, self._options.backoff)
        patient_until = max(max(since, entry.submitted) + self._options.patience, self._settled_by)
        self._fleet.reopen_channel(entry.channel, patient_until)
        if now < patient_until:
            entry.refused_since = since
            self._table.requeue(entry)
        else:
            self._end(entry, NoWorker("no worker serves it; start one, or check the model's name and version"))

    def _rejected(self, entry: Entry, response: InferResponse, now: float) -> None:
        error = response.error or ErrorInfo(Rejected.code, "busy")
        if error.code == Corrupted.code:
            self.corrupted(response.id)
        elif entry.place is Place.IN_FLIGHT:  # else it is sent again in any case
            self._refused(entry, error.message, now, _stated_pause(response))

    def _refused(self, entry: Entry, why: str, now: float, pause: float = 0.0) -> None:
        """Send a request again later while there is patience, else end it as `rejected`."""
        if entry.refused_since is None:
            entry.refused_since = now
        patient_until = max(entry.refused_since + self._options.patience, self._settled_by)
        if now >= patient_until:
            self._end(entry, Rejected(why))
        elif entry.lane is not None:
            entry.lane.pause(now, pause)
            self._table.requeue(entry)
        else:
            backoff = doubled(self._options.backoff, entry.attempts - 1, _LONGEST_PAUSE_S)
            self._table.back_off(entry, min(now + backoff, patient_until))

    def _retry_overdue(self, now: float) -> None:
        """Send again what got no reply in time, and nothing more to the workers that were silent."""
        overdue = [entry for entry in self._table.overdue(now) if not self._is_only_slow(entry, now)]
        for lane in {id(entry.lane): entry.lane for entry in overdue if entry.lane}.values():
            lane.quarantine(now)
        for entry in overdue:
            if entry.lane is not None and entry.silent.get(entry.lane, -math.inf) < entry.sent:
                entry.silent[entry.lane] = now
            if self._blame.holds(entry):
                entry.retry_at = now + self._options.silence.attempt
            elif not self._retry(entry):
                entry.retry_at = now + _NO_BUDGET_S
        self._check_at = self._table.next_overdue()

    def _retry(self, entry: Entry) -> bool:
        """Send a request again at once if the budget allows it."""
        if not self._budget.spend():
            self._withheld += 1
            return False
        return self._table.requeue(entry)

    def _is_only_slow(self, entry: Entry, now: float) -> bool:
        """Extend a request's time, and return True, where its worker answers others: on a slow link all come late."""
        if entry.lane is None or not entry.lane.has_just_replied(now):
            return False
        if now - entry.sent >= self._options.silence.attempt_unknown:
            return False
        entry.retry_at = now + self._options.silence.attempt
        return True

    def _end(self, entry: Entry, why: MqinferError) -> None:
        if self._table.remove(entry.request.id) is not None:
            self._record_end(entry, why)

    def _record_end(self, entry: Entry, why: MqinferError) -> None:
        self._outcomes[why.outcome] += 1
        self._ended.append((entry, why))


def _first_in_time(queue: Mapping[str, Entry], finish: float) -> Entry | None:
    """Return the first request that a busy worker would answer by its deadline; None where there is none.

    In an overload each request would else be sent just in time to be late, and the workers would do nothing of use. An
    idle worker gets what it would answer late all the same: it may be faster than it was.
    """
    return next((entry for entry in queue.values() if entry.deadline >= finish and not entry.lost_on), None)


def _first_without_loss(queue: Mapping[str, Entry]) -> Entry | None:
    """Return the first request that no worker was lost with; None where there is none."""
    return next((entry for entry in queue.values() if not entry.lost_on), None)


def _may_report(lane: Lane, request_id: str, entry: Entry | None) -> bool:
    """Return whether a reply can be of the worker it names: no other one had the request, or anyone may have it."""
    if lane.in_flight.pop(request_id, None) or lane.unanswered.pop(request_id, False):
        return True
    return entry is not None and entry.lane is None


def _expiry(entry: Entry) -> Expired:
    seconds = entry.deadline - entry.submitted
    if entry.attempts == 0:
        return Expired(f"expired after {seconds:.3g} s before it could be sent (window full, or not connected)")
    turned_away = "" if entry.refused_since is None else ", some of them turned away (no worker, or busy ones)"
    return Expired(f"no reply within {seconds:.3g} s and {entry.attempts} attempt(s){turned_away}")


def _stated_pause(response: InferResponse) -> float:
    """Return when a busy worker expects to have room, in seconds from now; 0 where it doesn't state that."""
    stated = response.parameters.get(RETRY_AFTER, 0)
    return stated / 1e6 if isinstance(stated, int | float) else 0.0
