"""Draw the frames on which two models disagree most: the first, the second, and where they differ."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from mqinfer.answers.outputs import DetectedBox, Picture
from mqinfer.codecs.opencv import opencv
from mqinfer.edge_agent.output_files import set_aside, writing
from mqinfer.edge_agent.sinks.drawing.overlay import add_strip, draw_boxes, draw_result, encode_picture
from mqinfer.edge_agent.sinks.sink import StreamNames
from mqinfer.lab.comparing.difference import AnswerKind
from mqinfer.lab.comparing.tallies import Worst
from mqinfer.protocol.card import ClassInfo

_RED = (255, 0, 0)
_BACKGROUND = 24
_GAP = 8


def write_worst(directory: Path, worst: Sequence[Worst], names: tuple[str, str]) -> list[Path]:
    """Write one PNG a frame, `worst-<other model>-<rank>-<stream>-<sequence>.png`; earlier ones are kept under numbers.

    Args:
        directory: The folder.
        worst: The frames, the largest disagreement first.
        names: Of the two models.

    Raises:
        ConfigError: A file can't be written.
        MissingExtra: OpenCV is not installed.
    """
    streams, written = StreamNames(), []
    for rank, each in enumerate(worst, 1):
        stream, model = streams.of(each.frame.source), names[1].replace("/", "-")
        path = directory / f"worst-{model}-{rank:02d}-{stream}-{each.frame.sequence:06d}.png"
        with writing(path):
            set_aside(path)
            path.write_bytes(encode_picture(draw_worst(each, names), ".png"))
        written.append(path)
    return written


def draw_worst(worst: Worst, names: tuple[str, str]) -> Picture:
    """Return both results and their difference side by side."""
    panels = [draw_result(worst.frame, each.view, each.result) for each in (worst.one, worst.other)]
    panels.append(
        add_strip(_difference(worst, names), f"difference: {worst.found.share:.4f}, {worst.found.kind.meaning}")
    )
    height = max(panel.shape[0] for panel in panels)
    return np.concatenate([_padded(panel, height) for panel in panels], axis=1)


def _padded(panel: Picture, height: int) -> Picture:
    strip = np.full((height - panel.shape[0], *panel.shape[1:]), _BACKGROUND, np.uint8)
    return np.pad(np.concatenate([panel, strip]), ((0, 0), (0, _GAP), (0, 0)), constant_values=255)


def _difference(worst: Worst, names: tuple[str, str]) -> Picture:
    """Return the frame in grey, with what differs in colours."""
    cv2 = opencv()
    one, other = worst.one.view, worst.other.view
    grey = cv2.cvtColor(cv2.cvtColor(one.pixels, cv2.COLOR_RGB2GRAY), cv2.COLOR_GRAY2RGB) // 2
    if worst.found.kind is AnswerKind.MASK and one.answer.mask is not None and other.answer.mask is not None:
        grey[one.answer.mask != other.answer.mask] = _RED
    if worst.found.kind is AnswerKind.BOXES:
        sides = [ClassInfo(f"only {name}", colour) for name, colour in zip(names, _SIDES, strict=True)]
        alone = [(0, each) for each in worst.found.only_first] + [(1, each) for each in worst.found.only_second]
        grey = draw_boxes(grey, [DetectedBox(each.box, each.score, number) for number, each in alone], sides)
    return np.asarray(grey, np.uint8)


_SIDES = ((0, 220, 220), (255, 140, 0))
"""Colours of the boxes that only the first, and only the second model found."""
