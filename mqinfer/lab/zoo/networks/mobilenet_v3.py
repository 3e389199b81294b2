"""MobileNetV3's features (arXiv:1905.02244, tables 1 and 2), with dilation instead of the later strides."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from mqinfer.lab.zoo.layers import conv, depthwise, keras

Size = Literal["small", "large"]

_RELU, _HARD_SWISH = "relu", "hard_silu"


class _Block(NamedTuple):
    """A row of the paper's tables."""

    kernel: int
    expanded: int
    filters: int
    squeeze: bool
    activation: str
    stride: int


_SMALL = (
    _Block(3, 16, 16, True, _RELU, 2),
    _Block(3, 72, 24, False, _RELU, 2),
    _Block(3, 88, 24, False, _RELU, 1),
    _Block(5, 96, 40, True, _HARD_SWISH, 2),
    _Block(5, 240, 40, True, _HARD_SWISH, 1),
    _Block(5, 240, 40, True, _HARD_SWISH, 1),
    _Block(5, 120, 48, True, _HARD_SWISH, 1),
    _Block(5, 144, 48, True, _HARD_SWISH, 1),
    _Block(5, 288, 96, True, _HARD_SWISH, 2),
    _Block(5, 576, 96, True, _HARD_SWISH, 1),
    _Block(5, 576, 96, True, _HARD_SWISH, 1),
)
_LARGE = (
    _Block(3, 16, 16, False, _RELU, 1),
    _Block(3, 64, 24, False, _RELU, 2),
    _Block(3, 72, 24, False, _RELU, 1),
    _Block(5, 72, 40, True, _RELU, 2),
    _Block(5, 120, 40, True, _RELU, 1),
    _Block(5, 120, 40, True, _RELU, 1),
    _Block(3, 240, 80, False, _HARD_SWISH, 2),
    _Block(3, 200, 80, False, _HARD_SWISH, 1),
    _Block(3, 184, 80, False, _HARD_SWISH, 1),
    _Block(3, 184, 80, False, _HARD_SWISH, 1),
    _Block(3, 480, 112, True, _HARD_SWISH, 1),
    _Block(3, 672, 112, True, _HARD_SWISH, 1),
    _Block(5, 672, 160, True, _HARD_SWISH, 2),
    _Block(5, 960, 160, True, _HARD_SWISH, 1),
    _Block(5, 960, 160, True, _HARD_SWISH, 1),
)
_BLOCKS: dict[Size, tuple[_Block, ...]] = {"small": _SMALL, "large": _LARGE}
_TAIL = 3
"""Number of blocks at stride 32 in both tables."""
_LOW_STRIDE = 4


def mobilenet_v3(picture: Any, size: Size, *, output_stride: int = 8, tail: float = 1.0) -> tuple[Any, Any]:
    """Add the network up to its last 1x1 convolution to a graph.

    Beyond the output stride, a stride becomes a dilation of all later blocks, so that the receptive fields stay.

    Args:
        picture: Keras tensor [N,H,W,3].
        size: Table of the paper.
        output_stride: Stride of the last features: 8, 16 or 32.
        tail: Factor on the widths of the blocks at stride 32 and of the last convolution; the paper halves them for
            segmentation.

    Returns:
        Features at stride 4, for fine outlines, and the last features.
    """
    low = tensor = conv(picture, 16, 3, stride=2, activation=_HARD_SWISH)
    stride, dilation = 2, 1
    for block in _narrowed(_BLOCKS[size], tail):
        strided = block.stride if stride * block.stride <= output_stride else 1
        tensor = _inverted_residual(tensor, block, strided, dilation)
        stride, dilation = stride * strided, dilation * block.stride // strided
        low = tensor if stride == _LOW_STRIDE else low
    return low, conv(tensor, 6 * tensor.shape[-1], activation=_HARD_SWISH)


def _narrowed(blocks: tuple[_Block, ...], tail: float) -> tuple[_Block, ...]:
    """Scale the widths of the tail; its input at stride 16 keeps its width."""
    head, (first, *rest) = blocks[:-_TAIL], blocks[-_TAIL:]
    filters = _eights(first.filters * tail)
    narrow = [block._replace(filters=filters, expanded=_eights(block.expanded * tail)) for block in rest]
    return (*head, first._replace(filters=filters), *narrow)


def _inverted_residual(tensor: Any, block: _Block, stride: int, dilation: int) -> Any:
    channels = tensor.shape[-1]
    inner = tensor if block.expanded == channels else conv(tensor, block.expanded, activation=block.activation)
    inner = depthwise(inner, block.kernel, stride=stride, dilation=dilation, activation=block.activation)
    inner = _squeeze_and_excite(inner) if block.squeeze else inner
    inner = conv(inner, block.filters, activation=None)
    # By the stride in the table: a stride that became a dilation gets no shortcut.
    return keras().layers.Add()([tensor, inner]) if block.stride == 1 and channels == block.filters else inner


def _squeeze_and_excite(tensor: Any) -> Any:
    """Weight the channels by global features (squeeze and excite)."""
    layers = keras().layers
    channels = tensor.shape[-1]
    squeezed = layers.GlobalAveragePooling2D(keepdims=True)(tensor)
    squeezed = layers.Conv2D(_eights(channels / 4), 1, activation="relu")(squeezed)
    return layers.Multiply()([tensor, layers.Conv2D(channels, 1, activation="hard_sigmoid")(squeezed)])


def _eights(width: float) -> int:
    """Round to a multiple of 8, never down by more than a tenth, as MobileNets do."""
    rounded = max(8, int(width + 4) // 8 * 8)
    return rounded if rounded >= 0.9 * width else rounded + 8
