"""`drive_segmentation`, the network of the demo, in each format that workers serve."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mqinfer.lab.zoo.export import Network, of_pictures, write_frozen_graph, write_onnx, write_saved_model
from mqinfer.lab.zoo.layers import tensorflow
from mqinfer.lab.zoo.networks.drive_net import drive_net

__all__ = [
    "HEIGHT",
    "LARGE_HEIGHT",
    "LARGE_WIDTH",
    "WIDTH",
    "write_graph",
    "write_large_onnx",
    "write_onnx_file",
    "write_saved",
]

HEIGHT, WIDTH = 608, 968
LARGE_HEIGHT, LARGE_WIDTH = 1024, 2048


def write_graph(weights: Path, classes: int, folder: Path) -> None:
    """Write `model.pb`."""
    write_frozen_graph(_network(weights, classes), folder / "model.pb")


def write_saved(weights: Path, classes: int, folder: Path) -> None:
    """Write `model.savedmodel`."""
    write_saved_model(_network(weights, classes), folder / "model.savedmodel")


def write_onnx_file(weights: Path, classes: int, folder: Path) -> None:
    """Write `model.onnx`."""
    write_onnx(_network(weights, classes), folder / "model.onnx")


def write_large_onnx(weights: Path, classes: int, folder: Path) -> None:
    """Write `model.onnx` for pictures of `LARGE_WIDTH` and `LARGE_HEIGHT`; the network takes any size."""
    write_onnx(_network(weights, classes, (LARGE_HEIGHT, LARGE_WIDTH)), folder / "model.onnx")


def _network(weights: Path, classes: int, size: tuple[int, int] = (HEIGHT, WIDTH)) -> Network:
    """Normalise, halve, run, double and take the best class, all within the graph."""
    height, width = size
    model = drive_net(height // 2, width // 2, classes)
    model.load_weights(weights)
    tf = tensorflow()

    def run(pixels: Any) -> Any:
        halved = tf.nn.avg_pool2d(tf.cast(pixels, tf.float32) / 255, 2, 2, "VALID")
        logits = tf.image.resize(model(halved, training=False), (height, width), "bilinear")
        return tf.cast(tf.argmax(logits, axis=-1, output_type=tf.int32), tf.uint8)

    return of_pictures(run, (None, height, width, 3), model)
