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
from collections.abc import Mapping, Sequence

from msgspec import Struct

from mqinfer.broker.link import ReasonCode
from mqinfer.client.dispatch.blame import Blame, poison
from mqinfer.client.dispatch.channels import Channel
from mqinfer.client.dispatch.fleet import Fleet, NoLane
from mqinfer.client.dispatch.lane import CANARY, LONGEST_PAUSE_S, Lane, doubled
from mqinfer.client.dispatch.pending import PendingRequest, PendingTable, RequestPlace, RetryBudget
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
from mqinfer.protocol.header import QUEUE_FULL, RETRY_AFTER
from mqinfer.protocol.states import WorkerState, WorkerStatus, is_for_canary
from mqinfer.protocol.types import ErrorInfo, InferResponse, Outcome

_NO_BUDGET_S = 0.1
"""Pause before a request that the retry budget held back is tried again."""

Ended = tuple[PendingRequest, MqinferError]
"""A request that got no reply, and why."""


class NextStep(Struct, frozen=True, eq=False):
    """What the owner does next.

    Attributes:
        send: The request to publish now, with its `lane` set; None where none can be.
        ended: Requests whose callers receive an error.
        more: Whether another `take` may return another request behind this one.
    """

    send: PendingRequest | None
    ended: Sequence[Ended]
    more: bool


_NOTHING = NextStep(None, (), more=False)


class Dispatcher:
    """Not thread-safe: its owner holds a lock. Times are readings of the owner's clock, in seconds.

    Attributes:
        table: The requests without an outcome.
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
        self.table = PendingTable(self._options.window)
        self._fleet = Fleet(self._options.silence)
        self._blame = Blame(self.table, self._fleet)
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
        return self._options.max_pending - len(self.table.entries)

    def counters(self, malformed: int = 0, retained: int = 0, bad_states: int = 0) -> Counters:
        """Return what became of all requests; the arguments are what the owner has counted."""
        return Counters(
            submitted=self._submitted,
            pending=len(self.table.entries),
            in_flight=len(self.table.in_flight),
            outcomes={outcome: self._outcomes[outcome] for outcome in Outcome},
            retries=self.table.retries,
            withheld=self._withheld,
            late=self._late,
            malformed=malformed,
            mismatched=self._mismatched,
            retained=retained,
            bad_states=bad_states,
        )

    def submit(self, entry: PendingRequest) -> None:
        """Accept a request."""
        self._submitted += 1
        model, version = entry.request.model_name, entry.request.model_version
        share = self._fleet.shares.get(model)
        if share and version is None and is_for_canary(entry.request.id, share):
            version = CANARY
        entry.channel = (model, version)
        self.table.add(entry)

    def take(self, now: float, *, connected: bool = True) -> NextStep:
        """Return what follows from the events so far, and from the time.

        Args:
            now: The clock's reading.
            connected: Whether anything can be published.
        """
        table = self.table
        if table.wakes_at <= now:
            self._wake(now)
        if self._check_at <= now:
            self._retry_overdue(now)
        has_room = connected and table.queued > 0 and len(table.in_flight) - len(table.withheld) < table.window
        entry = self._launch_next(now) if has_room else None
        self.wake_at = min(self._check_at, table.wakes_at)
        if entry is None:
            if has_room:
                self.wake_at = min(self.wake_at, self._fleet.next_opening(now))
            if not self._ended:
                return _NOTHING
        ended, self._ended = self._ended, []
        return NextStep(entry, ended, more=table.queued > 0)

    def acked(self, entry: PendingRequest, attempt: int, code: int, now: float) -> None:
        """Handle the reason code of the PUBACK to a request's attempt."""
        if code == ReasonCode.SUCCESS:  # no promise of a reply
            entry.trail.acknowledged = attempt
        elif entry.place is not RequestPlace.IN_FLIGHT or entry.attempts != attempt:
            return  # it was sent again since
        elif code in {ReasonCode.NOT_AUTHORIZED, ReasonCode.NO_MATCHING_SUBSCRIBERS} and entry.lane is not None:
            self._fleet.close(entry.lane)
            self.table.requeue(entry)
        elif code == ReasonCode.NOT_AUTHORIZED:
            message = f"the broker does not allow client {self._name!r} to ask for this model; {NAME_HINT}"
            self._end(entry, NotAuthorized(message))
        elif code != ReasonCode.NO_MATCHING_SUBSCRIBERS:
            self._refused(entry, f"the broker turned it away with reason code 0x{code:02x}", now)
        else:
            self._unserved(entry, now)

    def unsent(self, entry: PendingRequest, attempt: int, why: MqinferError, now: float) -> None:
        """Handle an attempt that can't be published: without a connection it is tried again, else the request ends."""
        if entry.attempts != attempt:
            return  # recalled and sent again since
        if isinstance(why, NotConnected):
            if entry.place is RequestPlace.IN_FLIGHT:  # else it was recalled, and is sent again in any case
                self.table.back_off(entry, now + self._options.backoff)
        elif isinstance(why, BadTopic) and entry.lane is not None:  # the worker's name, not the request
            self._fleet.close(entry.lane)
            self.table.requeue(entry)
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
        entry = self.table.entries.get(response.id)
        if entry is None or entry.trail.is_answered:
            entry = None
            self._late += 1
        elif not entry.belongs(response, topic):
            self._mismatched += 1
            return False
        elif response.outcome is Outcome.REJECTED:
            self._rejected(entry, response, now)
            return False
        elif entry.place is RequestPlace.IN_FLIGHT:
            elapsed, lane = now - entry.sent, entry.lane
            if lane is None:
                self._fleet.channels.replied(response.model_name, elapsed)
            elif lane.worker == response.worker:
                lane.times.measure(elapsed, response.timings, self._options.silence.attempt / 2)
        self._update_load(response, entry, now)
        if entry is None:
            return False
        entry.trail.is_answered = True
        return True

    def settle(self, request_id: str, outcome: Outcome, *, is_reply: bool = True) -> PendingRequest | None:
        """End a request with its outcome; return None where it has one already: then a reply counts as late."""
        entry = self.table.remove(request_id)
        if entry is not None:
            self._outcomes[outcome] += 1
        elif is_reply:
            self._late += 1
        return entry

    def corrupted(self, request_id: str) -> None:
        """Handle a request or reply that was damaged: the request is sent again at once where the budget allows.

        The id may be damaged as well; at worst another request is sent twice.
        """
        if entry := self.table.in_flight.get(request_id):
            self._retry(entry)

    def update(self, state: WorkerState | str, now: float) -> None:
        """Handle a worker's state; what a lost or stopped worker had is sent elsewhere, unless it may be poison.

        A worker that is lost may only have lost its connection. That it crashed its server reports.

        Args:
            state: What it, its server, or the broker on its behalf published; its name where the state was removed.
            now: The clock's reading.
        """
        if isinstance(state, str):
            if lane := self._fleet.remove(state):
                self.table.recall(lane)
            return
        start = (state.worker, state.incarnation)
        if state.status is WorkerStatus.READY:
            self._blame.is_back(start)
        if lane := self._fleet.update(state):
            recalled = self.table.recall(lane)
            if state.status is not WorkerStatus.STOPPED:
                self._blame.lost(lane, recalled, now)
        if state.status is WorkerStatus.CRASHED:
            for entry in self._blame.crashed(start, state.running, now):
                self._end(entry, poison(entry))

    def connection(self, is_up: bool, now: float) -> int:  # noqa: FBT001  as the link reports it
        """Handle a connection or its loss, which drops the workers, and queues everything in flight again.

        After a loss patience does not end before workers had time to reconnect, too.

        Returns:
            How many requests are queued again.
        """
        if is_up:
            if self._was_lost:
                self._settled_by = now + self._options.settling
            return 0
        self._was_lost = True
        self._fleet.clear()
        return len(self.table.recall())

    def cancel_all(self, why: MqinferError) -> Sequence[Ended]:
        """End every request: the client closes, or will never be connected again."""
        for entry in self.table.wake(math.inf):  # no deadline is later
            self._record_end(entry, why)
        ended, self._ended = self._ended, []
        self._check_at = self.wake_at = math.inf
        return ended

    def _wake(self, now: float) -> None:
        """End what has expired; what backed off is queued again, unless workers that may still crash on it have it."""
        for due in self.table.wake(now):
            if due.place is RequestPlace.ENDED:
                self._record_end(due, _expiry(due))
            elif self._blame.holds(due):
                self.table.back_off(due, now + self._options.silence.attempt)

    def _launch_next(self, now: float) -> PendingRequest | None:
        """Move the next request into the window: the first that can go, of the first channel that has one."""
        for channel, queue in self.table.queues.items():
            first = next(iter(queue.values()))
            to = self._destination(first, channel, len(queue), now)
            entry = _first_for(to, queue, first, now)
            if entry is None:
                continue
            lane = to if isinstance(to, Lane) else None
            self.table.launch(entry, lane, now)
            entry.due_at = (
                self._fleet.sent(entry.request.id, lane, now) if lane else self._fleet.channels.sent(channel, now)
            )
            self._check_at = min(self._check_at, entry.due_at)
            if entry.attempts == 1:
                self._budget.earn()
            return entry
        return None

    def _destination(self, entry: PendingRequest, channel: Channel, queued: int, now: float) -> Lane | NoLane:
        """Return where the first request of a channel's queue goes. There are three cases.

        1. It is for one worker, which takes requests: there.
        2. It is the canary's, whose workers are silent or have more queued than they take: to the default version.
        3. Else: to the worker that is expected to finish first.

        A request that a worker was lost with does not go where another such request is: one of the two would be blamed
        for the other.
        """
        fleet = self._fleet
        if entry.worker and not entry.attempts and (pinned := fleet.pinned(entry.worker, channel, now)):
            return pinned
        avoid = entry.trail.full_at
        if entry.trail.lost_on:
            avoid = avoid.union(self._blame.suspect_lanes())
        to = fleet.choose(channel, now, queued=queued, avoid=avoid, deadline=entry.deadline)
        if channel[1] == CANARY and isinstance(to, NoLane) and fleet.falls_back(channel, now, queued):
            return fleet.choose((channel[0], None), now, avoid=avoid, deadline=entry.deadline)
        return to

    def _unserved(self, entry: PendingRequest, now: float) -> None:
        """Hold back all who ask for the model while there is patience, else end with `NoWorker`."""
        since = self._fleet.channels.close(entry.channel, now, self._options.backoff)
        patient_until = max(max(since, entry.submitted) + self._options.patience, self._settled_by)
        self._fleet.channels.reopen(entry.channel, patient_until)
        if now < patient_until:
            entry.trail.refused_since = since
            self.table.requeue(entry)
        else:
            self._end(entry, NoWorker("no worker serves it; start one, or check the model's name and version"))

    def _rejected(self, entry: PendingRequest, response: InferResponse, now: float) -> None:
        error = response.error or ErrorInfo(Rejected.code, "busy")
        if error.code == Corrupted.code:
            self.corrupted(response.id)
        elif entry.place is not RequestPlace.IN_FLIGHT:
            pass  # it is sent again in any case
        elif self._options.shed and response.parameters.get(QUEUE_FULL):
            self._shed(entry, error.message, now)
        else:
            self._refused(entry, error.message, now, _stated_pause(response))

    def _shed(self, entry: PendingRequest, why: str, now: float) -> None:
        """End a request whose model's queue is full, unless another worker of it takes more."""
        if entry.lane is not None:
            entry.trail.full_at |= {entry.lane}
            if self._fleet.has_other(entry.channel, entry.trail.full_at, now):
                self.table.requeue(entry)
                return
        self._end(entry, Rejected(why))

    def _update_load(self, response: InferResponse, entry: PendingRequest | None, now: float) -> None:
        """Store what a reply reports of the worker it names, unless another one had the request."""
        lane = entry.lane if entry else None
        if lane is None or lane.worker != response.worker:  # of an earlier attempt, or late
            lane = self._fleet.lane(response.worker)
        if lane is None:
            return
        had_it = lane.in_flight.pop(response.id, None) or lane.unanswered.discard(response.id)
        if had_it or (entry and entry.lane is None):
            lane.update_load(response.load, now)

    def _refused(self, entry: PendingRequest, why: str, now: float, pause: float = 0.0) -> None:
        """Send a request again later while there is patience, else end it as `rejected`."""
        if entry.trail.refused_since is None:
            entry.trail.refused_since = now
        patient_until = max(entry.trail.refused_since + self._options.patience, self._settled_by)
        if now >= patient_until:
            self._end(entry, Rejected(why))
        elif entry.lane is not None:
            entry.lane.pause(now, pause)
            self.table.requeue(entry)
        else:
            backoff = doubled(self._options.backoff, entry.attempts - 1, LONGEST_PAUSE_S)
            self.table.back_off(entry, min(now + backoff, patient_until))

    def _retry_overdue(self, now: float) -> None:
        """Send again what got no reply in time, and nothing more to the workers that were silent.

        A request that the budget holds back speaks against its worker once: it is looked at again and again, and would
        keep from the worker what it may well answer.
        """
        table = self.table
        overdue = [entry for entry in table.overdue(now) if not self._is_only_slow(entry, now)]
        silent_lanes = {
            id(each.lane): each.lane for each in overdue if each.lane and each.request.id not in table.withheld
        }
        for lane in silent_lanes.values():
            lane.quarantine.begin(now, lane.silence)
        for entry in overdue:
            silent = entry.trail.silent
            if entry.lane is not None and silent.get(entry.lane, -math.inf) < entry.sent:
                silent[entry.lane] = now
            if self._blame.holds(entry):
                entry.due_at = now + self._options.silence.attempt
            elif not self._retry(entry):
                entry.due_at = now + _NO_BUDGET_S
        self._check_at = table.next_overdue()

    def _retry(self, entry: PendingRequest) -> bool:
        """Send a request again at once if the budget allows it; else free its place, though the reply may come."""
        if not self._budget.spend():
            self._withheld += entry.request.id not in self.table.withheld
            if entry.lane is not None:
                self.table.withheld[entry.request.id] = entry
                entry.lane.land(entry.request.id)
            return False
        return self.table.requeue(entry)

    def _is_only_slow(self, entry: PendingRequest, now: float) -> bool:
        """Extend a request's time, and return True, where its worker answers others: on a slow link all come late."""
        if entry.lane is None or not entry.lane.has_just_replied(now):
            return False
        if now - entry.sent >= self._options.silence.attempt_unknown:
            return False
        entry.due_at = now + self._options.silence.attempt
        return True

    def _end(self, entry: PendingRequest, why: MqinferError) -> None:
        if self.table.remove(entry.request.id) is not None:
            self._record_end(entry, why)

    def _record_end(self, entry: PendingRequest, why: MqinferError) -> None:
        self._outcomes[why.outcome] += 1
        self._ended.append((entry, why))


def _first_for(
    to: Lane | NoLane, queue: Mapping[str, PendingRequest], first: PendingRequest, now: float
) -> PendingRequest | None:
    """Return which request of a queue goes where its first one would; None where none does. There are four cases.

    1. All have to wait.
    2. A model's channel gets no request that a worker was lost with: it would meet the next worker before that is
       known, and the crash would be nobody's.
    3. A busy worker gets the first that it would answer by its deadline. In an overload each request would else be sent
       just in time to be late, and the workers would do nothing of use. An idle worker gets what it would answer late
       all the same: it may be faster than it was.
    4. Else the first goes.
    """
    if to is NoLane.WAIT:
        return None
    if first.trail.lost_on:
        return first if to is not NoLane.SHARED else next((e for e in queue.values() if not e.trail.lost_on), None)
    if to is NoLane.SHARED or not to.in_flight or first.deadline >= (finish := to.finish(now)):
        return first
    return next((each for each in queue.values() if each.deadline >= finish and not each.trail.lost_on), None)


def _expiry(entry: PendingRequest) -> Expired:
    seconds = entry.deadline - entry.submitted
    if entry.attempts == 0:
        return Expired(f"expired after {seconds:.3g} s before it could be sent (window full, or not connected)")
    turned_away = "" if entry.trail.refused_since is None else ", some of them turned away (no worker, or busy ones)"
    return Expired(f"no reply within {seconds:.3g} s and {entry.attempts} attempt(s){turned_away}")


def _stated_pause(response: InferResponse) -> float:
    """Return when a busy worker expects to have room, in seconds from now; 0 where it doesn't state that."""
    stated = response.parameters.get(RETRY_AFTER, 0)
    return stated / 1e6 if isinstance(stated, int | float) else 0.0
