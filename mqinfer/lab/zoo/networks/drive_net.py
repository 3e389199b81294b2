"""A small segmentation network for synthetic drives: dilated, depthwise separable, with skip connections."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mqinfer.lab.zoo.export import Network, of_pictures
from mqinfer.lab.zoo.layers import conv, keras, separable, tensorflow, upsample


def drive_net(height: int, width: int, classes: int) -> Any:
    """Build the network.

    The encoder reduces the size to an eighth, where dilated residual blocks cover most of the road. The decoder has a
    skip connection at each scale, since poles and lane marks are a pixel or two wide.

    Args:
        height: Height of the input, in pixels.
        width: Width of the input, in pixels.
        classes: Number of classes.

    Returns:
        A Keras model from float32 [N,height,width,3], 0 to 1, to logits float32 [N,height,width,classes].
    """
    layers = keras().layers
    picture = keras().Input((height, width, 3), name="picture")
    half = separable(conv(picture, 24, 3, stride=2), 24)
    quarter = separable(separable(half, 48, stride=2), 48)
    eighth = separable(quarter, 96, stride=2)
    for dilation in (1, 2, 4, 8, 1):
        eighth = layers.Add()([eighth, separable(eighth, 96, dilation=dilation)])
    up = separable(layers.Concatenate()([upsample(eighth, quarter), quarter]), 32)
    up = separable(layers.Concatenate()([upsample(up, half), half]), 48)
    logits = layers.Conv2DTranspose(classes, 2, strides=2, name="logits")(up)
    return keras().Model(picture, logits)


def drive_segmentation(weights: Path, classes: int, size: tuple[int, int]) -> Network:
    """Return the served network, of the demo: it normalises, halves, runs, doubles and takes the best class.

    Args:
        weights: File of the trained weights; they fit any size.
        classes: Number of classes.
        size: Height and width of the pictures.
    """
    height, width = size
    model = drive_net(height // 2, width // 2, classes)
    model.load_weights(weights)
    tf = tensorflow()

    def run(pixels: Any) -> Any:
        halved = tf.nn.avg_pool2d(tf.cast(pixels, tf.float32) / 255, 2, 2, "VALID")
        logits = tf.image.resize(model(halved, training=False), (height, width), "bilinear")
        return tf.cast(tf.argmax(logits, axis=-1, output_type=tf.int32), tf.uint8)

    return of_pictures(run, (None, height, width, 3), model)
