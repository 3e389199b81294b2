"""MobileNet (arXiv:1704.04861) at full width, the classifier that serving systems are measured with."""

from __future__ import annotations

from typing import Any

from mqinfer.lab.zoo.export import Network, of_pictures
from mqinfer.lab.zoo.layers import keras, tensorflow

__all__ = ["CLASSES", "mobilenet", "mobilenet_network"]

CLASSES = 1000
_SIDE = 224


def mobilenet(*, seed: int = 0) -> Any:
    """Build the network as Keras has it (4,253,864 parameters); weights are random."""
    keras().utils.set_random_seed(seed)
    return keras().applications.MobileNet(input_shape=(_SIDE, _SIDE, 3), classes=CLASSES, weights=None)


def mobilenet_network() -> Network:
    """Give what is served: uint8 `input` [N,224,224,3] to probabilities `output` [N,1000]."""
    tf, model = tensorflow(), mobilenet()
    return of_pictures(
        lambda pixels: model(tf.cast(pixels, tf.float32) / 127.5 - 1, training=False), (None, _SIDE, _SIDE, 3), model
    )
