"""What happens to requests between their submission and their outcome: pure, without thread, lock or link.

It joins the pending table, the fleet of workers and the retry budget, and decides when a request is sent, where, and
when again. The triggers of a retry: its worker was lost or stopped, nobody listened (PUBACK 0x10), a worker was busy,
the connection was lost, it or its reply was damaged on the way, or no reply came in the time of one attempt. All but
the last two cost nothing from the budget: there the window bounds what is sent again.
"""

from __future__ import annotations

import math

from mqinfer.client.fleet import Fleet, Way
from mqinfer.client.lane import Lane, Patience
from mqinfer.client.pending import Entry, PendingTable
from mqinfer.client.retry_budget import RetryBudget
from mqinfer.protocol.states import WorkerState, WorkerStatus
from mqinfer.protocol.types import InferResponse

__all__ = ["Dispatcher"]

_TRIAL_S = 2.0
"""How long a request that seems deadly waits for its verdict: by then workers that only lost their connection are back,
or this client's own connection is gone too."""
_NO_BUDGET_S = 0.1
"""How long a request that may not be sent again for want of budget waits for some."""


class Dispatcher:
    """Not thread-safe: its owner holds a lock. Times are readings of the owner's clock, in seconds."""

    def __init__(self, window: int, patience: Patience | None = None) -> None:
        """Begin with nothing.

        Args:
            window: Requests in flight at a time.
            patience: With silent workers.
        """
        self.table = PendingTable(window)
        self.fleet = Fleet(patience)
        self._patience = patience or Patience()
        self._budget = RetryBudget()
        self._check_at = math.inf
        self._looked_at = -math.inf
        self.withheld = 0
        """Retries that the budget did not allow at once."""

    def next(self, now: float) -> Entry | None:
        """Take the next request that can be sent, with its `lane` set; None where none can."""
        self._looked_at = now
        entry = self.table.next_to_send(now, lambda candidate: self._choose(candidate, now))
        if entry is None:
            return None
        request = entry.request
        if entry.lane:
            entry.retry_at = entry.lane.send(request.id, now, suspect=bool(entry.deaths))
        else:
            entry.retry_at = self.fleet.shared_retry(request.model_name, now)
        if entry.attempts == 1:
            self._budget.earn()
        self._check_at = min(self._check_at, entry.retry_at)
        return entry

    def next_wake(self) -> float | None:
        """Tell when `wake` or `next` has something to do, at the latest; it may have passed since the last look."""
        opening = self.fleet.next_opening(self._looked_at) if self.table.waiting else None
        times = [time for time in (self.table.next_alarm(), opening, self._check_at) if time is not None]
        soonest = min(times)
        return None if soonest == math.inf else soonest

    def wake(self, now: float) -> list[Entry]:
        """Take out what has expired, or what two workers died on; let what is overdue be sent again."""
        self._looked_at = now
        expired = self.table.wake(now)
        if now >= self._check_at:
            self._look_for_silence(now)
        return expired

    def heard(self, response: InferResponse, now: float) -> None:
        """Note what a reply, late or not, tells of its worker."""
        entry = self.table.in_flight_entry(response.id)
        if entry and entry.lane:
            entry.lane.forget(response.id)
            if entry.lane.worker == response.worker:
                entry.lane.travelled(max(0.0, now - entry.sent - response.timings.server / 1e9))
        elif entry:
            self.fleet.shared_heard(response.model_name, now - entry.sent)
        self.fleet.heard(response.worker, response.load, now)

    def unheard(self, request_id: str) -> None:
        """Note that nobody listens where a request was sent to: its lane is closed, and it is sent elsewhere."""
        entry = self.table.in_flight_entry(request_id)
        if entry and entry.lane:
            self.fleet.gone(entry.lane)
            self.table.requeue(request_id)

    def busy(self, request_id: str, now: float, pause: float = 0.0) -> bool:
        """Note that a worker turned a request away, for so many seconds; False where it did not come over a lane."""
        entry = self.table.in_flight_entry(request_id)
        if entry is None or entry.lane is None:
            return False
        entry.lane.busy(now, pause)
        return self.table.requeue(request_id)

    def damaged(self, request_id: str) -> None:
        """Note that a request or its reply came with flipped bits: it is sent again at once where the budget allows.

        The id may be damaged as well; at worst somebody else's request is sent twice.
        """
        entry = self.table.in_flight_entry(request_id)
        if entry:
            self._retry(entry)

    def state(self, state: WorkerState, now: float) -> None:
        """Take in a worker's state; what a lost or stopped worker had is sent elsewhere.

        Not so what two workers died on: unless one of them turns out to live, `wake` gives that out.
        """
        if state.status is WorkerStatus.READY:
            self.table.acquit(state.worker, state.incarnation)
        lane = self.fleet.update(state)
        if lane is None:
            return
        recalled = self.table.recall(lane)
        if state.status is WorkerStatus.STOPPED:
            return
        for entry in recalled:
            entry.deaths |= {(lane.worker, lane.boot)}
            if entry.is_deadly:
                self.table.hold(entry, now + _TRIAL_S)

    def disconnected(self) -> int:
        """Forget the workers, and put everything in flight back; returns how much."""
        recalled = len(self.table.recall())
        self.fleet.clear()
        return recalled

    def _choose(self, entry: Entry, now: float) -> Lane | Way:
        waiting = self.table.waiting_with(entry)
        suspect = bool(entry.deaths)
        return self.fleet.choose(*entry.channel, now, waiting=waiting, suspect=suspect, deadline=entry.deadline)

    def _look_for_silence(self, now: float) -> None:
        overdue = [entry for entry in self.table.overdue(now) if not self._is_only_late(entry, now)]
        for lane in {id(entry.lane): entry.lane for entry in overdue if entry.lane}.values():
            lane.timed_out(now)
        for entry in overdue:
            if not self._retry(entry):
                entry.retry_at = now + _NO_BUDGET_S
        self._check_at = self.table.next_overdue()

    def _retry(self, entry: Entry) -> bool:
        """Let a request be sent again at once if the budget allows it."""
        if not self._budget.spend():
            self.withheld += 1
            return False
        return self.table.requeue(entry.request.id)

    def _is_only_late(self, entry: Entry, now: float) -> bool:
        """Tell whether a request gets more time, since its worker answers others: over a slow way all come late."""
        if entry.lane is None or not entry.lane.is_lively(now) or now - entry.sent >= self._patience.attempt_unknown:
            return False
        entry.retry_at = now + self._patience.attempt
        return True
