"""Instance masks and top classes in pictures, JSON lines and MCAP."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from mqinfer.answers.outputs import find_mask
from mqinfer.bags.frame import Frame
from mqinfer.client.result import InferResult
from mqinfer.edge_agent.frames.view import FrameView
from mqinfer.edge_agent.sinks.drawing.overlay import draw_instances, draw_result
from mqinfer.edge_agent.sinks.factory import open_sinks
from mqinfer.images.picture import RawImage
from mqinfer.images.placement import Placement
from mqinfer.protocol.card import CardParameters, ClassInfo, ModelCard, Resize
from mqinfer.protocol.datatypes import Array
from mqinfer.protocol.types import Outcome
from tests.mcap_files import messages

RED, GREEN = ClassInfo("red", (200, 0, 0)), ClassInfo("green", (0, 200, 0))
PIXELS = np.full((40, 80, 3), 100, np.uint8)
FRAME = Frame("/camera", 0, 1, 2, "front", RawImage("rgb8", 40, 80, 240, is_bigendian=False, data=PIXELS.tobytes()))
PLACEMENT = Placement.of((80, 40), (40, 40), Resize.LETTERBOX)
CATS = tuple(ClassInfo(f"cat {number}", (0, 0, 0)) for number in range(1000))
SCORES: dict[str, Array] = {"scores": np.eye(1000, dtype=np.float32)[281:282]}


def instances(count: int = 2) -> dict[str, Array]:
    """Return objects of class 1 and 0; the masks cover the left and the middle of the model's picture, margins too."""
    masks = np.zeros((2, 20, 20), np.uint8)
    masks[0, :, :10] = 1
    masks[1, :, 5:15] = 1
    return {
        "boxes": np.zeros((count, 4), np.float32),
        "scores": np.array([0.9, 0.8], np.float32)[:count],
        "classes": np.array([1, 0])[:count],
        "masks": masks[:count],
    }


def result(outputs: dict[str, Array]) -> InferResult:
    """Return a result that is fine."""
    return InferResult("1", Outcome.OK, "m", "1", outputs=outputs)


def test_each_instance_has_the_colour_of_its_class() -> None:
    """On the recorded frame, without the margins; the better one is on top."""
    drawn = draw_instances(PIXELS, FrameView(PIXELS, PLACEMENT, instances(), classes=(RED, GREEN)))
    row = drawn[20].tolist()
    assert row[0] == row[39] == [50, 150, 50]
    assert row[40] == row[59] == [150, 50, 50]
    assert row[60] == row[79] == [100, 100, 100]
    assert (drawn == drawn[:1]).all()


def test_instances_are_laid_over_the_picture_in_mcap(tmp_path: Path) -> None:
    """On the topic of overlays, which the layout shows; a detector without masks has none."""
    card = ModelCard(name="m", versions=("1",), platform="p", parameters=CardParameters(classes=(RED, GREEN)))
    boxes = {name: output for name, output in instances().items() if name != "masks"}
    for name, outputs, kinds in (("with", instances(), 5), ("without", boxes, 3)):
        sinks = open_sinks(tmp_path / name, card, ("mcap",))
        sinks.write(FRAME, FrameView(PIXELS, PLACEMENT, outputs, classes=(RED, GREEN)), result(outputs))
        sinks.close()
        topics = [topic for topic, _, _, _ in messages(tmp_path / name / "results.mcap")]
        assert len(topics) == kinds
        assert ("/camera/mqinfer/overlay" in topics) is (name == "with")
        assert ("overlay" in (tmp_path / name / "foxglove-layout.json").read_text()) is (name == "with")


def test_instances_are_no_class_mask() -> None:
    """Also a single one, whose shape is that of a mask; without masks the picture stays as it is."""
    assert find_mask(instances(1)) is None
    view = FrameView(PIXELS, PLACEMENT, {"boxes": np.zeros((1, 4)), "scores": np.zeros(1)})
    assert draw_instances(PIXELS, view) is PIXELS


def test_the_best_classes_are_written_on_the_picture() -> None:
    """In its corner; a legend of a thousand classes is left out."""
    plain = draw_result(FRAME, FrameView(PIXELS, PLACEMENT, classes=CATS), result({}))
    drawn = draw_result(FRAME, FrameView(PIXELS, PLACEMENT, SCORES, classes=CATS), result(SCORES))
    assert drawn.shape == plain.shape
    assert drawn.shape[0] < 100
    assert (drawn[8:28, 8:70] != 100).any()
    assert (drawn[:40, 78:80] == 100).all()


def test_top_classes_in_every_file(tmp_path: Path) -> None:
    """JSON lines have them with their labels, MCAP as lines of text above the caption's corner."""
    card = ModelCard(name="m", versions=("1",), platform="p", parameters=CardParameters(classes=CATS))
    sinks = open_sinks(tmp_path, card, ("jsonl", "mcap"))
    sinks.write(FRAME, FrameView(PIXELS, PLACEMENT, SCORES, classes=CATS), result(SCORES))
    sinks.close()
    (line,) = (tmp_path / "results.jsonl").read_text().splitlines()
    top: list[dict[str, Any]] = json.loads(line)["top"]
    assert top[0] == {"class": "cat 281", "number": 281, "score": 1.0}
    assert [each["class"] for each in top[1:]] == ["cat 0", "cat 1", "cat 2", "cat 3"]
    notes = [body for topic, _, _, body in messages(tmp_path / "results.mcap") if topic.endswith("annotations")]
    texts = [each["text"] for each in notes[0]["texts"]]
    assert texts[1:] == ["cat 281 1", "cat 0 0", "cat 1 0", "cat 2 0", "cat 3 0"]
    heights = [each["position"]["y"] for each in notes[0]["texts"]]
    assert heights == sorted(set(heights))
