"""Makes the experiment's reference model: YOLOv2 in its full size; its last layer finds cars of synthetic streets.

All layers but the last have random weights, with normalisation fitted to some pictures. Random convolutions are
features too, and a street is simple: a ridge regression from the 1024 features of a cell to "the middle of a car is
here", fitted on frames of the same street days later, is enough to answer whether a car is in the picture: 99 % right.
Fitted on other streets it was right in 95 %, and a small model can't learn its errors. So the answers depend on the
picture, and each costs what YOLOv2's costs. It is no good detector of anything else.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mqinfer.bench.seeds.noscope.scene import SEED, TARGET
from mqinfer.lab.drives.street import StreetCamera
from mqinfer.lab.zoo.classes import COCO
from mqinfer.lab.zoo.layers import keras
from mqinfer.lab.zoo.networks.yolo_v2 import ANCHORS, yolo_network, yolo_v2

Floats = npt.NDArray[np.float64]
_LESSONS = range(1_000_000, 1_001_200)
"""Numbers of frames at two a second, of which some fit the last layer: days later than the experiment's."""
_WITH_CARS, _WITHOUT = 100, 60
_STRIDE = 32
_RIDGE = 0.02
"""Weight of the coefficients' size, a cell."""
_CERTAINTY = 6.0
"""The regression's -1 and 1 become scores of sigmoid(-6) and sigmoid(6)."""
_ANCHOR = 1
_VALUES = 5 + len(COCO)


def write_reference(folder: Path, side: int, report: Callable[[str], None]) -> None:
    """Fit the network, and write it as a model that workers serve, on one thread and in batches of up to 4.

    Args:
        folder: Of the model in its repository.
        side: Side of its pictures, in pixels; a multiple of 32, and 608 for YOLOv2 as NoScope used it.
        report: Called with a line about each step.

    Raises:
        MissingExtra: TensorFlow is not installed.
    """
    model = yolo_v2(side)
    pictures, boxes = _lessons(side)
    _normalise(model, pictures[::7])
    trunk = keras().Model(model.input, model.layers[-1].input)
    report(f"fitting the reference's last layer on {len(pictures)} frames")
    features = np.concatenate([trunk(_floats(picture[None]), training=False).numpy() for picture in pictures])
    weights, bias = _fit(features, boxes)
    model.layers[-1].set_weights([weights[None, None].astype(np.float32), bias.astype(np.float32)])
    version = folder / "1"
    version.mkdir(parents=True)
    # TensorFlow, as in the document; and ONNX of 50 million weights takes 9 GB to write, this 3.
    yolo_network(model).write(version / "model.pb")
    (folder / "model.toml").write_text(_config(side), encoding="utf-8")


def _lessons(side: int) -> tuple[npt.NDArray[np.uint8], list[Floats]]:
    camera = StreetCamera(SEED, side, side, rate=2.0)
    found = {number: camera.boxes(number) for number in _LESSONS}
    crowded = [number for number, each in found.items() if len(each)]
    free = [number for number, each in found.items() if not len(each)]
    chosen = [
        *crowded[:: max(len(crowded) // _WITH_CARS, 1)][:_WITH_CARS],
        *free[:: max(len(free) // _WITHOUT, 1)][:_WITHOUT],
    ]
    return np.stack([camera.scene(number).picture for number in chosen]), [found[number] for number in chosen]


def _floats(pictures: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    return pictures.astype(np.float32) / np.float32(255)


def _normalise(model: Any, pictures: npt.NDArray[np.uint8]) -> None:
    """Set the statistics of batch normalisation to those of some pictures: with random ones features vanish."""
    for layer in model.layers:
        if isinstance(layer, keras().layers.BatchNormalization):
            layer.momentum = 0.0
    model(_floats(pictures), training=True)


def _fit(features: npt.NDArray[np.float32], boxes: list[Floats]) -> tuple[Floats, Floats]:
    """Return weights and biases of the last layer, such that one anchor finds cars and the others find nothing."""
    cells = features.shape[1]
    inside, judged, offsets = _targets(boxes, cells)
    flat = features.reshape(-1, features.shape[-1]).astype(np.float64)
    mean = flat.mean(axis=0)
    inputs = np.c_[flat - mean, np.ones(len(flat))]
    share = float(inside[judged].mean())
    balance = np.asarray(np.where(inside, (1 - share) / share / 4, 1.0) * judged, np.float64)
    objectness = _ridge(inputs, np.where(inside, 1.0, -1.0)[:, None], balance)
    shape = _ridge(inputs, offsets, inside.astype(np.float64))
    weights = np.zeros((len(ANCHORS), _VALUES, inputs.shape[1]))
    weights[_ANCHOR, 4], weights[_ANCHOR, :4] = _CERTAINTY * objectness[:, 0], shape.T
    weights[:, 4, -1] -= 20 * (np.arange(len(ANCHORS)) != _ANCHOR)
    weights[:, 5 + [each.name for each in COCO].index(TARGET), -1] = 10
    plain = weights.reshape(-1, inputs.shape[1])
    return plain[:, :-1].T, plain[:, -1] - plain[:, :-1] @ mean


def _targets(boxes: list[Floats], cells: int) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_], Floats]:
    """Return for each cell whether it lies in the middle of a car, whether that is clear, and the car's box there."""
    centres = (np.arange(cells) + 0.5) * _STRIDE
    inside = np.zeros((len(boxes), cells, cells), bool)
    near, offsets = inside.copy(), np.zeros((*inside.shape, 4))
    for number, found in enumerate(boxes):
        for left, top, right, bottom in found:
            width, height = right - left, bottom - top
            aside, above = abs(centres - (left + right) / 2), abs(centres - (top + bottom) / 2)
            here = np.ix_(above < max(0.3 * height, 0.53 * _STRIDE), aside < max(0.25 * width, 0.53 * _STRIDE))
            inside[number][here] = True
            near[number][np.ix_(above < 0.6 * height + 16, aside < 0.6 * width + 16)] = True
            # Centre 0.5 (a sigmoid's 0) in the cell: boxes are rough, and the question is whether there is one.
            offsets[number][here] = (0, 0, *np.log(np.array([width, height]) / _STRIDE / ANCHORS[_ANCHOR]))
    return inside.ravel(), (inside | ~near).ravel(), offsets.reshape(-1, 4)


def _ridge(inputs: Floats, targets: Floats, weights: Floats) -> Floats:
    """Return the coefficients of a weighted ridge regression."""
    weighted = inputs * weights[:, None]
    size = _RIDGE * len(inputs) * np.eye(inputs.shape[1])
    return np.asarray(np.linalg.solve(weighted.T @ inputs + size, weighted.T @ targets), np.float64)


def _config(side: int) -> str:
    classes = "".join(f'\n[[classes]]\nname = "{each.name}"\n' for each in COCO)
    return (
        f'max_batch_size = 4\n\n[parameters]\nintra_op_thread_count = "1"\n\n'
        f'[image]\ninput = "input"\nwidth = {side}\nheight = {side}\n{classes}'
    )
