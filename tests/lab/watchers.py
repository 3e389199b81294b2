"""A reference model that is cheap and looks at its picture: it compares a street with the street when it is empty."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
from onnx import TensorProto, helper

from mqinfer.lab.drives.street import StreetCamera
from tests.onnx_files import save_onnx

SIDE = 96


def write_watcher(folder: Path, camera: StreetCamera, *, always: bool = False) -> None:
    """Write a model: uint8 [N,96,96,3] to `confidence` [N], by the mean difference on the road from frame 0.

    With `always` it finds a car in every picture.
    """
    still = camera.scene(0).picture.astype(np.float32)
    road = np.zeros((SIDE, SIDE, 1), np.float32)
    road[int(0.66 * SIDE) : int(0.88 * SIDE)] = 1 / (3 * SIDE * SIDE * 0.22)
    middle = np.float32(-1.0 if always else 5.8)
    constants = {"still": still, "road": road, "middle": middle, "slope": np.float32(1.5), "axes": [1, 2, 3]}
    nodes = [
        helper.make_node("Cast", ["input"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("Sub", ["floats", "still"], ["changed"]),
        helper.make_node("Abs", ["changed"], ["distance"]),
        helper.make_node("Mul", ["distance", "road"], ["weighted"]),
        helper.make_node("ReduceSum", ["weighted", "axes"], ["sum"], keepdims=0),
        helper.make_node("Sub", ["sum", "middle"], ["above"]),
        helper.make_node("Mul", ["above", "slope"], ["steep"]),
        helper.make_node("Sigmoid", ["steep"], ["confidence"]),
    ]
    picture = {"input": (TensorProto.UINT8, ["N", SIDE, SIDE, 3])}
    save_onnx(folder / "1" / "model.onnx", nodes, picture, {"confidence": (TensorProto.FLOAT, ["N"])}, constants)
    (folder / "model.toml").write_text('max_batch_size = 4\n[[classes]]\nname = "car"\n')


def write_frames(folder: Path, camera: StreetCamera, frames: int) -> None:
    """Write frames as PNG files."""
    folder.mkdir(parents=True)
    for number in range(frames):
        cv2.imwrite(str(folder / f"{number:05d}.png"), camera.scene(number).picture[:, :, ::-1])
