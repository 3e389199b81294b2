"""One worker as a client sees it: what it said of itself, what it owes, and when it would finish one request more.

All pure: times are the readings of the owner's clock, in seconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from mqinfer.protocol.states import ServedModel, WorkerState, WorkerStatus
from mqinfer.protocol.types import WorkerLoad

__all__ = ["Lane", "Patience", "doubled"]

_FIRST_WINDOW = 1
"""Until a worker's first reply tells how many other clients it serves."""
_MARGIN = 1.25
"""A reply is expected in time if there is so many times the time that it is expected to take."""
_WEIGHT = 0.2
"""Weight of the newest reading in the smoothed time on the way."""
_MOST = 3.0
"""One reading counts as so many times the smoothed one at most: a worker that was halted was not far away."""
_BETTER = 0.95
"""A reply that lowers the time of one request so far tells that its worker is on the mend: at a worker's smoothing it
took three quarters of that time or less."""
_DOUBLINGS = 30
"""Of a pause, at most."""
_LONGEST_PAUSE_S = 1.0
"""A busy worker is asked again after this, whatever it says."""


@dataclass(frozen=True, slots=True)
class Patience:
    """When a worker's silence means something. Times in seconds, factors on the time that a reply was expected to take.

    Attributes:
        doubt: Silence after which a worker gets nothing more, at least.
        doubt_factor: The same, as a factor.
        attempt: Silence after which a request is sent to another worker, at least.
        attempt_factor: The same, as a factor.
        attempt_shared: The same on a model's channel, where a worker is not known to have the request.
        attempt_unknown: The same where the worker has not said how long a request takes.
        quarantine: How long a worker that let attempts time out gets nothing; doubled each time, and then one request.
        quarantine_most: The longest quarantine.
        probe: How long a worker that seems slow and has nothing to do is left alone before it gets one request; doubled
            each time, unless its replies get better.
        probe_most: The longest such time.
    """

    doubt: float = 0.05
    doubt_factor: float = 3.0
    attempt: float = 1.0
    attempt_factor: float = 3.0
    attempt_shared: float = 3.0
    attempt_unknown: float = 10.0
    quarantine: float = 1.0
    quarantine_most: float = 30.0
    probe: float = 5.0
    probe_most: float = 60.0


@dataclass(slots=True)
class _Sent:
    """One unanswered request: when it was sent, how long it was expected to take, whether a worker died on it."""

    at: float
    expected: float
    suspect: bool


@dataclass(slots=True, eq=False)
class Lane:
    """A worker.

    Attributes:
        worker: Its name.
        patience: With its silence.
        boot: The number of its start.
        models: What it serves.
        open: Whether it takes requests.
        capacity: Requests that it takes from everybody.
        window: Requests that it lets this client have unanswered; 0 until it has said.
        service: Smoothed time of one request, in seconds; 0 while unknown.
        way: Smoothed time that a request and its reply are on the way, in seconds; 0 while unknown.
        others: Requests of other clients in its hands when it last spoke.
        closed_until: It was busy: nothing is sent before.
        turn: Grows with each request that it is chosen for, over all lanes.
    """

    worker: str
    patience: Patience = field(default_factory=Patience)
    boot: int = 0
    models: tuple[ServedModel, ...] = ()
    open: bool = False
    capacity: int = 1
    window: int = 0
    service: float = 0.0
    way: float = 0.0
    others: int = 0
    closed_until: float = 0.0
    turn: int = 0
    _strikes: int = 0
    _quarantined_until: float = 0.0
    _probes: int = 0
    _heard_at: float = -math.inf
    _outstanding: dict[str, _Sent] = field(default_factory=dict)

    @property
    def outstanding(self) -> int:
        """Requests that were sent to it and are unanswered."""
        return len(self._outstanding)

    @property
    def has_suspect(self) -> bool:
        """Whether one of them is a request that a worker died on."""
        return any(sent.suspect for sent in self._outstanding.values())

    def serves(self, model: str, version: str | None) -> bool:
        """Tell whether it serves a model, in the version asked for or, where none is, in the default one."""
        return any(
            each.name == model and (each.default if version is None else each.version == version)
            for each in self.models
        )

    def expected(self) -> float:
        """Tell how long a request sent now would take: (outstanding + others + 1) x service time, in seconds."""
        return (len(self._outstanding) + self.others + 1) * self.service

    def is_in_time(self, deadline: float, now: float) -> bool:
        """Tell whether a request that is sent now would be answered by its deadline, as far as can be known."""
        return now + _MARGIN * self.expected() + self.way <= deadline

    def is_usable(self, now: float) -> bool:
        """Tell whether it may be counted on: it takes requests, and its silence gives no doubt."""
        return self.open and now >= self.opens_at and not self.is_in_doubt(now)

    @property
    def opens_at(self) -> float:
        """When it may get requests again, after it was busy or silent."""
        return max(self.closed_until, self._quarantined_until)

    @property
    def is_full(self) -> bool:
        """Whether it has as many unanswered requests as it may."""
        if self._strikes:
            return bool(self._outstanding)  # one at a time, as a probe
        return len(self._outstanding) >= (self.window or max(1, min(self.capacity, _FIRST_WINDOW)))

    def is_in_doubt(self, now: float) -> bool:
        """Tell whether its oldest unanswered request should have been answered long ago, and nothing else was."""
        oldest = next(iter(self._outstanding.values()), None)
        if oldest is None:
            return False
        allowed = max(self.patience.doubt, self.patience.doubt_factor * oldest.expected)
        return now - max(oldest.at, self._heard_at) > (allowed if self.service else self.patience.attempt_unknown)

    def send(self, request_id: str, now: float, *, suspect: bool = False) -> float:
        """Note a request that is being sent; gives the time at which to send it elsewhere."""
        expected = self.expected() + self.way
        self._outstanding[request_id] = _Sent(now, expected, suspect)
        if not self.service:
            return now + self.patience.attempt_unknown
        return now + max(self.patience.attempt, self.patience.attempt_factor * expected)

    def forget(self, request_id: str) -> None:
        """Note that a request is not unanswered any more, or not its concern."""
        self._outstanding.pop(request_id, None)

    def travelled(self, seconds: float) -> None:
        """Note how long a request and its reply were on the way; over a slow link that is what its turn takes there."""
        if self.way:
            seconds = min(seconds, max(_MOST * self.way, self.patience.attempt / 2))
        self.way += (seconds - self.way) * (_WEIGHT if self.way else 1.0)

    def heard(self, load: WorkerLoad, now: float) -> None:
        """Note a reply, however late: the worker lives, and says how busy it is."""
        self._strikes, self._quarantined_until, self._heard_at = 0, 0.0, now
        self.others = max(0, load.depth - 1 - len(self._outstanding))  # the depth counts the request that it answers
        if load.service_time_us:
            service = load.service_time_us / 1e6
            if service < _BETTER * self.service:
                self._probes = 0
            self.service = service
        if load.window:
            self.window = load.window

    def is_lively(self, now: float) -> bool:
        """Tell whether it has answered something just now: what it has not answered is on a slow way, if not lost."""
        return now - self._heard_at < self.patience.attempt / 2

    def wants_probe(self, now: float) -> bool:
        """Tell whether what is known of it is so old that one request should find out anew."""
        silence = now - self._heard_at
        if silence < self.patience.probe or self._outstanding:  # nearly always
            return False
        return silence >= doubled(self.patience.probe, self._probes, self.patience.probe_most)

    def chosen(self, turn: int, *, probe: bool) -> None:
        """Note that it gets a request, as a probe or because it is expected to finish it first."""
        self.turn = turn
        self._probes = self._probes + 1 if probe else 0

    def timed_out(self, now: float) -> None:
        """Note that a request got no reply in its time: the worker is in quarantine, longer each time."""
        self._strikes += 1
        pause = doubled(self.patience.quarantine, self._strikes - 1, self.patience.quarantine_most)
        self._quarantined_until = now + pause

    def busy(self, now: float, pause: float = 0.0) -> None:
        """Note that it turned a request away: its window is zero for the time of one request, or as long as it says."""
        self.closed_until = max(self.closed_until, now + max(self.service, min(pause, _LONGEST_PAUSE_S), 0.001))

    def update(self, state: WorkerState) -> None:
        """Take over what it says of itself."""
        if state.incarnation != self.boot:
            self._strikes, self._quarantined_until, self.closed_until, self.others = 0, 0.0, 0.0, 0
        self.boot, self.models = state.incarnation, state.models
        self.open = state.status is WorkerStatus.READY
        self.capacity = state.capacity
        if state.service_time_us:
            self.service = state.service_time_us / 1e6


def doubled(first: float, times: int, most: float) -> float:
    """Double a pause so many times, which may be for days: a float ends after a thousand."""
    return min(first * (1 << min(times, _DOUBLINGS)), most)
