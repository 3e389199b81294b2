"""A canary that is watched is taken back by itself when its errors or its times leave a band beside the stable version.

Requests are dealt by their ids, so of two equal versions each request would have ended the same with the other one, and
of all that end badly between two looks a random part falls to the canary. How much more it gets is the evidence: the
likelihood of what it got if the odds of a bad end were `_RIVALS` times as large, over that if they were `_BAND` times.
Such ratios multiply over the looks to a number that ever reaches `_ENOUGH` with a chance of `1 / _ENOUGH` at most,
however often one looks, however many requests fail for both, and whenever they do (Ville's inequality; Johari and
others, Always Valid Inference, 2022). One look counts `_MOST` at most, so that neither a hiccup of a process decides,
nor some batches whose requests all fail together.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from mqinfer.cloud_worker.supervision.child import Phase
from mqinfer.cloud_worker.supervision.management import Management
from mqinfer.cloud_worker.supervision.statistics import Key, ServerStatistics
from mqinfer.cloud_worker.supervision.supervisor import Supervisor
from mqinfer.models.repository.traffic import Traffic
from mqinfer.protocol.control import Call, CallBody, ModelStatistics, Operation
from mqinfer.protocol.errors import MqinferError
from mqinfer.protocol.types import Outcome

log = logging.getLogger("mqinfer.cloud_worker")
_BAND = 2.0
_RIVALS = (8.0, 64.0)
_ENOUGH = 1000.0
_MOST = 2.0
_FAILED = (Outcome.ERROR, Outcome.EXPIRED)
_FEW = 100
"""Requests of the stable version before its usual time is known."""
_USUAL = 0.95
"""Part of its requests that the stable version answers within its usual time."""


class Evidence:
    """Whether bad ends are more frequent with the canary than the band allows. Pure."""

    def __init__(self) -> None:
        self._ratios = [1.0] * len(_RIVALS)

    def add(self, canary: tuple[int, int], stable: tuple[int, int]) -> bool:
        """Add what has ended since the last look; return whether it is enough.

        Args:
            canary: Its requests that ended badly, and all of them.
            stable: The same of the version beside it.
        """
        bad, ended = canary
        if (all_bad := bad + stable[0]) and ended and stable[1]:
            ways = [_log_ways(ended, k) + _log_ways(stable[1], all_bad - k) for k in range(all_bad + 1)]
            for number, rival in enumerate(_RIVALS):
                ratio = bad * math.log(rival / _BAND) - _log_sum(ways, rival) + _log_sum(ways, _BAND)
                self._ratios[number] *= math.exp(min(math.log(_MOST), ratio))
        return sum(self._ratios) / len(self._ratios) >= _ENOUGH


def _log_ways(among: int, count: int) -> float:
    """Return the logarithm of the number of ways to choose so many."""
    if count > among:
        return -math.inf
    return math.lgamma(among + 1) - math.lgamma(count + 1) - math.lgamma(among - count + 1)


def _log_sum(ways: Sequence[float], odds: float) -> float:
    terms = [each + count * math.log(odds) for count, each in enumerate(ways)]
    largest = max(terms)
    return largest + math.log(sum(math.exp(each - largest) for each in terms))


@dataclass(slots=True)
class CanaryTest:
    """One canary beside one stable version: failures and slow runs are judged apart. Pure.

    Attributes:
        canary: Model and version.
        stable: The same of the version beside it.
        is_over: Whether the canary has been taken back; processes of it may still run.
    """

    canary: Key
    stable: Key
    _failures: Evidence = field(default_factory=Evidence)
    _delays: Evidence = field(default_factory=Evidence)
    is_over: bool = False
    _before: ServerStatistics | None = None
    _usual: int = 0

    def add(self, found: ServerStatistics) -> str:
        """Add what the processes have counted; return why the canary is to be taken back, empty where it may stay."""
        before, self._before = self._before, found
        if before is None or self.is_over:
            return ""
        failed = [_failed(found, key, before) for key in (self.canary, self.stable)]
        if self._failures.add(*failed):
            return "its requests fail more often"
        runs = found.totals.get(self.stable, ModelStatistics()).histograms.get("compute_infer", ())
        if not self._usual:
            self._usual = _usual(runs)
        elif self._delays.add(*(_slow(found, key, before, self._usual) for key in (self.canary, self.stable))):
            return f"its runs take more than {2**self._usual / 1e6:.3g} ms more often"
        return ""


def _counts(found: ServerStatistics, key: Key) -> Mapping[str, int]:
    return found.totals.get(key, ModelStatistics()).counters


def _failed(found: ServerStatistics, key: Key, before: ServerStatistics) -> tuple[int, int]:
    """Return the requests of a version that have failed since a look before, and all; a crash counts as one."""
    new, old = _counts(found, key), _counts(before, key)
    ended = {outcome: max(0, new.get(outcome, 0) - old.get(outcome, 0)) for outcome in (Outcome.OK, *_FAILED)}
    crashed = max(0, found.crashes.get(key, 0) - before.crashes.get(key, 0))
    return sum(ended[each] for each in _FAILED) + crashed, sum(ended.values()) + crashed


def _slow(found: ServerStatistics, key: Key, before: ServerStatistics, usual: int) -> tuple[int, int]:
    """Return the runs of a version since a look before that took longer than usual, and all."""
    new, old = (each.totals.get(key, ModelStatistics()).histograms.get("compute_infer", ()) for each in (found, before))
    counts = [count - (old[bits] if bits < len(old) else 0) for bits, count in enumerate(new)]
    return max(0, sum(counts[usual + 1 :])), max(0, sum(counts))


def _usual(runs: Sequence[int]) -> int:
    """Return within how many bits of nanoseconds almost all runs stay; 0 while there are too few."""
    if sum(runs) < _FEW:
        return 0
    return next(bits for bits in range(len(runs)) if sum(runs[: bits + 1]) >= _USUAL * sum(runs))


class CanaryWatch:
    """Watches the canaries of one server. Not thread-safe: the control thread calls it."""

    def __init__(self, supervisor: Supervisor, management: Management) -> None:
        self._supervisor, self._management = supervisor, management
        self._tests: dict[str, CanaryTest] = {}
        self._asked: Future[ServerStatistics] | None = None

    def look(self) -> None:
        """Judge each canary that is watched by what came since the last look, and take it back where that is enough."""
        self._tests = {model: self._known(model, test) for model, test in self._watched()}
        asked = self._asked
        if asked is not None and not asked.done():
            return
        self._asked = self._supervisor.statistics() if self._tests else None
        if asked is not None and not asked.exception():
            for model, test in self._tests.items():
                if why := test.add(asked.result()):
                    self._take_back(model, test, why)

    def _known(self, model: str, test: CanaryTest) -> CanaryTest:
        """Return the test of a model that goes on, or this one where that is of other versions."""
        known = self._tests.get(model, test)
        return known if (known.canary, known.stable) == (test.canary, test.stable) else test

    def _watched(self) -> list[tuple[str, CanaryTest]]:
        policies: dict[str, Traffic] = {
            view.spec.model: view.spec.found.traffic
            for view in self._supervisor.processes
            if view.phase is Phase.READY and view.spec.found
        }
        return [
            (model, CanaryTest((model, traffic.canary), (model, traffic.stable)))
            for model, traffic in policies.items()
            if traffic.watch and traffic.canary is not None and traffic.stable is not None
        ]

    def _take_back(self, model: str, test: CanaryTest, why: str) -> None:
        of, than = test.canary[1], test.stable[1]
        log.warning("%s: canary version %d is taken back: %s than those of version %d", model, of, why, than)
        try:
            self._management.execute(Call(Operation.ROLLBACK, model, str(of)), CallBody())
            test.is_over = True
        except MqinferError as error:
            log.warning("%s: canary version %d can't be taken back: %s", model, of, error)
