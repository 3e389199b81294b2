"""Ids that follow objects over the frames of a stream, by the rules of ByteTrack with a velocity for its Kalman filter.

Pure: time is the frames' own stamps, so two runs over the same frames agree.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Boxes = npt.NDArray[np.float64]

SURE = 0.5
"""Objects of at least this score get ids; others only keep the one that they have."""
_OVERLAP, _DOUBTFUL_OVERLAP = 0.1, 0.4
"""Least intersection over union of a box with where its object is expected, and that of a doubtful one."""
_MOST_ABSENT = 30
"""After so many frames without it an object is forgotten."""
_LONGEST_S, _NEW = 1.0, 0.5
"""An object is expected to go on for so long, with a velocity of which the last two boxes are this part."""


@dataclass(slots=True)
class _Track:
    id: int
    kind: Hashable
    box: Boxes
    velocity: Boxes
    seen_s: float
    frame: int

    def expected(self, now_s: float) -> Boxes:
        return self.box + self.velocity * min(max(now_s - self.seen_s, 0.0), _LONGEST_S)

    def see(self, box: Boxes, now_s: float, frame: int) -> None:
        passed = now_s - self.seen_s
        if 0 < passed <= _LONGEST_S:
            self.velocity = (1 - _NEW) * self.velocity + _NEW * (box - self.box) / passed
        self.box, self.seen_s, self.frame = box, now_s, frame


class Tracks:
    """The objects of one stream.

    Args:
        sure: Score of a box that is an object without doubt.
    """

    def __init__(self, sure: float = SURE) -> None:
        self._sure = sure
        self._tracks: list[_Track] = []
        self._frame = self._last = 0

    def follow(self, now_s: float, boxes: Boxes, scores: Sequence[float], kinds: Sequence[Hashable]) -> list[int]:
        """Return the id of each box of a frame, from 1; -1 for one that is too doubtful to be a new object.

        Args:
            now_s: The frame's stamp, in seconds.
            boxes: `[n, 4]`: left, top, right, bottom.
            scores: Of each.
            kinds: Of each; an object stays of one kind.
        """
        self._frame += 1
        shares = _overlaps(boxes, np.array([each.expected(now_s) for each in self._tracks]).reshape(-1, 4))
        shares *= np.array([[kind == each.kind for each in self._tracks] for kind in kinds]).reshape(shares.shape)
        sure = np.array(scores) >= self._sure
        seen_last = np.array([each.frame == self._frame - 1 for each in self._tracks], bool)
        pairs = _pairs(shares * sure[:, np.newaxis], _OVERLAP)
        shares[:, [*pairs.values()]] = 0
        pairs |= _pairs(shares * ~sure[:, np.newaxis] * seen_last, _DOUBTFUL_OVERLAP)
        ids = np.full(len(sure), -1)
        for row, place in pairs.items():
            self._tracks[place].see(boxes[row], now_s, self._frame)
            ids[row] = self._tracks[place].id
        for row in np.flatnonzero(sure & (ids < 0)).tolist():
            self._last += 1
            ids[row] = self._last
            self._tracks.append(_Track(self._last, kinds[row], boxes[row], np.zeros(4), now_s, self._frame))
        self._tracks = [each for each in self._tracks if each.frame > self._frame - _MOST_ABSENT]
        return ids.tolist()


def _pairs(shares: Boxes, least: float) -> dict[int, int]:
    """Return the place of a track by that of its box, each once: those that overlap most first."""
    pairs: dict[int, int] = {}
    for place in np.argsort(-shares, axis=None, kind="stable")[: np.count_nonzero(shares >= least)].tolist():
        row, track = divmod(place, shares.shape[1])
        if row not in pairs and track not in pairs.values():
            pairs[row] = track
    return pairs


def _overlaps(ones: Boxes, others: Boxes) -> Boxes:
    """Return the intersection over union of each pair, `[n, m]`."""
    first, second = ones[:, np.newaxis], others[np.newaxis]
    sides = np.minimum(first[..., 2:], second[..., 2:]) - np.maximum(first[..., :2], second[..., :2])
    shared = np.maximum(sides, 0).prod(axis=2)
    areas = [np.maximum(each[..., 2:] - each[..., :2], 0).prod(axis=2) for each in (first, second)]
    found: Boxes = shared / np.maximum(areas[0] + areas[1] - shared, 1e-9)
    return found
