"""NoScope's specialised network: is the object in the picture? 50x50 pixels, a millisecond, one camera, one object.

The shape is that of NoScope's own search space (arXiv:1703.02529, section 5; 2 to 4 convolutions of 32 or 64 filters,
dense layers of 32 to 256), at its larger end. It asks a reference network only where it is not sure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mqinfer.lab.zoo.export import Input, Network
from mqinfer.lab.zoo.layers import keras, tensorflow

__all__ = ["SIDE", "noscope", "noscope_network"]

SIDE = 50


def noscope(*, seed: int = 0) -> Any:
    """Build the network: float32 [N,50,50,3], 0 to 1, to the probabilities of "absent" and "present", [N,2]."""
    keras().utils.set_random_seed(seed)
    layers = keras().layers
    picture = layers.Input((SIDE, SIDE, 3))
    tensor = picture
    for filters in (32, 64):
        for _ in range(2):
            tensor = layers.Conv2D(filters, 3, padding="same", activation="relu")(tensor)
        tensor = layers.MaxPooling2D()(tensor)
    tensor = layers.Dense(128, activation="relu")(layers.Flatten()(tensor))
    return keras().Model(picture, layers.Dense(2, activation="softmax")(tensor))


def noscope_network() -> Network:
    """Give what is served: uint8 `input` [N,50,50,3] to `confidence` [N], 0 to 1, that the object is there."""
    tf, model = tensorflow(), noscope()

    def infer(pixels: Any) -> Mapping[str, Any]:
        return {"confidence": model(tf.cast(pixels, tf.float32) / 255, training=False)[:, 1]}

    return Network(infer, (Input("input", (None, SIDE, SIDE, 3), "uint8"),), ("confidence",), model.variables)
