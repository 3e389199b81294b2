"""Which requests are to blame for the end of workers: two crashes are enough.

A worker that is lost may only have lost its connection: what it had may have been its end until its server reports a
crash, or it is back. A report that names the requests which the process worked on settles it: those crashed it, all
others did not, wherever they are by then.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from mqinfer.client.dispatch.fleet import Fleet
from mqinfer.client.dispatch.lane import Lane
from mqinfer.client.dispatch.pending import PendingRequest, PendingTable, RequestPlace, Start, Trail
from mqinfer.protocol.errors import Poison

_MOST_CRASHES = 2
"""Workers that may crash on a request; then it ends as `poison`."""
_RETURN_S = 2.0
"""A request that two workers were lost with is set aside for this time: their servers report, or they are back."""


class Blame:
    """Counts crashes, losses and silence in the entries of a table. Not thread-safe."""

    def __init__(self, table: PendingTable, fleet: Fleet) -> None:
        self._table = table
        self._fleet = fleet

    def lost(self, lane: Lane, recalled: Sequence[PendingRequest], now: float) -> None:
        """Record that a worker is lost: each request that it had may have been its end.

        Args:
            lane: The worker.
            recalled: What was in flight at it, and is queued again.
            now: The clock's reading.
        """
        for entry in recalled:
            # One that the broker has not acknowledged never reached the worker: so the wills of all workers, which a
            # broker publishes while it shuts down, count once at most.
            trail = entry.trail
            if trail.acknowledged == entry.attempts:
                trail.lost_on |= {(lane.worker, lane.incarnation)}
                if len(trail.lost_on | self._silent_on(trail)) >= _MOST_CRASHES:
                    self._table.back_off(entry, now + _RETURN_S)
        for entry in self._table.entries.values():
            if lane in entry.trail.silent:  # before it is sent to a third one, a crash has its time to be reported
                self._table.postpone(entry, now + _RETURN_S)

    def is_back(self, start: Start) -> None:
        """Send on what was set aside because of a worker that is back in the same incarnation: it did not crash."""
        self._exculpate(start, [entry for entry in self._lost_on(start) if start not in entry.trail.crashed_on])

    def crashed(self, start: Start, running: Collection[str], now: float) -> list[PendingRequest]:
        """Count a crash for the requests that the process worked on, and return those that are poison.

        Args:
            start: The process.
            running: What its server names, requests of other clients among it; empty where it can't name all: then
                everything counts that it was lost with.
            now: The clock's reading.
        """
        culprits = self._lost_on(start)
        if running:
            self._exculpate(start, [entry for entry in culprits if entry.request.id not in running])
            culprits = [entry for each in running if (entry := self._table.entries.get(each))]
        for entry in culprits:
            entry.trail.lost_on |= {start}
            entry.trail.crashed_on |= {start}
            if entry.place is RequestPlace.QUEUED and self.holds(entry):
                self._table.back_off(entry, now + _RETURN_S)
        return [entry for entry in culprits if len(entry.trail.crashed_on) >= _MOST_CRASHES]

    def holds(self, entry: PendingRequest) -> bool:
        """Return whether no other worker gets a request: two have crashed on it, or do not reply since they have it."""
        return len(entry.trail.crashed_on | self._silent_on(entry.trail)) >= _MOST_CRASHES

    def suspect_lanes(self) -> set[Lane]:
        """Return the workers at which requests are in flight that another one was lost with."""
        return {each.lane for each in self._table.in_flight.values() if each.lane and each.trail.lost_on}

    def _lost_on(self, start: Start) -> list[PendingRequest]:
        return [entry for entry in self._table.entries.values() if start in entry.trail.lost_on]

    def _silent_on(self, trail: Trail) -> set[Start]:
        """Return which workers that let a request's attempt time out are there and have replied to nothing since."""
        for lane, since in list(trail.silent.items()):
            if lane.replied_at >= since or self._fleet.lane(lane.worker) is not lane:
                del trail.silent[lane]
        return {(lane.worker, lane.incarnation) for lane in trail.silent}

    def _exculpate(self, start: Start, entries: Sequence[PendingRequest]) -> None:
        for entry in entries:
            entry.trail.lost_on -= {start}
            entry.trail.crashed_on -= {start}
            if len(entry.trail.lost_on) < _MOST_CRASHES and entry.place is RequestPlace.BACKING_OFF:
                self._table.requeue(entry)


def poison(entry: PendingRequest) -> Poison:
    """Return the error that a request ends with."""
    workers = ", ".join(sorted(worker for worker, _ in entry.trail.crashed_on))
    return Poison(f"the workers {workers} crashed while they had it")
