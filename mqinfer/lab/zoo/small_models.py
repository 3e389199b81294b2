"""Small ONNX models for measurements of their cost; their weights are random."""

from __future__ import annotations

import numpy as np

from mqinfer.lab.zoo.onnx_graph import OnnxGraph

_HEIGHT, _WIDTH, _BLOCK = 608, 968, 8


def small_16() -> OnnxGraph:
    """Return a very cheap model: float32 [N,16] to float32 [N,16], one dense layer and tanh.

    Raises:
        MissingExtra: onnx is not installed.
    """
    graph = OnnxGraph("float32", ("N", 16))
    graph.node("Tanh", graph.dense("input", 16, 16), output="output")
    graph.add_output("output", "float32", ("N", 16))
    return graph


def frame_mask() -> OnnxGraph:
    """Return a cheap model with a large input: uint8 [1,608,968,3] to uint8 [1,608,968].

    The class of each block of 8x8 pixels, 0 to 15, is the upper four bits of the green value at its centre. Operators
    on every pixel of the picture or the mask take 0.6 to 5 ms. This model therefore samples first and then repeats
    with Concat, which is twice as fast in ONNX Runtime as Tile, Expand or Gather.

    Raises:
        MissingExtra: onnx is not installed.
    """
    graph = OnnxGraph("uint8", (1, _HEIGHT, _WIDTH, 3))
    middle, rows = _BLOCK // 2, _HEIGHT // _BLOCK
    first, end = graph.integers(middle, middle, 1), graph.integers(_HEIGHT, _WIDTH, 2)
    axes, steps = graph.integers(1, 2, 3), graph.integers(_BLOCK, _BLOCK, 1)
    green = graph.node("Slice", "input", first, end, axes, steps)
    classes = graph.node("BitShift", green, graph.constant(np.array(4, np.uint8)), direction="RIGHT")
    wide = graph.node("Concat", *[classes] * _BLOCK, axis=3)
    row = graph.node("Reshape", wide, graph.integers(1, rows, 1, _WIDTH))
    full = graph.node("Concat", *[row] * _BLOCK, axis=2)
    graph.node("Reshape", full, graph.integers(1, _HEIGHT, _WIDTH), output="output")
    graph.add_output("output", "uint8", (1, _HEIGHT, _WIDTH))
    return graph


# Table 2 of MobileNetV2 (arXiv:1801.04381) at half width: expansion, channels, repeats, stride of the first.
_MOBILENET_V2 = (
    (1, 8, 1, 1),
    (6, 16, 2, 2),
    (6, 16, 3, 2),
    (6, 32, 4, 2),
    (6, 48, 3, 1),
    (6, 80, 3, 2),
    (6, 160, 1, 1),
)


def classifier_224() -> OnnxGraph:
    """Return MobileNetV2 at half width: float32 [N,3,224,224] to logits float32 [N,1000].

    Batch normalisation is folded into the biases, as in any served model.

    Raises:
        MissingExtra: onnx is not installed.
    """
    graph = OnnxGraph("float32", ("N", 3, 224, 224))
    tensor, channels = _conv(graph, "input", 3, 16, 3, stride=2), 16
    for expansion, filters, repeats, stride in _MOBILENET_V2:
        for repeat in range(repeats):
            tensor = _inverted_residual(graph, tensor, channels, filters, expansion, 1 if repeat else stride)
            channels = filters
    pooled = graph.node("GlobalAveragePool", _conv(graph, tensor, channels, 1280))
    graph.dense(graph.node("Flatten", pooled), 1280, 1000, output="output")
    graph.add_output("output", "float32", ("N", 1000))
    return graph


def _inverted_residual(  # noqa: PLR0913, PLR0917 - a row of the table, its input and its position
    graph: OnnxGraph, tensor: str, channels: int, filters: int, expansion: int, stride: int
) -> str:
    wide = channels * expansion
    inner = tensor if expansion == 1 else _conv(graph, tensor, channels, wide)
    inner = _conv(graph, inner, wide, wide, 3, stride=stride, group=wide)
    inner = _conv(graph, inner, wide, filters, relu=False)
    return graph.node("Add", tensor, inner) if stride == 1 and channels == filters else inner


def _conv(  # noqa: PLR0913 - a convolution has this many degrees of freedom
    graph: OnnxGraph,
    tensor: str,
    channels: int,
    filters: int,
    kernel: int = 1,
    *,
    stride: int = 1,
    group: int = 1,
    relu: bool = True,
) -> str:
    fan_in = channels // group * kernel**2
    # He's scale is for ReLU; without ReLU each block would double the variance.
    weights = graph.weights(filters, channels // group, kernel, kernel, fan_in=fan_in if relu else 2 * fan_in)
    tensor = graph.node(
        "Conv", tensor, weights, graph.zeros(filters), strides=[stride] * 2, pads=[kernel // 2] * 4, group=group
    )
    return graph.node("Relu", tensor) if relu else tensor


_PARTICLES, _LATENT, _CHANNELS = 100, 16, 16


def vae_like() -> OnnxGraph:
    """Return a convolutional autoencoder for anomaly scores: float32 [N,100,3] to its reconstruction and `score`.

    A set of 100 particles with three features goes through two convolutions to the mean and log variance of 16
    latent variables; the mean alone is decoded, as at inference. `score` [N] is the squared error plus the
    Kullback-Leibler divergence from the unit normal distribution, -(1 + log v - m^2 - v) / 2 summed
    (arXiv:1312.6114, appendix B).

    Raises:
        MissingExtra: onnx is not installed.
    """
    graph = OnnxGraph("float32", ("N", _PARTICLES, 3))
    features = _encode(graph)
    size = _CHANNELS * _PARTICLES // 4
    mean, log_variance = graph.dense(features, size, _LATENT), graph.dense(features, size, _LATENT)
    _decode(graph, mean)
    _score(graph, mean, log_variance)
    graph.add_output("output", "float32", ("N", _PARTICLES, 3))
    graph.add_output("score", "float32", ("N",))
    return graph


def _encode(graph: OnnxGraph) -> str:
    """[N,100,3] to [N,_CHANNELS * 25]."""
    tensor, channels = graph.node("Transpose", "input", perm=[0, 2, 1]), 3
    for _ in range(2):
        weights = graph.weights(_CHANNELS, channels, 3, fan_in=channels * 3)
        tensor = graph.node("Conv", tensor, weights, graph.zeros(_CHANNELS), strides=[2], pads=[0, 1])
        tensor, channels = graph.node("Relu", tensor), _CHANNELS
    return graph.node("Flatten", tensor)


def _decode(graph: OnnxGraph, latent: str) -> None:
    """[N,_LATENT] to `output` [N,100,3]."""
    tensor = graph.node("Relu", graph.dense(latent, _LATENT, _CHANNELS * _PARTICLES // 4))
    tensor = graph.node("Reshape", tensor, graph.integers(-1, _CHANNELS, _PARTICLES // 4))
    for filters in (_CHANNELS, 3):
        weights = graph.weights(_CHANNELS, filters, 2, fan_in=_CHANNELS)
        inner = tensor if filters == _CHANNELS else graph.node("Relu", tensor)
        tensor = graph.node("ConvTranspose", inner, weights, graph.zeros(filters), strides=[2])
    graph.node("Transpose", tensor, perm=[0, 2, 1], output="output")


def _score(graph: OnnxGraph, mean: str, log_variance: str) -> None:
    """`score` [N] from `input`, `output` and the latent distribution."""
    error = graph.node("Sub", "input", "output")
    squared = graph.node("ReduceSum", graph.node("Mul", error, error), graph.integers(1, 2), keepdims=0)
    spread = graph.node("Sub", graph.node("Exp", log_variance), log_variance)
    terms = graph.node("Add", graph.node("Mul", mean, mean), spread)
    divergence = graph.node("ReduceSum", terms, graph.integers(1), keepdims=0)
    excess = graph.node("Sub", divergence, graph.constant(np.array(_LATENT, np.float32)))
    scaled = graph.node("Mul", excess, graph.constant(np.array(0.5, np.float32)))
    graph.node("Add", squared, scaled, output="score")
