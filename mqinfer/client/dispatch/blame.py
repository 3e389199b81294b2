"""Which requests are to blame for the end of workers: two crashes are enough, and four losses.

A worker that is lost may only have lost its connection: what it had is suspect until its server reports a crash, or it
is back. A report that names the requests which the process worked on settles it: those crashed it, all others did not,
wherever they are by then.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from mqinfer.client.dispatch.fleet import Fleet
from mqinfer.client.dispatch.lane import Lane
from mqinfer.client.dispatch.pending import Entry, PendingTable, Place, Start
from mqinfer.protocol.errors import Poison

__all__ = ["Blame", "poison"]

_MOST_CRASHES = 2
"""Workers that may crash on a request; then it ends as `poison`."""
_MOST_LOSSES = 4
"""Workers that may be lost with a request, without a report and without coming back; then it ends as `poison`, too.

A server that ends with its worker, as on a machine that runs out of memory, reports no crash. Partitions don't come to
that number: a worker that is cut off is silent, so what it has is sent elsewhere after a second, and it is not counted
once it is back. In 1,440 simulated partitions of 4 to 16 workers no request was in flight at more than two lost ones.
"""
_RETURN_S = 2.0
"""A request that two workers were lost with is set aside for this time: their servers report, or they are back."""


class Blame:
    """Counts crashes, losses and silence in the entries of a table. Not thread-safe."""

    def __init__(self, table: PendingTable, fleet: Fleet) -> None:
        self._table = table
        self._fleet = fleet
        self._losses: set[Start] = set()  # of pending requests, as long as no crash is reported
        self._displaced: set[Start] = set()  # of them those that another process took the name of

    def lost(self, lane: Lane, recalled: Sequence[Entry], now: float, *, displaced: bool) -> None:
        """Record that a worker is lost: each request that it had may have been its end.

        Args:
            lane: The worker.
            recalled: What was in flight at it, and is queued again.
            now: The clock's reading.
            displaced: Whether all that is known is that another process serves under its name.
        """
        start = (lane.worker, lane.incarnation)
        for entry in recalled:
            # One that the broker has not acknowledged never reached the worker: so the wills of all workers, which a
            # broker publishes while it shuts down, count once at most.
            if entry.acknowledged == entry.attempts:
                entry.lost_on |= {start}
                if len(entry.lost_on | self._silent_on(entry)) >= _MOST_CRASHES:
                    self._table.back_off(entry, now + _RETURN_S)
        for entry in self._table.entries.values():
            if lane in entry.silent:  # before it is sent to a third one, a crash has its time to be reported
                entry.retry_at = max(entry.retry_at, now + _RETURN_S)
                self._table.postpone(entry, now + _RETURN_S)
        self._losses = {each for entry in self._table.entries.values() for each in entry.lost_on - entry.crashed_on}
        self._displaced = (self._displaced | {start} if displaced else self._displaced) & self._losses

    def is_hopeless(self, entry: Entry) -> bool:
        """Return whether so many workers were lost with a request, and are not back, that it goes to no other one."""
        return len(entry.lost_on - self._displaced) >= _MOST_LOSSES

    def is_back(self, start: Start) -> None:
        """Send on what was set aside because of a worker that is back in the same incarnation: it did not crash."""
        if start in self._losses:
            self._exculpate(start, [entry for entry in self._table.entries.values() if start in entry.lost_on])

    def crashed(self, start: Start, running: Collection[str], now: float) -> list[Entry]:
        """Count a crash for the requests that the process worked on, and return those that are poison.

        Args:
            start: The process.
            running: What its server names, requests of other clients among it; empty where it can't name all: then
                everything counts that it was lost with.
            now: The clock's reading.
        """
        entries = self._table.entries
        if running:
            culprits = [entries[each] for each in running if each in entries]
            named = set(running)
            others = [each for each in entries.values() if start in each.lost_on and each.request.id not in named]
            self._exculpate(start, others)
        elif start in self._losses:
            culprits = [entry for entry in entries.values() if start in entry.lost_on]
        else:
            return []
        self._losses.discard(start)
        for entry in culprits:
            entry.lost_on |= {start}
            entry.crashed_on |= {start}
            if entry.lane is not None:
                entry.lane.suspect(entry.request.id)
            if entry.place is Place.QUEUED and self.holds(entry):
                self._table.back_off(entry, now + _RETURN_S)
        return [entry for entry in culprits if len(entry.crashed_on) >= _MOST_CRASHES]

    def holds(self, entry: Entry) -> bool:
        """Return whether no other worker gets a request: two have crashed on it, or do not reply since they have it."""
        return len(entry.crashed_on | self._silent_on(entry)) >= _MOST_CRASHES

    def clear(self) -> None:
        """Forget the losses of a connection: its wills are void."""
        self._losses.clear()
        self._displaced.clear()

    def _silent_on(self, entry: Entry) -> set[Start]:
        """Return which workers that let a request's attempt time out are there and have replied to nothing since."""
        for lane, since in list(entry.silent.items()):
            if lane.replied_at >= since or self._fleet.lane(lane.worker) is not lane:
                del entry.silent[lane]
        return {(lane.worker, lane.incarnation) for lane in entry.silent}

    def _exculpate(self, start: Start, entries: Sequence[Entry]) -> None:
        self._losses.discard(start)
        for entry in entries:
            entry.lost_on -= {start}
            entry.crashed_on -= {start}
            if len(entry.lost_on) < _MOST_CRASHES and entry.place is Place.BACKING_OFF:
                self._table.requeue(entry)


def poison(entry: Entry) -> Poison:
    """Return the error that a request ends with."""
    if len(entry.crashed_on) >= _MOST_CRASHES:
        return Poison(f"the workers {_names(entry.crashed_on)} crashed while they had it")
    return Poison(f"the workers {_names(entry.lost_on)} were lost while they had it, and none of them is back")


def _names(starts: Collection[Start]) -> str:
    return ", ".join(sorted(worker for worker, _ in starts))
