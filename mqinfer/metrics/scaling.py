"""How many worker processes a model needs: one rule, for workers, the gateway and the simulation that chose it.

    flow   = requests that come a second * seconds of one   (workers that they keep busy)
    wanted = ceil(flow + pending * seconds of one / drain_s), at most growth * busy, and the largest of the last hold_s

`busy` is how many workers are kept busy by what they answer. A lag that nothing proves counts no further: a client that
claims a large one and sends nothing starts one worker, and no second one. Pure: the owner passes the clock's reading.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mqinfer.client.registry import Registry
from mqinfer.metrics.lag import Lag
from mqinfer.protocol.states import WorkerState
from mqinfer.protocol.types import Outcome

_RATE_S = 6.0
"""Rates are means over so many seconds at least: states come every two."""
_WORK = (Outcome.OK, Outcome.ERROR)
"""Outcomes of requests that kept a worker busy."""


@dataclass(frozen=True, slots=True)
class ScalingRule:
    """How many workers a load calls for.

    Attributes:
        drain_s: What waits is to be answered within so many seconds.
        hold_s: A worker is needed for so long after it was last.
        growth: Most workers for each one that is kept busy.
    """

    drain_s: float = 30.0
    hold_s: float = 20.0
    growth: float = 4.0


class Scaler:
    """The rule for one model, with what it remembers: rates, and how many workers were needed of late."""

    def __init__(self, rule: ScalingRule | None = None) -> None:
        """Begin with nothing known.

        Args:
            rule: None for that which the simulation chose.
        """
        self.rule = rule or ScalingRule()
        self._readings: deque[tuple[float, int, int]] = deque()  # time, requests answered since the start, pending
        self._needed: deque[tuple[float, int]] = deque()
        self._counted: dict[tuple[str, int], int] = {}  # what each start of a worker has answered
        self._answered = 0
        self._service_s = 0.0

    def update(self, now: float, lag: Lag, workers: Sequence[WorkerState]) -> int:
        """Return how many workers the model needs now, 0 included: the caller has bounds.

        Args:
            now: The clock's reading, in seconds.
            lag: What waits for the model.
            workers: The last states of its workers.
        """
        self._count(workers)
        self._readings.append((now, self._answered, lag.pending))
        while len(self._readings) > 1 and now - self._readings[1][0] >= _RATE_S:
            self._readings.popleft()
        self._needed.append((now, self._need(lag.pending)))
        while now - self._needed[0][0] > self.rule.hold_s:
            self._needed.popleft()
        return max(needed for _, needed in self._needed)

    def _count(self, workers: Sequence[WorkerState]) -> None:
        counted = {(each.worker, each.incarnation): sum(each.counters.get(it, 0) for it in _WORK) for each in workers}
        self._answered += sum(max(0, count - self._counted.get(key, 0)) for key, count in counted.items())
        self._counted = counted
        if times := [each.service_time_us for each in workers if each.service_time_us]:
            self._service_s = sum(times) / len(times) / 1e6

    def _need(self, pending: int) -> int:
        rule, service_s = self.rule, self._service_s
        (began, answered, waited), now = self._readings[0], self._readings[-1][0]
        if not pending and not self._counted:
            return 0
        done = self._answered - answered
        seconds = max(now - began, 1.0)
        flow = max(0, done + pending - waited) / seconds * service_s
        wanted = math.ceil(flow + pending * service_s / rule.drain_s)
        most = max(1, math.ceil(rule.growth * done / seconds * service_s))
        return min(most, max(wanted, int(pending > 0)))


class SiteScaler:
    """The rule for each model of a site."""

    def __init__(self) -> None:
        self._scalers: dict[str, Scaler] = {}

    def update(self, known: Registry, lags: Mapping[str, Lag], now: float) -> dict[str, int]:
        """Return how many workers each model needs now; whoever asks once a second follows most closely.

        Args:
            known: With the states of workers.
            lags: What waits, by model.
            now: The clock's reading, in seconds.
        """
        serving = defaultdict[str, list[WorkerState]](list)
        for worker in known.workers.values():
            for model in worker.serves:
                serving[model].append(worker)
        self._scalers = {model: self._scalers.get(model) or Scaler() for model in lags}
        return {model: scaler.update(now, lags[model], serving[model]) for model, scaler in self._scalers.items()}
