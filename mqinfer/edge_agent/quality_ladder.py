"""What an edge gives up when the way or the workers are too slow: first frames, then JPEG quality, then size. Pure.

A stream of the policy `latest` loses frames by itself. Where fewer come through than the user's least frame rate, the
frames are made smaller, a step at a time, within the user's bounds; and larger again where more come through than need.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["FULL", "QualityBounds", "QualityLadder", "Step"]

_PERIOD_S = 2.0
"""How long frames are counted before the next decision."""
_GOOD_PERIODS = 3
"""Periods with frames to spare before a step back is tried."""
_SPARE = 1.3
_ENOUGH = 0.95
_QUALITY_STEP = 10
_SCALE_STEP = 0.8


@dataclass(frozen=True, slots=True)
class QualityBounds:
    """What the user allows.

    Attributes:
        min_rate: Frames a second that are to be answered; 0: frames are dropped, and nothing else is given up.
        min_quality: Of JPEG, 1 to 100.
        min_scale: Of width and height, above 0 up to 1.
    """

    min_rate: float = 0.0
    min_quality: int = 50
    min_scale: float = 0.5


@dataclass(frozen=True, slots=True)
class Step:
    """How frames are sent: JPEG quality (None: as configured), and a factor on width and height."""

    quality: int | None = None
    scale: float = 1.0


FULL = Step()


class QualityLadder:
    """Decides for one stream. Not thread-safe."""

    def __init__(self, bounds: QualityBounds, quality: int | None) -> None:
        """Begin with full quality.

        Args:
            bounds: What the user allows.
            quality: JPEG quality that is configured; None where frames don't travel as JPEG.
        """
        self._bounds = bounds
        self._ladder = _ladder(bounds, quality)
        self._level = 0
        self._since: float | None = None
        self._offered = 0
        self._answered = 0
        self._good = 0

    @property
    def step(self) -> Step:
        """How the next frame is to be sent."""
        return self._ladder[self._level]

    def offered(self, now: float) -> None:
        """Note a frame of the source, at a time in seconds."""
        if self._since is None:
            self._since = now
        self._offered += 1
        if now - self._since >= _PERIOD_S:
            self._decide(now - self._since)
            self._since, self._offered, self._answered = now, 0, 0

    def answered(self) -> None:
        """Note a frame with a result."""
        self._answered += 1

    def _decide(self, seconds: float) -> None:
        goal = min(self._bounds.min_rate, self._offered / seconds)
        rate = self._answered / seconds
        if (self._answered + 1) / seconds < _ENOUGH * goal:  # one may be on its way
            self._good = 0
            self._level = min(self._level + 1, len(self._ladder) - 1)
        elif rate >= min(_SPARE * goal, _ENOUGH * self._offered / seconds):
            self._good += 1
            if self._good >= _GOOD_PERIODS:
                self._good = 0
                self._level = max(self._level - 1, 0)
        else:
            self._good = 0


def _ladder(bounds: QualityBounds, quality: int | None) -> list[Step]:
    steps = [FULL]
    lowest = quality
    if quality is not None:
        for each in range(quality - _QUALITY_STEP, bounds.min_quality - 1, -_QUALITY_STEP):
            steps.append(Step(each))
            lowest = each
        lowest = lowest if len(steps) > 1 else None
    scale = _SCALE_STEP
    while scale >= bounds.min_scale:
        steps.append(Step(lowest, scale))
        scale *= _SCALE_STEP
    return steps
