"""A small segmentation network for synthetic drives: dilated, depthwise separable, with skip connections."""

from __future__ import annotations

from typing import Any

from mqinfer.lab.zoo.layers import conv, keras, separable, upsample

__all__ = ["drive_net"]


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
