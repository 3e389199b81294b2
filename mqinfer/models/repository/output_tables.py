"""The tables of `model.toml` for a model's outputs: `[segmentation]`, `[classification]`, `[detection]`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from msgspec import Meta

from mqinfer.protocol.card import Layout


class BoxFormat(StrEnum):
    """The meaning of the four numbers of a box."""

    CORNERS = "xyxy"
    CENTRE = "cxcywh"
    TOP_LEFT = "xywh"
    ROWS_FIRST = "yxyx"


class Activation(StrEnum):
    """What makes probabilities of a model's numbers."""

    NONE = "none"
    SIGMOID = "sigmoid"
    SOFTMAX = "softmax"


class Background(StrEnum):
    """The place of the class that means "no object" among a model's classes."""

    FIRST = "first"
    LAST = "last"


class Column(StrEnum):
    """What a row of finished detections holds, in any order.

    A box is four numbers, a key point is three (x, y, score), each of the others is one.
    """

    BOX = "box"
    SCORE = "score"
    CLASS = "class"
    IMAGE = "image"
    KEYPOINTS = "keypoints"


@dataclass(frozen=True, slots=True)
class Segmentation:
    """Table `[segmentation]`: a UINT8 mask with the class of the largest logit for each pixel.

    Attributes:
        output: Name of the output with the logits, and then of the mask.
        layout: `NHWC`, classes last, or `NCHW`.
    """

    output: str
    layout: Layout = Layout.NHWC

    def __post_init__(self) -> None:
        if self.layout is Layout.NHW:
            raise ValueError("layout must be NHWC or NCHW: logits have an axis of classes")


@dataclass(frozen=True, slots=True)
class Classification:
    """Table `[classification]`: probabilities of a classifier's logits.

    Attributes:
        output: Name of the output with one number a class, and then of the probabilities.
        activation: What makes them.
    """

    output: str
    activation: Activation = Activation.SOFTMAX


@dataclass(frozen=True, slots=True)
class Detection:
    """Table `[detection]`: the best of a model's raw boxes, by score threshold and non-maximum suppression by class.

    Attributes:
        boxes: Name of the output with four numbers for each candidate `[1, K, 4]`; without `scores` followed by the
            scores of all classes `[1, K, 4 + C]`, or `[1, 4 + C, K]`.
        scores: Name of the output with the scores `[1, K, C]`, or `[1, K]`.
        classes: Name of the output with the class numbers `[1, K]`, if each score is that of one class.
        masks: Name of the output with masks: prototypes `[1, M, H, W]`, for which each row of `boxes` ends in M
            factors, or a mask for each candidate, `[K, H, W]`, `[1, K, H, W]` or `[K, 1, H, W]`.
        masks_in_boxes: Whether a candidate's mask covers its box, and not the whole picture.
        keypoints: Name of the output with the key points of each candidate, `[K, P, 3]` or `[1, K, P, 3]`.
        columns: What each row of `boxes` holds where the model has chosen the class already; empty: the box, and then
            scores.
        objectness: Whether a number between box and scores is a factor on all of them; None: known by the number of
            columns and of classes.
        background: Where "no object" is among the classes, which are numbered without it; None: nowhere.
        activation: What makes probabilities of the scores.
        box_format: Meaning of the four numbers.
        normalised: Whether boxes are fractions of the model's picture, and not pixels.
        score_threshold: Boxes below it are dropped.
        iou_threshold: Overlap (intersection over union) above which the better of two boxes of a class stays alone.
        max_detections: The most boxes that are kept.
    """

    boxes: str
    scores: str | None = None
    classes: str | None = None
    masks: str | None = None
    masks_in_boxes: bool = False
    keypoints: str | None = None
    columns: tuple[Column, ...] = ()
    objectness: bool | None = None
    background: Background | None = None
    activation: Activation = Activation.NONE
    box_format: BoxFormat = BoxFormat.CORNERS
    normalised: bool = False
    score_threshold: float = 0.25
    iou_threshold: float = 0.45
    max_detections: Annotated[int, Meta(ge=1, le=10_000)] = 100

    def __post_init__(self) -> None:
        if not (0 <= self.score_threshold <= 1 and 0 <= self.iou_threshold <= 1):
            raise ValueError("score_threshold and iou_threshold must be from 0 to 1")
        self._check_scores()
        if self.background is Background.LAST and (self.classes or Column.CLASS in self.columns):
            raise ValueError('background = "last" is of scores of all classes, not of class numbers')
        if self.columns:
            self._check_columns()

    def _check_scores(self) -> None:
        if self.classes and not self.scores:
            raise ValueError("classes needs scores")
        if self.scores and (self.columns or self.objectness):
            raise ValueError("columns and objectness are of rows that hold the scores too; leave scores out")
        if self.masks_in_boxes and not (self.masks and self.scores):
            raise ValueError("masks_in_boxes is of the masks of finished boxes; name masks and scores")

    def _check_columns(self) -> None:
        if self.objectness is not None:
            raise ValueError("columns are of finished rows, without objectness; leave one of the two keys out")
        if self.columns == (Column.KEYPOINTS,):
            if self.box_format not in {BoxFormat.CORNERS, BoxFormat.ROWS_FIRST}:
                raise ValueError('columns = ["keypoints"]: expected box_format xyxy or yxyx, the order of the points')
        elif not {Column.BOX, Column.SCORE} <= set(self.columns) or len(set(self.columns)) < len(self.columns):
            raise ValueError(
                f"columns = {[*map(str, self.columns)]}: expected box and score, and each word once; or only keypoints"
            )
        if self.keypoints and Column.KEYPOINTS in self.columns:
            raise ValueError("keypoints is an output beside the rows, or one of the columns; leave one of the two out")
