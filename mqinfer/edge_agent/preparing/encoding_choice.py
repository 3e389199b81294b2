"""Which of several encodings a stream's frames travel in: the one that a frame reaches the model soonest in. Pure.

What an encoding costs is predicted, `edge + worker + bytes * link`, from what was measured: the time of both sides and
the bytes of its frames, and for the link a line through the transit times of frames of different sizes. Nothing that
would be much slower is tried, so a thin link never carries a raw frame for curiosity. The quality ladder is another
thing: it goes below what the user chose, and only where `--min-rate` allows it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from mqinfer.smoothing import smoothed

_WEIGHT = 0.3
"""A new measurement moves an average by this share of the difference."""
_DECAY = 0.95
"""Each transit counts this much less with every later one."""
_SPREAD = 0.1
"""The line through the transits has a slope of its own once sizes vary by this share of their mean."""
_LOSSY = 1.25
"""An encoding that loses something must be faster by this factor than one that does not."""
_SWITCH = 0.8
"""Another encoding is chosen if it costs less than this share of the present one."""
_WORTH = 1.5
"""An encoding is tried if its prediction is below this multiple of the present one."""
_TRIAL = 4
"""Frames of a trial."""
_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0
"""Pause before a trial; doubled after each that changes nothing."""


@dataclass(slots=True, eq=False)
class EncodingCandidate:
    """One encoding that may be chosen.

    Attributes:
        name: As of `--encoding`.
        is_lossy: Whether the model gets another picture than without it.
        share: Of a raw frame's bytes, as long as nothing was measured.
        size: Bytes of a frame, smoothed; 0 while unknown.
        edge: Seconds of preparing a frame, smoothed.
        worker: Seconds of decoding and processing one in the worker, smoothed.
        samples: Frames that came back.
        tried: When it was tried last.
    """

    name: str
    is_lossy: bool
    share: float
    size: float = 0.0
    edge: float = 0.0
    worker: float = 0.0
    samples: int = 0
    tried: float = -1.0


@dataclass(slots=True)
class _Link:
    """A line through transit times by size, the newest counting most: sums of a weighted least-squares fit."""

    sums: list[float] = field(default_factory=lambda: [0.0] * 5)

    def add(self, size: float, seconds: float) -> None:
        new = (1.0, size, seconds, size * size, size * seconds)
        self.sums = [_DECAY * old + each for old, each in zip(self.sums, new, strict=True)]

    @property
    def seconds_per_byte(self) -> float:
        """Return its slope; while sizes are alike all of the transit counts as the bytes', which is the upper bound."""
        count, sizes, seconds, squares, products = self.sums
        if not count or not sizes:
            return 0.0
        variance = squares / count - (sizes / count) ** 2
        if variance <= (_SPREAD * sizes / count) ** 2:
            return seconds / sizes
        slope = (products / count - sizes * seconds / count**2) / variance
        return min(max(slope, 0.0), seconds / sizes)


class EncodingChoice:
    """Chooses for one stream. Not thread-safe. Times are in seconds.

    Args:
        candidates: At least one; the first is chosen at first, and their order is that of trials.
    """

    def __init__(self, candidates: Sequence[EncodingCandidate]) -> None:
        self._candidates = {each.name: each for each in candidates}
        self._current = candidates[0]
        self._link = _Link()
        self._raw_size = 0.0
        self._trial: EncodingCandidate | None = None
        self._left = 0
        self._pause = _PAUSE_S
        self._trial_at: float | None = None

    @property
    def current(self) -> str:
        """The encoding that is chosen at present."""
        return self._current.name

    def next(self, now: float, possible: Collection[str]) -> str:
        """Return the encoding of the next frame: one of the candidates that suit it, of which there is one at least."""
        if self._current.name not in possible:
            self._current = next(each for name, each in self._candidates.items() if name in possible)
        if self._trial_at is None:
            self._trial_at = now + self._pause
        if not self._left and now >= self._trial_at and self._current.samples:
            self._begin_trial(now, possible)
        if self._left and self._trial and self._trial.name in possible:
            self._left -= 1
            return self._trial.name
        return self._current.name

    def encoded(self, name: str, size: int, raw_size: int, seconds: float) -> None:
        """Record what preparing a frame took, and its bytes before and behind."""
        each, self._raw_size = self._candidates[name], raw_size
        each.edge = smoothed(each.edge, seconds, _WEIGHT)
        each.size = smoothed(each.size, size, _WEIGHT)

    def answered(self, name: str, size: int, transit: float, worker: float) -> None:
        """Record a frame that came back, and choose anew.

        Args:
            name: Its encoding.
            size: Bytes of its message.
            transit: Seconds on the network.
            worker: Seconds of decoding and processing it in the worker.
        """
        each = self._candidates[name]
        self._link.add(size, transit)
        each.worker = smoothed(each.worker, worker, _WEIGHT)
        each.samples += 1
        best = min((other for other in self._candidates.values() if other.samples), key=self._cost)
        if best is not self._current and self._cost(best) < _SWITCH * self._cost(self._current):
            self._current, self._pause, self._left = best, _PAUSE_S, 0

    def lost(self, size: int, seconds: float) -> None:
        """Record a frame without a result: the link, if nothing else, did not carry it in that time."""
        self._link.add(size, seconds)
        self._left = 0

    def _begin_trial(self, now: float, possible: Collection[str]) -> None:
        bound = _WORTH * self._cost(self._current)
        others = [each for name, each in self._candidates.items() if name in possible and each is not self._current]
        worth = [each for each in others if self._cost(each) < bound]
        self._trial = min(worth, key=lambda each: each.tried, default=None)
        self._trial_at = now + self._pause
        if self._trial is None or self._trial.samples:  # all were tried once
            self._pause = min(2 * self._pause, _LONGEST_PAUSE_S)
        if self._trial:
            self._trial.tried, self._left = now, _TRIAL

    def _cost(self, each: EncodingCandidate) -> float:
        """Return the seconds that a frame should take to reach the model, more for an encoding that loses something."""
        size = each.size or each.share * self._raw_size
        seconds = each.edge + each.worker + size * self._link.seconds_per_byte
        return seconds * (_LOSSY if each.is_lossy else 1.0)
