"""Segmentation networks: Keras models from pictures float32 [N,H,W,3], 0 to 1, to logits [N,H,W,19].

Weights are random, from one seed.
"""

from __future__ import annotations

from typing import Any

from mqinfer.lab.zoo.export import Inference, Network, of_pictures
from mqinfer.lab.zoo.layers import conv, keras, separable, tensorflow, upsample
from mqinfer.lab.zoo.networks.mobilenet_v3 import Size, mobilenet_v3

_TAIL: dict[Size, float] = {"small": 1.0, "large": 0.625}
"""Factor on the width of the last blocks, for files of 4.6 and 8.6 MB."""
_RATES = (12, 24, 36)
_CLASSES = 19
"""Those of Cityscapes."""


def mobilenet_v3_segmentation(size: Size, height: int, width: int) -> Any:
    """Build MobileNetV3 at output stride 8 with the LR-ASPP head (arXiv:1905.02244, section 6.4).

    Args:
        size: Size of the backbone.
        height: Height of the picture, in pixels.
        width: Width of the picture, in pixels.

    Returns:
        The Keras model.
    """
    picture = _picture(height, width)
    low, last = mobilenet_v3(picture, size, tail=_TAIL[size])
    layers = keras().layers
    context = layers.GlobalAveragePooling2D(keepdims=True)(last)
    gate = layers.Conv2D(128, 1, use_bias=False, activation="sigmoid")(context)
    deep = upsample(layers.Multiply()([conv(last, 128), gate]), low)
    logits = layers.Add()([layers.Conv2D(_CLASSES, 1)(deep), layers.Conv2D(_CLASSES, 1)(low)])
    return keras().Model(picture, upsample(logits, picture))


def deeplab_v3_plus() -> Any:
    """Build DeepLabV3+ (arXiv:1802.02611) on MobileNetV3-large at output stride 8, with full convolutions.

    Returns:
        The Keras model, for pictures of 2048x1024.
    """
    picture = _picture(1024, 2048)
    low, last = mobilenet_v3(picture, "large")
    deep = upsample(_pyramid(last, 256), low)
    fine = keras().layers.Concatenate()([deep, conv(low, 48)])
    fine = conv(conv(fine, 256, 3), 256, 3)
    return keras().Model(picture, upsample(keras().layers.Conv2D(_CLASSES, 1)(fine), picture))


def _pyramid(tensor: Any, filters: int) -> Any:
    """Combine several dilations and global features: atrous spatial pyramid pooling (arXiv:1706.05587)."""
    layers = keras().layers
    whole = conv(layers.GlobalAveragePooling2D(keepdims=True)(tensor), filters)
    distances = [conv(tensor, filters, 3, dilation=rate) for rate in _RATES]
    return conv(layers.Concatenate()([conv(tensor, filters), *distances, upsample(whole, tensor)]), filters)


def encoder_decoder() -> Any:
    """Build a network in the manner of U-Net (arXiv:1505.04597) with depthwise separable convolutions.

    The encoder reduces the size to a 32nd, where nearly all weights are. The decoder returns to a quarter, with a skip
    connection at each scale.

    Returns:
        The Keras model, for pictures of 2048x1024.
    """
    layers = keras().layers
    picture = _picture(1024, 2048)
    tensor, skips = conv(picture, 32, 3, stride=2), []
    for filters in (64, 128, 320):
        tensor = separable(separable(tensor, filters, stride=2), filters)
        skips.append(tensor)
    tensor = separable(tensor, 928, stride=2)
    for dilation in (1, 2, 4, 8, 4, 2, 1):
        tensor = layers.Add()([tensor, separable(tensor, 928, dilation=dilation)])
    for filters, skip in zip((320, 128, 64), reversed(skips), strict=True):
        tensor = layers.Concatenate()([upsample(tensor, skip), skip])
        tensor = separable(separable(tensor, filters), filters)
    return keras().Model(picture, upsample(layers.Conv2D(_CLASSES, 1)(tensor), picture))


def _picture(height: int, width: int) -> Any:
    keras().utils.set_random_seed(0)
    return keras().Input((height, width, 3), name="picture")


def mask_network(size: Size) -> Network:
    """Return MobileNetV3 as it is served: uint8 picture [1,608,968,3] in, uint8 mask [1,608,968] out."""
    tf, model = tensorflow(), mobilenet_v3_segmentation(size, 608, 968)
    logits = _logits(model)

    def mask(pixels: Any) -> Any:
        return tf.cast(tf.argmax(logits(pixels), axis=-1, output_type=tf.int32), tf.uint8)

    return of_pictures(mask, (1, 608, 968, 3), model)


def logits_network(model: Any) -> Network:
    """Return a model as it is served: uint8 picture [N,1024,2048,3] in, float32 logits [N,1024,2048,19] out."""
    return of_pictures(_logits(model), (None, 1024, 2048, 3), model)


def _logits(model: Any) -> Inference:
    tf = tensorflow()
    return lambda pixels: model(tf.cast(pixels, tf.float32) / 255, training=False)
