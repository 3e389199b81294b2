from collections.abc import Sequence
from functools import partial

import numpy as np
import pytest

from mqinfer.answers.outputs import DetectedBox
from mqinfer.lab.scores import DetectionScorer, match_boxes, overlaps

Frames = list[tuple[list[DetectedBox], list[DetectedBox], list[DetectedBox]]]
"""Found boxes, true ones, and regions in which boxes are neither right nor wrong."""


def iou(one: DetectedBox, other: DetectedBox) -> float:
    """Return the overlap of two boxes, side by side and by hand."""
    (a, b, c, d), (e, f, g, h) = one.box, other.box
    shared = max(0.0, min(c, g) - max(a, e)) * max(0.0, min(d, h) - max(b, f))
    return shared / ((c - a) * (d - b) + (g - e) * (h - f) - shared)


def inside(one: DetectedBox, region: DetectedBox) -> float:
    """Return the share of a box in a region, by hand."""
    (a, b, c, d), (e, f, g, h) = one.box, region.box
    return max(0.0, min(c, g) - max(a, e)) * max(0.0, min(d, h) - max(b, f)) / ((c - a) * (d - b))


def average_precision(frames: Frames, number: int, threshold: float) -> float:
    """Return the mean over 101 recalls of the best precision that any score as a limit reaches at that recall or above.

    Written from the definition, without sorting over frames: for every limit the boxes are matched anew.
    """
    true = sum(each.number == number for _, truth, _ in frames for each in truth)
    limits = sorted({each.score for found, _, _ in frames for each in found if each.number == number})
    points: list[tuple[float, float]] = []
    for limit in limits:
        hits = kept = 0
        for found, truth, regions in frames:
            free = [each for each in truth if each.number == number]
            for box in sorted((b for b in found if b.number == number and b.score >= limit), key=lambda b: -b.score):
                reached = [each for each in free if iou(box, each) >= threshold]
                kept += bool(reached) or not any(
                    each.number in {number, None} and inside(box, each) >= threshold for each in regions
                )
                if reached:
                    free.remove(max(reached, key=partial(iou, box)))
                    hits += 1
        if kept:
            points.append((hits / true, hits / kept))
    recalls = np.linspace(0, 1, 101).tolist()  # COCO's own numbers: their rounding decides at equal recalls
    best = [max((p for r, p in points if r >= recall), default=0.0) for recall in recalls]
    return sum(best) / len(best)


def random_frames(seed: int) -> Frames:
    """Make frames with boxes of two classes; some are found, some moved, some of nothing."""
    chance = np.random.default_rng(seed)
    frames: Frames = []
    for _ in range(int(chance.integers(1, 6))):
        truth, found, regions = [], [], []
        for _ in range(int(chance.integers(0, 6))):
            left, top, width, height = chance.uniform([0, 0, 5, 5], [80, 60, 40, 40]).tolist()
            number = int(chance.integers(2))
            truth.append(DetectedBox((left, top, left + width, top + height), 1.0, number))
            moved = (np.array(truth[-1].box) + chance.normal(0, 3, 4)).tolist()
            if chance.random() < 0.8 and moved[2] > moved[0] and moved[3] > moved[1]:
                found.append(DetectedBox(tuple(moved), float(chance.random()), number))
        for _ in range(int(chance.integers(0, 3))):
            left, top = chance.uniform(0, 80, 2).tolist()
            found.append(DetectedBox((left, top, left + 20, top + 20), float(chance.random()), int(chance.integers(2))))
        for own in (0, None):
            left, top, width, height = chance.uniform([0, 0, 5, 5], [80, 60, 60, 60]).tolist()
            if chance.random() < 0.5:
                regions.append(DetectedBox((left, top, left + width, top + height), 1.0, own))
        frames.append((sorted(found, key=lambda each: -each.score), truth, regions))
    return frames


@pytest.mark.parametrize("seed", range(30))
def test_average_precision_is_that_of_the_definition(seed: int) -> None:
    """Against an independent computation that tries every score as the limit."""
    frames = random_frames(seed)
    scorer = DetectionScorer()
    for each in frames:
        scorer.add(*each)
    score = scorer.score()
    numbers = sorted({each.number for _, truth, _ in frames for each in truth if each.number is not None})
    thresholds = [0.5 + 0.05 * step for step in range(10)]
    expected = {n: [average_precision(frames, n, round(t, 2)) for t in thresholds] for n in numbers}
    if not numbers:
        assert (score.map_50, score.map_50_95, score.per_class) == (0, 0, {})
        return
    assert score.map_50 == pytest.approx(np.mean([values[0] for values in expected.values()]))
    assert score.map_50_95 == pytest.approx(np.mean(list(expected.values())))
    assert score.per_class == {n: pytest.approx(np.mean(values)) for n, values in expected.items()}


def box(*sides: float, score: float = 1.0, number: int = 0) -> DetectedBox:
    """Make a box."""
    return DetectedBox((sides[0], sides[1], sides[2], sides[3]), score, number)


def test_known_scores() -> None:
    """A perfect model, one that finds nothing, and one with each object twice and a wrong one."""
    truth = [box(0, 0, 10, 10), box(20, 20, 40, 40)]

    def score(found: Sequence[DetectedBox]) -> tuple[float, float]:
        scorer = DetectionScorer()
        scorer.add(found, truth)
        result = scorer.score()
        return result.map_50, result.map_50_95

    assert score(truth) == (1, 1)
    assert score([]) == (0, 0)
    assert score([box(60, 60, 70, 70, score=0.9), *truth, *truth]) == (1, 1)
    found = [box(60, 60, 70, 70, score=0.9), box(0, 0, 10, 10, score=0.8)]
    # One of two found at precision 1/2: recalls 0 to 0.5 are 51 of the 101 points.
    assert score(found) == pytest.approx((51 * 0.5 / 101, 51 * 0.5 / 101))


def test_overlaps_and_matches() -> None:
    """Empty boxes overlap nothing; each true box is found once, by a box of its class."""
    assert overlaps([box(0, 0, 2, 2), box(3, 3, 3, 3)], [box(1, 0, 3, 2), box(3, 3, 3, 3)]).tolist() == [
        [pytest.approx(1 / 3), 0],
        [0, 0],
    ]
    assert overlaps([], [box(0, 0, 1, 1)]).shape == (0, 1)
    true = [box(0, 0, 10, 10), box(0, 0, 10, 10, number=1)]
    assert match_boxes([box(0, 0, 10, 10), box(0, 0, 10, 9), box(0, 0, 10, 10, number=1)], true) == [0, None, 1]
