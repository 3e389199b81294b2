"""Pictures that carry their number in blocks of grey, a model that makes a mask of the blocks, and the way back.

A picture has eight blocks of one of four levels each: two bits, so 65,536 numbers. The model's mask has the level as
its class, so a mask carries the number of its picture, and a page's canvases can be compared pixel by pixel.
"""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt

from mqinfer.edge_agent.sinks.drawing.overlay import palette
from mqinfer.lab.zoo.onnx_graph import OnnxGraph
from mqinfer.protocol.card import ClassInfo

__all__ = [
    "CLASSES",
    "COLUMNS",
    "HEIGHT",
    "LEVELS",
    "ROWS",
    "WIDTH",
    "levels_of",
    "mask_of",
    "palette_rows",
    "picture_of",
]
__all__ += ["write_numbered", "write_reader"]

WIDTH, HEIGHT = 96, 64
ROWS, COLUMNS = 2, 4
LEVELS = (40, 100, 160, 220)
_STEP, _FIRST = 60.0, 10.0
"""Level n is between `_FIRST + n * _STEP` and the next one, with room for what JPEG does to it."""

CLASSES = (ClassInfo("low", (200, 30, 30)), ClassInfo("middle", (30, 200, 30)), ClassInfo("high", (30, 30, 200)))
"""The fourth class has no colour on the card, and gets the palette's own."""


def levels_of(number: int) -> list[int]:
    """Return the level of each block, from the upper left one, row by row; the least bits first."""
    return [number >> 2 * block & 3 for block in range(ROWS * COLUMNS)]


def mask_of(number: int) -> npt.NDArray[np.uint8]:
    """Return the mask that carries a number, `[HEIGHT, WIDTH]`."""
    blocks = np.array(levels_of(number), np.uint8).reshape(ROWS, COLUMNS)
    return np.kron(blocks, np.ones((HEIGHT // ROWS, WIDTH // COLUMNS), np.uint8))


def picture_of(number: int) -> npt.NDArray[np.uint8]:
    """Return the picture that carries a number, `[HEIGHT, WIDTH, 3]`."""
    grey = np.array(LEVELS, np.uint8)[mask_of(number)]
    return np.repeat(grey[:, :, np.newaxis], 3, axis=2)


def palette_rows() -> list[list[int]]:
    """Return the colour of each level in a mask's canvas."""
    return [[int(part) for part in row] for row in palette(CLASSES)[: len(LEVELS)]]


def write_numbered(folder: Path, count: int) -> Path:
    """Write pictures 0, 1, … into a new folder; an edge that reads it gives each its number as its sequence."""
    folder.mkdir(parents=True)
    for number in range(count):
        assert cv2.imwrite(str(folder / f"{number}.png"), picture_of(number))
    return folder


def write_reader(repository: Path, name: str) -> Path:
    """Write the model that makes masks of such pictures; return the repository."""
    folder = repository / name / "1"
    folder.mkdir(parents=True)
    graph = OnnxGraph("uint8", ("N", HEIGHT, WIDTH, 3))
    red = graph.node("Slice", graph.node("Cast", "input", to=1), *map(graph.integers, (0, 1, 3)))
    centred = graph.node("Sub", red, graph.constant(np.array(_FIRST, np.float32)))
    level = graph.node("Floor", graph.node("Div", centred, graph.constant(np.array(_STEP, np.float32))))
    bounded = graph.node("Clip", level, *(graph.constant(np.array(each, np.float32)) for each in (0.0, 3.0)))
    graph.node("Squeeze", graph.node("Cast", bounded, to=2), graph.integers(3), output="output")
    graph.add_output("output", "uint8", ("N", HEIGHT, WIDTH))
    graph.write(folder / "model.onnx")
    image = f'max_batch_size = 8\n[image]\ninput = "input"\nwidth = {WIDTH}\nheight = {HEIGHT}\n'
    classes = "".join(f'[[classes]]\nname = "{each.name}"\ncolour = {list(each.colour)}\n' for each in CLASSES)
    (folder.parent / "model.toml").write_text(image + classes, encoding="utf-8")
    return repository
