"""Writes four segmentation networks in full size with random weights, for measurements of speed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mqinfer.lab.zoo.export import Inference, of_pictures, write_frozen_graph, write_saved_model
from mqinfer.lab.zoo.layers import tensorflow
from mqinfer.lab.zoo.networks.segmentation import deeplab_v3_plus, encoder_decoder, mobilenet_v3_segmentation

__all__ = ["write_deeplab", "write_encoder_decoder", "write_mobilenet_large", "write_mobilenet_small"]


def write_mobilenet_small(folder: Path) -> None:
    """Write `model.pb`: uint8 picture [1,608,968,3] in, uint8 mask [1,608,968] out."""
    _write_mask_graph(mobilenet_v3_segmentation("small", 608, 968), folder)


def write_mobilenet_large(folder: Path) -> None:
    """Write `model.pb`: uint8 picture [1,608,968,3] in, uint8 mask [1,608,968] out."""
    _write_mask_graph(mobilenet_v3_segmentation("large", 608, 968), folder)


def write_deeplab(folder: Path) -> None:
    """Write `model.savedmodel`: uint8 picture [N,1024,2048,3] in, float32 logits [N,1024,2048,19] out."""
    _write_logits_model(deeplab_v3_plus(1024, 2048), folder)


def write_encoder_decoder(folder: Path) -> None:
    """Write `model.savedmodel`: uint8 picture [N,1024,2048,3] in, float32 logits [N,1024,2048,19] out."""
    _write_logits_model(encoder_decoder(1024, 2048), folder)


def _write_mask_graph(model: Any, folder: Path) -> None:
    tf = tensorflow()
    logits = _logits(model)

    def mask(pixels: Any) -> Any:
        return tf.cast(tf.argmax(logits(pixels), axis=-1, output_type=tf.int32), tf.uint8)

    write_frozen_graph(of_pictures(mask, (1, 608, 968, 3), model), folder / "model.pb")


def _write_logits_model(model: Any, folder: Path) -> None:
    network = of_pictures(_logits(model), (None, 1024, 2048, 3), model)
    write_saved_model(network, folder / "model.savedmodel")


def _logits(model: Any) -> Inference:
    tf = tensorflow()
    return lambda pixels: model(tf.cast(pixels, tf.float32) / 255, training=False)
