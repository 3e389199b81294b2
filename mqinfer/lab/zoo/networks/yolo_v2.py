"""YOLOv2 at 608x608, NoScope's reference network, with a decoder from its output to boxes in the same graph.

Darknet-19 without its classifier, three further convolutions, and a shortcut from a finer map
(arXiv:1612.08242, sections 2 and 3): 50,983,561 parameters with 80 classes, as the published weights have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mqinfer.lab.zoo.export import Input, Network
from mqinfer.lab.zoo.layers import conv, keras, tensorflow

SIDE, CLASSES = 608, 80
ANCHORS = ((0.57273, 0.677385), (1.87446, 2.06253), (3.33843, 5.47434), (7.88282, 3.52778), (9.77052, 9.16828))
"""Widths and heights of the anchors trained on COCO, in cells of the output's grid."""
_STRIDE = 32
_MOST, _OVERLAP, _LEAST = 100, 0.45, 0.1
_POOL = 0
_BACKBONE = (
    (32, _POOL, 64, _POOL, 128, 64, 128, _POOL, 256, 128, 256, _POOL, 512, 256, 512, 256, 512),
    (_POOL, 1024, 512, 1024, 512, 1024, 1024, 1024),
)
"""Filters of the convolutions before and after the start of the shortcut: 3x3, or 1x1 where their number drops."""


def yolo_v2(side: int = SIDE) -> Any:
    """Build the network; weights are random.

    Args:
        side: Side of the picture, in pixels; a multiple of 32.

    Returns:
        A Keras model from float32 [N,side,side,3], 0 to 1, to [N,cells,cells,5 * 85].
    """
    keras().utils.set_random_seed(0)
    layers = keras().layers
    picture = layers.Input((side, side, 3))
    fine = _convolved(picture, _BACKBONE[0])
    coarse = _convolved(fine, _BACKBONE[1])
    # 2x2 neighbours become channels, so that the fine map gets the size of the coarse one.
    cells = coarse.shape[1]
    passed = layers.Reshape((cells, 2, cells, 2, 64))(_leaky(fine, 64, 1))
    passed = layers.Reshape((cells, cells, 256))(layers.Permute((1, 3, 2, 4, 5))(passed))
    tensor = _leaky(layers.Concatenate()([passed, coarse]), 1024, 3)
    return keras().Model(picture, layers.Conv2D(len(ANCHORS) * (5 + CLASSES), 1)(tensor))


def _convolved(tensor: Any, filters: Sequence[int]) -> Any:
    for each in filters:
        if each == _POOL:
            tensor = keras().layers.MaxPooling2D()(tensor)
        else:
            tensor = _leaky(tensor, each, 1 if each < tensor.shape[-1] else 3)
    return tensor


def _leaky(tensor: Any, filters: int, kernel: int) -> Any:
    return keras().layers.LeakyReLU(0.1)(conv(tensor, filters, kernel, activation=None))


def decode(raw: Any) -> tuple[Any, Any]:
    """Decode the network's output to boxes and scores (arXiv:1612.08242, section 2, "Direct location prediction").

    A cell's box is centred at (cell + sigmoid(t_xy)) and has the size anchor * exp(t_wh); its score for a class is
    sigmoid(t_o) times the class's softmax.

    Args:
        raw: Float32 [N,cells,cells,5 * 85].

    Returns:
        Boxes [N,n,4], left, top, right and bottom in pixels of the picture, and scores [N,n,80], for the
        n = 5 * cells^2 boxes.
    """
    tf = tensorflow()
    cells, count = raw.shape[1], raw.shape[1] * raw.shape[2] * len(ANCHORS)
    raw = tf.reshape(raw, (-1, count, 5 + CLASSES))
    corners, sizes = _grid(cells)
    centre = (tf.sigmoid(raw[..., 0:2]) + corners) * _STRIDE
    half = tf.exp(raw[..., 2:4]) * sizes * (_STRIDE / 2)
    scores = tf.sigmoid(raw[..., 4:5]) * tf.nn.softmax(raw[..., 5:])
    return tf.concat([centre - half, centre + half], -1), scores


def _grid(cells: int) -> tuple[Any, Any]:
    """Return the upper left corner of each box's cell, and its anchor, both [n,2], in cells."""
    rows, columns, anchors = np.indices((cells, cells, len(ANCHORS))).reshape(3, -1)
    return np.stack([columns, rows], 1).astype(np.float32), np.array(ANCHORS, np.float32)[anchors]


def suppress(boxes: Any, scores: Any) -> Mapping[str, Any]:
    """Keep the best of overlapping boxes of each class: at most 100, with their number in `count`."""
    tf = tensorflow()
    kept = tf.image.combined_non_max_suppression(
        boxes[:, :, None], scores, _MOST, _MOST, _OVERLAP, _LEAST, clip_boxes=False
    )
    return {"boxes": kept[0], "scores": kept[1], "classes": tf.cast(kept[2], tf.int32), "count": kept[3]}


def yolo_network(trained: Any = None) -> Network:
    """Return the served network: uint8 `input` [N,608,608,3] to all 1805 candidates.

    `boxes` [N,1805,4], left, top, right and bottom in pixels; `scores` [N,1805] and `classes` [N,1805] int32 of each
    one's best class.

    Args:
        trained: What `yolo_v2` built, trained, with pictures of another size as it may be; None for random weights.
    """
    tf = tensorflow()

    def best(boxes: Any, scores: Any) -> Mapping[str, Any]:
        classes = tf.argmax(scores, axis=-1, output_type=tf.int32)
        return {"boxes": boxes, "scores": tf.reduce_max(scores, axis=-1), "classes": classes}

    return _network(best, ("boxes", "scores", "classes"), trained)


def yolo_suppressed_network() -> Network:
    """Return the network with non-maximum suppression: 100 boxes, zeros after the first `count` [N] int32 of them."""
    return _network(suppress, ("boxes", "scores", "classes", "count"))


def _network(finish: Any, outputs: tuple[str, ...], trained: Any = None) -> Network:
    tf, model = tensorflow(), trained or yolo_v2()

    def infer(pixels: Any) -> Mapping[str, Any]:
        found: Mapping[str, Any] = finish(*decode(model(tf.cast(pixels, tf.float32) / 255, training=False)))
        return found

    return Network(infer, (Input("input", (None, *model.input_shape[1:3], 3), "uint8"),), outputs, model.variables)
