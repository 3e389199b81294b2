"""A small ONNX model that makes masks of pictures in batches, for tests."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from mqinfer.lab.drives.labels import CLASSES
from mqinfer.lab.zoo.onnx_graph import OnnxGraph

__all__ = ["HEIGHT", "WIDTH", "write_segmenter"]

HEIGHT, WIDTH = 64, 96


def write_segmenter(repository: Path, name: str = "mask", version: int = 1, seed: int = 0) -> Path:
    """Write a version of a convolution with weights from a seed and ArgMax; return the repository."""
    folder = repository / name / str(version)
    folder.mkdir(parents=True)
    graph = OnnxGraph("uint8", ("N", HEIGHT, WIDTH, 3), seed)
    pixels = graph.node("Transpose", graph.node("Cast", "input", to=1), perm=[0, 3, 1, 2])
    centred = graph.node("Sub", pixels, graph.constant(np.array(128, np.float32)))
    scores = graph.node("Conv", centred, graph.weights(len(CLASSES), 3, 5, 5, fan_in=75), pads=[2, 2, 2, 2])
    graph.node("Cast", graph.node("ArgMax", scores, axis=1, keepdims=0), output="output", to=2)
    graph.add_output("output", "uint8", ("N", HEIGHT, WIDTH))
    graph.write(folder / "model.onnx")
    image = f'max_batch_size = 8\n[image]\ninput = "input"\nwidth = {WIDTH}\nheight = {HEIGHT}\n'
    classes = "".join(f'[[classes]]\nname = "{each.name}"\ncolour = {list(each.colour)}\n' for each in CLASSES)
    (folder.parent / "model.toml").write_text(f"version_policy = {{ all = {{}} }}\n{image}{classes}", encoding="utf-8")
    return repository
