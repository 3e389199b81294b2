"""Two classifiers: MobileNet, which serving systems are measured with, and the specialised network of NoScope.

MobileNet (arXiv:1704.04861) has its full width. NoScope's network answers whether one object is in the picture of one
camera, in a millisecond. Its shape is the larger end of the paper's search space (arXiv:1703.02529, section 5: 2 to 4
convolutions of 32 or 64 filters, dense layers of 32 to 256). NoScope asks a reference network only where it is unsure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mqinfer.lab.zoo.export import Input, Network, of_pictures
from mqinfer.lab.zoo.layers import keras, tensorflow

CLASSES = 1000
"""Classes of MobileNet."""
SIDE = 50
"""Width and height of NoScope's input, in pixels."""
_SIDE = 224


def mobilenet() -> Any:
    """Build Keras's network (4,253,864 parameters) with random weights."""
    keras().utils.set_random_seed(0)
    return keras().applications.MobileNet(input_shape=(_SIDE, _SIDE, 3), classes=CLASSES, weights=None)


def mobilenet_network() -> Network:
    """Return the served network: uint8 `input` [N,224,224,3] to probabilities `output` [N,1000]."""
    tf, model = tensorflow(), mobilenet()
    return of_pictures(
        lambda pixels: model(tf.cast(pixels, tf.float32) / 127.5 - 1, training=False), (None, _SIDE, _SIDE, 3), model
    )


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


def noscope_network(trained: Any = None, mean: Any = 0.0, spread: float = 1.0) -> Network:
    """Return the served network: uint8 `input` [N,50,50,3] to `confidence` [N], 0 to 1, that the object is present.

    Args:
        trained: What `noscope` built, trained; None for random weights.
        mean: What is subtracted from a picture of 0 to 1 before it is shown to the network.
        spread: What it is divided by then.
    """
    tf, model = tensorflow(), trained or noscope()

    def infer(pixels: Any) -> Mapping[str, Any]:
        return {"confidence": model((tf.cast(pixels, tf.float32) / 255 - mean) / spread, training=False)[:, 1]}

    return Network(infer, (Input("input", (None, SIDE, SIDE, 3), "uint8"),), ("confidence",), model.variables)
