"""`drive_segmentation`, the network of the demo, in each format that workers serve."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mqinfer.lab.zoo.export import Network, of_pictures, write_frozen_graph, write_onnx, write_saved_model
from mqinfer.lab.zoo.layers import tensorflow
from mqinfer.lab.zoo.networks.drive_net import drive_net

__all__ = ["HEIGHT", "WIDTH", "write_graph", "write_onnx_file", "write_saved"]

HEIGHT, WIDTH = 608, 968


def write_graph(weights: Path, classes: int, folder: Path) -> None:
    """Write `model.pb`."""
    write_frozen_graph(_network(weights, classes), folder / "model.pb")


def write_saved(weights: Path, classes: int, folder: Path) -> None:
    """Write `model.savedmodel`."""
    write_saved_model(_network(weights, classes), folder / "model.savedmodel")


def write_onnx_file(weights: Path, classes: int, folder: Path) -> None:
    """Write `model.onnx`."""
    write_onnx(_network(weights, classes), folder / "model.onnx")


def _network(weights: Path, classes: int) -> Network:
    """Normalise, halve, run, double and take the best class, all within the graph."""
    model = drive_net(HEIGHT // 2, WIDTH // 2, classes)
    model.load_weights(weights)
    tf = tensorflow()

    def run(pixels: Any) -> Any:
        halved = tf.nn.avg_pool2d(tf.cast(pixels, tf.float32) / 255, 2, 2, "VALID")
        logits = tf.image.resize(model(halved, training=False), (HEIGHT, WIDTH), "bilinear")
        return tf.cast(tf.argmax(logits, axis=-1, output_type=tf.int32), tf.uint8)

    return of_pictures(run, (None, HEIGHT, WIDTH, 3), model)
