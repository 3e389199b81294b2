"""JPEG quality and size of the frames on a thin link or with slow workers: first quality is lowered, then size. Pure.

A stream of the policy `latest` loses frames when it is too fast. If fewer results a second come back than the user asks
for, its frames are sent smaller, one step at a time within the user's bounds, and larger again when enough come back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mqinfer.value_object import value_object

_PERIOD_S = 2.0
"""Frames are counted for this long before each decision."""
_GOOD_PERIODS = 3
"""Good periods in a row that lead one step up."""
_ENOUGH = 0.95
"""A period leads one step down if `rate < _ENOUGH * goal`."""
_GOOD = 1.3
"""A period is good if `rate >= min(_GOOD * goal, _ENOUGH * rate of the source)`."""
_QUALITY_STEP = 10
"""Each step down lowers the JPEG quality by this."""
_SCALE_STEP = 0.8
"""Below the least quality each step down multiplies width and height by this."""


@dataclass(frozen=True, slots=True)
class QualityBounds:
    """What the user allows.

    Attributes:
        min_rate: Results a second below which quality and size are lowered; 0 keeps both.
        min_quality: Lowest JPEG quality, 1 to 100.
        min_scale: Smallest factor on width and height, above 0 up to 1.
    """

    min_rate: float = 0.0
    min_quality: int = 50
    min_scale: float = 0.5


@value_object()
class QualityStep:
    """How frames are sent: JPEG quality (None as configured), and a factor on width and height."""

    quality: int | None = None
    scale: float = 1.0


FULL_QUALITY = QualityStep()


class QualityLadder:
    """Chooses the step for one stream, full quality at first. Not thread-safe.

    Args:
        bounds: What the user allows.
        quality: Configured JPEG quality; None if frames do not travel as JPEG.
    """

    def __init__(self, bounds: QualityBounds, quality: int | None) -> None:
        self._bounds = bounds
        self._steps = _steps(bounds, quality)
        self._level = 0
        self._since: float | None = None
        self._frames = 0
        self._results = 0
        self._good = 0

    @property
    def step(self) -> QualityStep:
        """How the next frame is sent."""
        return self._steps[self._level]

    def on_frame(self, now: float) -> None:
        """Count a frame of the source, at a time in seconds, and decide at the end of a period."""
        if self._since is None:
            self._since = now
        self._frames += 1
        if now - self._since >= _PERIOD_S:
            self._decide(now - self._since)
            self._since, self._frames, self._results = now, 0, 0

    def on_result(self) -> None:
        """Count a frame that came back with a result."""
        self._results += 1

    def _decide(self, seconds: float) -> None:
        goal = min(self._bounds.min_rate, self._frames / seconds)
        rate = self._results / seconds
        if (self._results + 1) / seconds < _ENOUGH * goal:  # one may be on its way
            self._good = 0
            self._level = min(self._level + 1, len(self._steps) - 1)
        elif rate >= min(_GOOD * goal, _ENOUGH * self._frames / seconds):
            self._good += 1
            if self._good >= _GOOD_PERIODS:
                self._good = 0
                self._level = max(self._level - 1, 0)
        else:
            self._good = 0


def _steps(bounds: QualityBounds, quality: int | None) -> list[QualityStep]:
    """List the steps from full quality down."""
    qualities: Sequence[int] = ()
    if quality is not None:
        qualities = range(quality - _QUALITY_STEP, bounds.min_quality - 1, -_QUALITY_STEP)
    steps = [FULL_QUALITY, *map(QualityStep, qualities)]
    scale = _SCALE_STEP
    while scale >= bounds.min_scale:
        steps.append(QualityStep(qualities[-1] if qualities else None, scale))
        scale *= _SCALE_STEP
    return steps
