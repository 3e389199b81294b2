"""Replays recorded scores through a cascade, as the edge does, and puts thresholds into its settings."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from mqinfer.judging.detector import Detector
from mqinfer.judging.settings import CascadeSettings, DifferenceDetector
from mqinfer.judging.thumbnail import SIDE
from mqinfer.lab.cascade.scores import ABSENT, PRESENT, Scores
from mqinfer.protocol.errors import ConfigError


def check_blocks(blocks: int) -> None:
    """Check a number of blocks before long work is done for it.

    Raises:
        ConfigError: The picture can't be divided so.
    """
    try:
        DifferenceDetector(1.0, blocks=blocks)
    except ValueError as error:
        raise ConfigError(str(error)) from error


def with_thresholds(settings: CascadeSettings, chosen: Thresholds, blocks: int = 1) -> CascadeSettings:
    """Return a cascade with these thresholds; a stage that they leave without work is left out."""
    difference = DifferenceDetector(chosen.t_diff, blocks=blocks) if chosen.t_diff > 0 else None
    small = settings.small
    if small is not None:
        is_used = chosen.c_low > 0 or chosen.c_high <= 1
        small = replace(small, c_low=chosen.c_low, c_high=min(chosen.c_high, 1.0)) if is_used else None
    return replace(settings, difference=difference, small=small)


Floats = npt.NDArray[np.float64]
Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The thresholds of a cascade.

    Attributes:
        t_diff: A frame whose difference is below this gets the last answer; 0 skips none.
        c_low: Below this confidence the target is absent.
        c_high: From this confidence on the small model's answer counts; above 1 it never does.
    """

    t_diff: float
    c_low: float
    c_high: float


def key_frames(scores: Scores, t_diff: float, blocks: int = 1) -> Numbers:
    """Return for each frame the number of the frame whose answer it gets: its own unless it was skipped, int64 [n].

    A frame is compared with the last one that was not skipped.
    """
    owners = np.arange(len(scores))
    if t_diff > 0:
        detector: Detector[int] = Detector()
        settings = DifferenceDetector(t_diff, blocks=blocks)
        for number, seen in enumerate(scores.thumbnails):
            leader = detector.leader(settings, seen, number, (SIDE, SIDE))
            owners[number] = number if leader is None else leader
    return owners


class Pass:
    """Recorded scores with one `t_diff`: what each frame's answer would be worth if each stage gave it.

    Args:
        scores: Recorded.
        t_diff: Threshold of the difference detector.
        blocks: Rows and columns of its blocks.

    Attributes:
        owners: For each frame the number of the one whose answer it gets, int64 [n].
        confidences: Of that frame, float32 [n].
        is_key: Whether that is its own, bool [n].
        has_masks: Whether answers are masks.
    """

    def __init__(self, scores: Scores, t_diff: float, blocks: int = 1) -> None:
        self.t_diff = t_diff
        self.owners = key_frames(scores, t_diff, blocks)
        self.confidences = scores.confidences[self.owners]
        self.has_masks = scores.small is not None
        self.is_key = self.owners == np.arange(len(self.owners))
        self._scores, self._blocks = scores, blocks

    @cached_property
    def doubled(self) -> Pass:
        """The same scores with twice the `t_diff`."""
        return Pass(self._scores, 2 * self.t_diff, self._blocks)

    def reach(self, frames: slice) -> float:
        """Return how many frames one answer stands for, as the mean over the frames (Kish's design effect)."""
        counts = np.bincount(self.owners[frames])
        return float((counts**2).sum() / counts.sum())

    @cached_property
    def doubt(self) -> Floats:
        """How far the small model is from the reference on each frame, 0 to 1, whatever the thresholds, [n]."""
        scores = self._scores
        if scores.small is None:
            return np.abs(scores.reference[:, 0] - scores.confidences.astype(np.float64))
        return np.asarray((scores.reference != scores.small).mean(axis=1), np.float64)

    @cached_property
    def by_reference(self) -> Floats:
        """Agreement of each frame with its reference answer if the reference answers its key frame, [n]."""
        return self._agreement(self._scores.reference[self.owners])

    @cached_property
    def by_small(self) -> tuple[Floats, Floats]:
        """The same if the small model answers with a confidence below `c_low`, and from `c_high` on."""
        scores = self._scores
        if scores.small is None:
            return self._agreement(np.uint8(ABSENT)), self._agreement(np.uint8(PRESENT))
        return self.by_reference, self._agreement(scores.small[self.owners])  # a mask has no other side

    def _agreement(self, answers: npt.NDArray[np.uint8] | np.uint8) -> Floats:
        return np.asarray((self._scores.reference == answers).mean(axis=1), np.float64)

    def stages(self, thresholds: Thresholds) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
        """Return which frames' answers come from the small model, absent and present (or a mask), each bool [n]."""
        is_high = self.confidences >= thresholds.c_high
        return (self.confidences < thresholds.c_low) & ~is_high, is_high

    def agreement(self, thresholds: Thresholds) -> Floats:
        """Return the agreement of each frame's answer with the reference's own, 0 to 1, [n]."""
        is_low, high = self.stages(thresholds)
        low_right, high_right = self.by_small
        return np.where(high, high_right, np.where(is_low, low_right, self.by_reference))

    def shares(self, thresholds: Thresholds, frames: slice = slice(None)) -> tuple[float, float, float]:
        """Return the shares of the frames that are answered by reuse, by the small model and by the reference."""
        is_low, high = self.stages(thresholds)
        is_key = self.is_key[frames]
        is_small = (is_low | high)[frames] & is_key
        return 1 - float(is_key.mean()), float(is_small.mean()), float((is_key & ~is_small).mean())
