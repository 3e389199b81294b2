from collections.abc import Mapping

import numpy as np
import pytest

from mqinfer.bags.frame import Frame
from mqinfer.client.result import InferResult
from mqinfer.edge_agent.frames.view import FrameView
from mqinfer.edge_agent.sinks.answers import Answer, Answers
from mqinfer.images.picture import RawImage
from mqinfer.images.placement import Placement
from mqinfer.lab.comparing.difference import AnswerKind, difference
from mqinfer.lab.comparing.labels import TrueBox, TrueFrame
from mqinfer.lab.comparing.tallies import PairTally, TruthTally
from mqinfer.lab.comparing.tolerance import NumberTolerance, Tolerances, deviation
from mqinfer.protocol.card import ClassInfo
from mqinfer.protocol.datatypes import Array
from mqinfer.protocol.errors import ConfigError, InvalidRequest
from mqinfer.protocol.types import Outcome

HEIGHT, WIDTH = 4, 6
CLASSES = (ClassInfo("road", (1, 2, 3)), ClassInfo("sky", (4, 5, 6)), ClassInfo("car", (7, 8, 9)))


def view(**outputs: Array) -> FrameView:
    """Make an answer that needs no mapping."""
    size = WIDTH, HEIGHT
    return FrameView(np.zeros((HEIGHT, WIDTH, 3), np.uint8), Placement.of(size, size), outputs)


def mask(*differing: int) -> dict[str, Array]:
    """Make a mask of class 0 with class 1 at some places."""
    numbers = np.zeros(HEIGHT * WIDTH, np.uint8)
    numbers[list(differing)] = 1
    return {"output": numbers.reshape(1, HEIGHT, WIDTH)}


def unseen(*places: int) -> dict[str, Array]:
    """Make a mask of class 0 with places that the model did not see."""
    return {"output": np.where(mask(*places)["output"] == 1, np.uint8(255), np.uint8(0))}


def boxes(*found: tuple[float, float, float, float], number: int = 0) -> dict[str, Array]:
    """Make boxes of one class with falling scores."""
    scores = np.linspace(0.9, 0.5, len(found), dtype=np.float32)
    numbers = np.full(len(found), number, np.int64)
    return {"boxes": np.array(found, np.float32).reshape(-1, 4), "scores": scores, "classes": numbers}


def scores(*values: float) -> dict[str, Array]:
    """Make the scores of a classifier."""
    return {"scores": np.array([values], np.float32)}


NAN = float("nan")


@pytest.mark.parametrize(
    ("one", "other", "kind", "share"),
    [
        (mask(1, 2, 3), mask(3, 4), AnswerKind.MASK, 3 / (HEIGHT * WIDTH)),
        (mask(), mask(), AnswerKind.MASK, 0),
        (unseen(0, 1, 2, 3), unseen(0, 1, 2), AnswerKind.MASK, 1 / (HEIGHT * WIDTH - 3)),
        (boxes((0, 0, 2, 2), (3, 0, 6, 4)), boxes((0, 0, 2, 2)), AnswerKind.BOXES, 1 / 3),
        (boxes((0, 0, 2, 2)), boxes((0, 0, 2, 2), number=1), AnswerKind.BOXES, 1),
        (boxes(), boxes(), AnswerKind.BOXES, 0),
        (scores(0.1, 0.8, 0.1), scores(0.3, 0.4, 0.3), AnswerKind.CLASS, 0),
        (scores(0.1, 0.8, 0.1), scores(0.9, 0.1, 0), AnswerKind.CLASS, 1),
        (
            {"x": np.array([1.0, NAN, 3.0, 4.0]), "y": np.ones(2)},
            {"x": np.array([1.0, NAN, 0.0, 4.0])},
            AnswerKind.VALUES,
            0.5,
        ),
        ({"x": np.ones(3)}, {"x": np.ones(4)}, AnswerKind.VALUES, 1),
        ({"x": np.array([b"a", b"b"], object)}, {"x": np.array([b"a", b"c"], object)}, AnswerKind.VALUES, 0.5),
        (mask(), scores(1, 2, 3), AnswerKind.VALUES, 1),
        ({"x": np.array([1.0, 100, 0, 5])}, {"x": np.array([1 + 1e-6, 100.09, 9e-6, 5.1])}, AnswerKind.VALUES, 0.25),
        ({"x": np.array([5000, 7])}, {"x": np.array([5001, 7])}, AnswerKind.VALUES, 0.5),
        (scores(0.5, 0.500001, 0), scores(0.500001, 0.5, 0), AnswerKind.CLASS, 0),
    ],
)
def test_the_disagreement_of_two_answers(
    one: Mapping[str, Array], other: Mapping[str, Array], kind: AnswerKind, share: float
) -> None:
    """By what both are, from 0 for the same to 1 for nothing in common."""
    found = difference(view(**one), view(**other), CLASSES, Tolerances())
    assert found.kind is kind
    assert found.share == pytest.approx(share)


@pytest.mark.parametrize("seed", range(40))
def test_the_tolerance_is_that_of_numpy(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each value is beyond it exactly where `assert_allclose` refuses it, in whatever blocks they are compared."""
    monkeypatch.setattr("mqinfer.lab.comparing.tolerance._BLOCK", 7)
    chance = np.random.default_rng(seed)
    tolerance = NumberTolerance(*chance.choice([0, 1e-6, 1e-3, 0.1], 2).tolist())
    one = (chance.normal(0, 1, 40) * 10 ** chance.uniform(-4, 4, 40)).astype(np.float32)
    other = (one * (1 + chance.normal(0, 10 ** chance.uniform(-7, 0), 40))).astype(np.float32)
    for array in (one, other):
        array[chance.integers(0, 40, 6)] = chance.choice([np.nan, np.inf, -np.inf, 0], 6)

    def is_refused(pair: tuple[np.float32, np.float32]) -> bool:
        try:
            np.testing.assert_allclose(pair[1], pair[0], tolerance.relative, tolerance.absolute)
        except AssertionError:
            return True
        return False

    found = deviation(one, other, tolerance)
    assert (found.frames, found.values) == (1, 40)
    assert found.outside == sum(map(is_refused, zip(one, other, strict=True)))
    both = np.isfinite(one) & np.isfinite(other)
    gaps = np.abs(one[both].astype(float) - other[both])
    assert (found.finite, found.largest) == (both.sum(), gaps.max())
    assert found.total == pytest.approx(gaps.sum())


def test_an_output_with_a_tolerance_of_its_own() -> None:
    """It holds for whole numbers too, and is counted beside class masks, whose logits nobody asked for."""
    tolerances = Tolerances(by_output={"logits": NumberTolerance(0, 0.5), "ids": NumberTolerance(0, 1)})
    pair = [
        view(**mask(), logits=np.array([1.0, 2.0]), more=np.ones(2)),
        view(**mask(), logits=np.array([1.4, 3.0]), more=np.zeros(2)),
    ]
    found = difference(pair[0], pair[1], CLASSES, tolerances)
    assert found.kind is AnswerKind.MASK
    assert {name: each.share for name, each in found.outputs.items()} == {"logits": 0.5}
    numbers = {name: {"ids": np.array([5000, 7]), "n": np.array([5000, 7])} for name in "ab"}
    numbers["b"] = {name: array + 1 for name, array in numbers["b"].items()}
    found = difference(view(**numbers["a"]), view(**numbers["b"]), CLASSES, tolerances)
    assert {name: each.share for name, each in found.outputs.items()} == {"ids": 0, "n": 1}


def frame_of(number: int) -> Frame:
    """Make a frame."""
    image = RawImage("rgb8", HEIGHT, WIDTH, WIDTH * 3, is_bigendian=False, data=b"")
    return Frame("/camera", number, number, number, "", image)


def answer(outputs: Mapping[str, Array] | None) -> Answer:
    """Make an answer; None for a frame that failed."""
    if outputs is None:
        return Answer(0, view(), InferResult("", Outcome.ERROR, "m"))
    return Answer(0, view(**outputs), InferResult("", Outcome.OK, "m", outputs=outputs))


def test_a_pair_is_tallied() -> None:
    """Means over the frames that both answered, IoU over all their pixels, and the worst frames in order."""
    tally = PairTally(CLASSES, Tolerances(), keep=2)
    pairs = [(mask(), mask()), (mask(0, 1), mask(1)), (mask(), None), (mask(), mask(0, 1, 2)), (mask(), mask(5))]
    for number, (one, other) in enumerate(pairs):
        tally.add(frame_of(number), answer(one), answer(other))
    pixels = HEIGHT * WIDTH
    found = tally.describe()
    assert (found["frames"], found["unanswered"], found["frames_that_differ"]) == (4, 1, 3)
    assert found["mean"] == pytest.approx(5 / pixels / 4)
    assert found["largest"] == pytest.approx(3 / pixels)
    # class 1: one pixel in common, six marked by one of the two
    assert found["iou"] == {"road": pytest.approx((4 * pixels - 6) / (4 * pixels - 1)), "sky": pytest.approx(1 / 6)}
    assert [each.frame.sequence for each in tally.worst] == [3, 1]


@pytest.mark.parametrize(
    ("outputs", "true", "words"),
    [
        (mask(), TrueFrame(mask=np.zeros((3, 5), np.uint8)), "is 5x3 pixels, the frame 6x4"),
        (scores(1, 2, 3), TrueFrame(label="bus"), "class 'bus', the model has road, sky, car"),
        (boxes((0, 0, 1, 1)), TrueFrame(boxes=(TrueBox((0, 0, 1, 1), "bus"),)), "class 'bus'"),
        (
            {"output": np.full((HEIGHT, WIDTH), 9, np.uint8)},
            TrueFrame(mask=np.zeros((HEIGHT, WIDTH), np.uint8)),
            "0 to 2",
        ),
    ],
)
def test_a_truth_that_does_not_fit_is_refused(outputs: dict[str, Array], true: TrueFrame, words: str) -> None:
    """With what differs."""
    with pytest.raises((ConfigError, InvalidRequest), match=words):
        TruthTally(CLASSES).add(frame_of(0), view(**outputs), true)


def test_scores_against_the_truth() -> None:
    """Each kind of truth has its measure; 255 in a mask is left out, and another kind of output is not counted."""
    masks = TruthTally(CLASSES)
    true = np.zeros((HEIGHT, WIDTH), np.uint8)
    true[0, 0], true[0, 1:3] = 1, 255
    masks.add(frame_of(0), view(**mask(0, 1, 3)), TrueFrame(mask=true))
    masks.add(frame_of(1), view(**scores(1, 2, 3)), TrueFrame(mask=true))
    masks.add(frame_of(2), view(**unseen(*range(HEIGHT * WIDTH))), TrueFrame(mask=true))
    found = masks.describe()
    assert (found["frames"], found["pixel_accuracy"]) == (2, pytest.approx(21 / 22))
    assert found["iou"] == {"road": pytest.approx(20 / 21), "sky": pytest.approx(1 / 2)}
    labels = TruthTally(CLASSES)
    for label in ("sky", "1", "car"):
        labels.add(frame_of(0), view(**scores(0, 9, 1)), TrueFrame(label=label))
    assert labels.describe() == {"frames": 3, "accuracy": pytest.approx(2 / 3)}
    objects = TruthTally(CLASSES)
    objects.add(frame_of(0), view(**boxes((0, 0, 2, 2), number=2)), TrueFrame(boxes=(TrueBox((0, 0, 2, 2), "car"),)))
    assert objects.describe() == {"frames": 1, "map_50": 1.0, "map_50_95": 1.0, "map_by_class": {"car": 1.0}}


def test_frames_that_one_model_has_not_answered_are_bounded_and_counted() -> None:
    """A model that ended early must not let the other's pictures pile up."""
    passed: list[tuple[int, int]] = []
    answers = Answers(2, lambda frame, found: passed.append((frame.sequence, len(found))), bound=3)
    sinks = [answers.sink(0), answers.sink(1)]
    one = answer(mask())
    for number in range(10):
        if number < 4:
            sinks[1].write(frame_of(number), one.view, one.result)
        sinks[0].write(frame_of(number), one.view, one.result)
        assert len(answers._open) <= 3
    answers.close()
    assert passed == [*((number, 2) for number in range(4)), *((number, 1) for number in range(4, 10))]
