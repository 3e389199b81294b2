"""`drive_segmentation`: the network of the demo, in each format that workers serve."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mqinfer.models.zoo.drive_net import drive_net
from mqinfer.models.zoo.export import Inference, write_frozen_graph, write_onnx, write_saved_model
from mqinfer.models.zoo.layers import tensorflow

__all__ = ["HEIGHT", "WIDTH", "write_graph", "write_onnx_file", "write_saved"]

HEIGHT, WIDTH = 608, 968
_SHAPE = (None, HEIGHT, WIDTH, 3)


def write_graph(weights: Path, classes: int, folder: Path) -> None:
    """Write `model.pb`."""
    write_frozen_graph(_inference(_load(weights, classes)), _SHAPE, "uint8", folder / "model.pb")


def write_saved(weights: Path, classes: int, folder: Path) -> None:
    """Write `model.savedmodel`."""
    model = _load(weights, classes)
    write_saved_model(_inference(model), _SHAPE, "uint8", folder / "model.savedmodel", model)


def write_onnx_file(weights: Path, classes: int, folder: Path) -> None:
    """Write `model.onnx`."""
    write_onnx(_inference(_load(weights, classes)), _SHAPE, "uint8", folder / "model.onnx")


def _load(weights: Path, classes: int) -> Any:
    model = drive_net(HEIGHT // 2, WIDTH // 2, classes)
    model.load_weights(weights)
    return model


def _inference(model: Any) -> Inference:
    """Normalise, halve, run, double, and keep the best class: logits never leave the graph."""
    tf = tensorflow()

    def run(pixels: Any) -> Any:
        halved = tf.nn.avg_pool2d(tf.cast(pixels, tf.float32) / 255, 2, 2, "VALID")
        logits = tf.image.resize(model(halved, training=False), (HEIGHT, WIDTH), "bilinear")
        return tf.cast(tf.argmax(logits, axis=-1, output_type=tf.int32), tf.uint8)

    return run
