"""Statistics of a server's processes: a query to all of them, and sums that outlive each process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field

from mqinfer.cloud_worker.supervision.child import Child
from mqinfer.models.repository import ModelVersion
from mqinfer.protocol.control import ModelStatistics

Key = tuple[str, int]
"""Model and version."""


@dataclass(frozen=True, slots=True)
class ServerStatistics:
    """Statistics of a server's processes.

    Attributes:
        models: Sums over the processes of each model and version.
        missing: Names of the processes that did not reply in time.
        totals: The same with what ended processes have counted, and the last reply of those that are missing.
        crashes: How many processes have crashed, by model and version.
    """

    models: dict[Key, ModelStatistics]
    missing: tuple[str, ...] = ()
    totals: dict[Key, ModelStatistics] = field(default_factory=dict)
    crashes: dict[Key, int] = field(default_factory=dict)


class Totals:
    """What a server's processes have counted, those that have ended included: a counter never goes back.

    What a process that crashed had counted since its last reply is lost. A version without any process is forgotten.

    Attributes:
        crashes: How many processes have crashed, by model and version.
        queries: Queries that are open.
    """

    def __init__(self) -> None:
        self.queries: list[StatisticsQuery] = []
        self._ended: dict[Key, ModelStatistics] = {}
        self.crashes: Counter[Key] = Counter()

    def ended(self, child: Child) -> None:
        """Add what a process that has ended had counted."""
        key = _key(child)
        _add(self._ended, key, child.statistics.ended())
        child.statistics = ModelStatistics()
        self.crashes[key] += bool(child.crashed)

    def keep(self, children: Collection[Child]) -> None:
        """Forget versions that have no process any more."""
        known = {_key(child) for child in children}
        known |= {key for child in children for key in _parts(child.spec.found)}
        for counts in (self._ended, self.crashes):
            for key in counts.keys() - known:
                del counts[key]

    def sums(self, children: Iterable[Child]) -> dict[Key, ModelStatistics]:
        """Return the sums over all processes, by model and version."""
        found = dict(self._ended)
        for child in children:
            _add(found, _key(child), child.statistics)
        return found


def _add(sums: dict[Key, ModelStatistics], key: Key, found: ModelStatistics) -> None:
    """Add what a process has counted to the sums of its model, and of the models that were its steps."""
    for name, version, counted in ((*key, found), *found.steps):
        sums[name, version] = sums.get((name, version), ModelStatistics()) + counted


def _parts(found: ModelVersion | None) -> Iterator[Key]:
    """Iterate over the models that an ensemble is made of."""
    for part in found.parts if found else ():
        yield part.name, part.version
        yield from _parts(part)


def _key(child: Child) -> Key:
    return child.spec.model, child.spec.version


@dataclass(slots=True, eq=False)
class StatisticsQuery:
    """A query for the statistics of several processes, with a deadline.

    Attributes:
        deadline: When it ends without the missing replies, on the supervisor's clock.
        waiting: Processes that have not replied.
        future: Receives the sums.
    """

    deadline: float
    waiting: list[Child]
    future: Future[ServerStatistics] = field(default_factory=Future)
    _models: dict[Key, ModelStatistics] = field(default_factory=dict)

    def add(self, child: Child, statistics: ModelStatistics) -> None:
        """Add a process's reply to the sum of its model; ignore a second reply of the same process."""
        if child not in self.waiting:
            return
        self.waiting.remove(child)
        _add(self._models, _key(child), statistics)

    def is_over(self, now: float) -> bool:
        """Whether every process has replied or exited, or the deadline has passed."""
        return now >= self.deadline or all(child.run is None for child in self.waiting)

    def finish(self, totals: Totals, children: Iterable[Child]) -> None:
        """Complete the future with the replies so far and the names of the missing processes; `children` are all."""
        missing = tuple(child.name for child in self.waiting)
        self.future.set_result(ServerStatistics(self._models, missing, totals.sums(children), dict(totals.crashes)))
