"""Building blocks of the zoo's networks (Keras 3 on TensorFlow)."""

from __future__ import annotations

from typing import Any

from mqinfer.extras import import_extra


def tensorflow() -> Any:
    """Import TensorFlow.

    Raises:
        MissingExtra: It is not installed.
    """
    tf = import_extra("tensorflow", "tensorflow", "tensorflow-cpu")
    tf.get_logger().setLevel("ERROR")  # its own converters use deprecated functions
    return tf


def keras() -> Any:
    """Import Keras, which TensorFlow brings.

    Raises:
        MissingExtra: TensorFlow is not installed.
    """
    tensorflow()
    import keras as library

    return library


def conv(  # noqa: PLR0913 - a convolution has this many degrees of freedom
    tensor: Any,
    filters: int,
    kernel: int = 1,
    *,
    stride: int = 1,
    dilation: int = 1,
    activation: str | None = "relu",
) -> Any:
    """Convolve, normalise by batch statistics, and activate: NHWC in and out, `same` padding."""
    layers = keras().layers
    tensor = layers.Conv2D(
        filters, kernel, strides=stride, dilation_rate=dilation, padding="same", use_bias=False
    )(tensor)  # fmt: skip
    return _activate(layers.BatchNormalization(momentum=0.9)(tensor), activation)


def depthwise(tensor: Any, kernel: int, *, stride: int = 1, dilation: int = 1, activation: str | None = "relu") -> Any:
    """Convolve each channel separately, normalise and activate."""
    layers = keras().layers
    tensor = layers.DepthwiseConv2D(
        kernel, strides=stride, dilation_rate=dilation, padding="same", use_bias=False
    )(tensor)  # fmt: skip
    return _activate(layers.BatchNormalization(momentum=0.9)(tensor), activation)


def separable(tensor: Any, filters: int, *, stride: int = 1, dilation: int = 1) -> Any:
    """Convolve depthwise 3x3, then pointwise: about an eighth of a full convolution's work."""
    layers = keras().layers
    tensor = layers.DepthwiseConv2D(3, strides=stride, dilation_rate=dilation, padding="same", use_bias=False)(tensor)
    return conv(tensor, filters)


def upsample(tensor: Any, like: Any) -> Any:
    """Resize bilinearly to the height and width of another tensor."""
    height, width = like.shape[1:3]
    return keras().layers.Resizing(height, width, interpolation="bilinear")(tensor)


def _activate(tensor: Any, activation: str | None) -> Any:
    return tensor if activation is None else keras().layers.Activation(activation)(tensor)
