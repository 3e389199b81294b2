"""What `model.toml` may say of post-processing: the tables `[segmentation]` and `[detection]`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from mqinfer.models.repository.tables import Check, choice, integer, number, table, text
from mqinfer.protocol.card import Layout

__all__ = ["DETECTION", "SEGMENTATION", "BoxFormat", "Detection", "Segmentation"]


class BoxFormat(StrEnum):
    """The four numbers of a box that a model gives, in pixels of its input."""

    CORNERS = "xyxy"
    CENTRE = "cxcywh"
    TOP_LEFT = "xywh"


@dataclass(frozen=True, slots=True)
class Segmentation:
    """Take the class with the largest logit for each pixel, as UINT8.

    Attributes:
        output: Name of the output with the logits; the mask keeps it.
        layout: `NHWC`, classes last, or `NCHW`.
    """

    output: str
    layout: Layout = Layout.NHWC

    def __post_init__(self) -> None:
        if self.layout is Layout.NHW:
            raise ValueError("layout must be NHWC or NCHW: logits have an axis of classes")


@dataclass(frozen=True, slots=True)
class Detection:
    """Keep the best boxes of a model's raw candidates: score threshold, then non-maximum suppression by class.

    Attributes:
        boxes: Name of the output with four numbers for each candidate `[1, K, 4]`; where `scores` is not given, with
            the scores of all classes behind them `[1, K, 4 + C]`, or `[1, 4 + C, K]` (the longer axis is K).
        scores: Name of the output with the scores `[1, K, C]`, or `[1, K]`.
        classes: Name of the output with the class numbers `[1, K]` where the scores are those of one class each.
        box_format: Of the four numbers.
        score_threshold: Candidates below it are dropped.
        iou_threshold: Of two boxes of one class that overlap by more (intersection over union), the better one stays.
        max_detections: At most so many boxes are kept.
    """

    boxes: str
    scores: str | None = None
    classes: str | None = None
    box_format: BoxFormat = BoxFormat.CORNERS
    score_threshold: float = 0.25
    iou_threshold: float = 0.45
    max_detections: int = 100

    def __post_init__(self) -> None:
        if not (0 <= self.score_threshold <= 1 and 0 <= self.iou_threshold <= 1):
            raise ValueError("score_threshold and iou_threshold must be from 0 to 1")
        if self.classes and not self.scores:
            raise ValueError("classes needs scores")


SEGMENTATION: Check = table({"output": text, "layout": choice(Layout, "FORMAT_")}, Segmentation, required=("output",))
"""Reads `[segmentation]`."""

DETECTION: Check = table(
    {
        "boxes": text,
        "scores": text,
        "classes": text,
        "box_format": choice(BoxFormat),
        "score_threshold": number,
        "iou_threshold": number,
        "max_detections": integer(1, 10_000),
    },
    Detection,
    required=("boxes",),
)
"""Reads `[detection]`."""
