from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from mqinfer.models.postprocess.boxes import KeptBoxes
from mqinfer.models.repository.output_tables import BoxFormat, Detection
from mqinfer.protocol.datatypes import Array, Datatype
from mqinfer.protocol.errors import BadTensor, ConfigError, ModelFailed
from mqinfer.protocol.types import TensorSpec

OUTPUTS = tuple(TensorSpec(name, Datatype.FP32, (-1, -1, -1)) for name in ("raw", "scores", "classes"))
CORNERS = np.array([[0, 0, 10, 10], [1, 1, 11, 11], [1, 1, 11, 11], [50, 50, 60, 60]], np.float32)
SCORES = np.array([[0.9, 0.1], [0.8, 0.1], [0.1, 0.7], [0.3, 0.2]], np.float32)
"""The second overlaps the first and is of its class; the third is of the other class; the last is weak."""


def keep(settings: Detection, **outputs: Array) -> dict[str, list[object]]:
    """Run the step on outputs and return lists."""
    return {name: array.tolist() for name, array in KeptBoxes(settings, OUTPUTS)(outputs).items()}


def test_the_best_of_overlapping_boxes_of_a_class_stays() -> None:
    """By falling score, with the class of the best score."""
    found = keep(Detection("raw", "scores"), raw=CORNERS[None], scores=SCORES[None])
    assert found["classes"] == [0, 1, 0]
    assert found["boxes"] == [[0, 0, 10, 10], [1, 1, 11, 11], [50, 50, 60, 60]]
    assert found["scores"] == pytest.approx([0.9, 0.7, 0.3])


@pytest.mark.parametrize(
    ("settings", "classes"),
    [
        (Detection("raw", "scores", score_threshold=0.5), [0, 1]),
        (Detection("raw", "scores", iou_threshold=0.9), [0, 0, 1, 0]),
        (Detection("raw", "scores", max_detections=1), [0]),
        (Detection("raw", "scores", score_threshold=0.95), []),
    ],
)
def test_thresholds_and_their_most(settings: Detection, classes: list[int]) -> None:
    """Each key has its effect; finding nothing is no error."""
    found = keep(settings, raw=CORNERS[None], scores=SCORES[None])
    assert found["classes"] == classes
    assert len(found["boxes"]) == len(found["scores"]) == len(classes)


@pytest.mark.parametrize("box_format", BoxFormat)
@pytest.mark.parametrize("batch", [True, False])
def test_every_form_of_candidates_gives_the_same(box_format: BoxFormat, *, batch: bool) -> None:
    """Corners, centre or top left and size; joined with the scores or beside them; turned; scores of one class each."""
    size = CORNERS[:, 2:] - CORNERS[:, :2]
    boxes = {
        "xyxy": CORNERS,
        "yxyx": CORNERS[:, [1, 0, 3, 2]],
        "xywh": np.concatenate([CORNERS[:, :2], size], axis=1),
        "cxcywh": np.concatenate([CORNERS[:, :2] + size / 2, size], axis=1),
    }[box_format]
    joined = np.concatenate([np.repeat(boxes, 3, 0), np.repeat(SCORES, 3, 0)], axis=1)
    forms: list[tuple[Detection, dict[str, Array]]] = [
        (Detection("raw", "scores", box_format=box_format), {"raw": boxes, "scores": SCORES}),
        (Detection("raw", box_format=box_format), {"raw": joined}),
        (Detection("raw", box_format=box_format), {"raw": joined.T}),
        (
            Detection("raw", "scores", "classes", box_format=box_format),
            {"raw": boxes, "scores": SCORES.max(1), "classes": SCORES.argmax(1).astype(np.float32)},
        ),
    ]
    for settings, outputs in forms:
        found = keep(settings, **{name: array[None] if batch else array for name, array in outputs.items()})
        assert found["boxes"] == [[0, 0, 10, 10], [1, 1, 11, 11], [50, 50, 60, 60]]
        assert found["classes"] == [0, 1, 0]


def test_boxes_that_end_before_they_begin_are_none() -> None:
    """Neither are those with a side that is no number; they suppress no other box."""
    boxes = np.array([[10, 0, 0, 10], [0, 10, 10, 0], [0, np.nan, 10, 10], [0, 0, 10, 10]], np.float32)
    found = keep(
        Detection("raw", "scores"), raw=boxes[None], scores=np.array([[[0.9], [0.8], [0.7], [0.6]]], np.float32)
    )
    assert found["boxes"] == [[0, 0, 10, 10]]
    assert found["scores"] == pytest.approx([0.6])


@pytest.mark.parametrize("batch", [True, False])
def test_a_single_candidate(*, batch: bool) -> None:
    """One box is no batch axis of one."""
    forms: list[tuple[Detection, dict[str, Array]]] = [
        (Detection("raw", "scores"), {"raw": CORNERS[:1], "scores": SCORES[:1]}),
        (Detection("raw", "scores"), {"raw": CORNERS[:1], "scores": SCORES[:1, :1]}),
        (Detection("raw", "scores", "classes"), {"raw": CORNERS[:1], "scores": SCORES[0, :1], "classes": np.zeros(1)}),
    ]
    for settings, outputs in forms:
        found = keep(settings, **{name: array[None] if batch else array for name, array in outputs.items()})
        assert (found["boxes"], found["classes"]) == ([[0, 0, 10, 10]], [0])


@given(
    hnp.arrays(np.float32, (30, 4), elements=st.floats(0, 100, width=32)),
    hnp.arrays(np.float32, (30, 3), elements=st.floats(0, 1, width=32) | st.just(np.nan)),
)
def test_what_is_kept_overlaps_no_more_than_is_allowed(
    corners: npt.NDArray[np.float32], scores: npt.NDArray[np.float32]
) -> None:
    """Whatever comes, NaN included: scores fall, are above the threshold, and boxes of a class keep their distance."""
    corners[:, 2:] = corners[:, :2] + corners[:, 2:] + 1
    found = KeptBoxes(Detection("raw", "scores"), OUTPUTS)({"raw": corners[None], "scores": scores[None]})
    assert (np.diff(found["scores"]) <= 0).all()
    assert found["scores"].min(initial=1) >= 0.25
    for number in np.unique(found["classes"]):
        boxes = found["boxes"][found["classes"] == number].astype(np.float64)
        low = np.maximum(boxes[:, None, :2], boxes[None, :, :2])
        high = np.minimum(boxes[:, None, 2:], boxes[None, :, 2:])
        common = np.prod(np.clip(high - low, 0, None), axis=-1)
        areas = np.prod(boxes[:, 2:] - boxes[:, :2], axis=-1)
        overlap = common / (areas[:, None] + areas[None] - common)
        assert (overlap[~np.eye(len(boxes), dtype=bool)] <= 0.45 + 1e-3).all()


def test_several_pictures_are_refused() -> None:
    """Each has its own number of boxes."""
    with pytest.raises(BadTensor, match="of 2 pictures; send each"):
        keep(Detection("raw", "scores"), raw=np.stack([CORNERS] * 2), scores=np.stack([SCORES] * 2))


@pytest.mark.parametrize("scores", [SCORES[:3], SCORES[:, :, None, None], np.zeros((4, 0), np.float32)[:3]])
def test_outputs_of_other_shapes_are_the_models_fault(scores: Array) -> None:
    """The error has the shapes."""
    with pytest.raises(ModelFailed, match=r"boxes can't be made of raw \[1, 4, 4\], scores"):
        keep(Detection("raw", "scores"), raw=CORNERS[None], scores=scores[None])


def test_an_output_that_the_model_has_not() -> None:
    """The error comes before anything runs."""
    with pytest.raises(ConfigError, match="'box': expected one of the outputs raw, scores, classes"):
        KeptBoxes(Detection("box"), OUTPUTS)


@pytest.mark.parametrize("wrong", [{"score_threshold": 2}, {"iou_threshold": -1}, {"classes": "c"}])
def test_settings_outside_their_bounds(wrong: dict[str, float]) -> None:
    """They check themselves."""
    with pytest.raises(ValueError, match=r"must be from 0 to 1|needs scores"):
        Detection("raw", **wrong)  # type: ignore[arg-type]
