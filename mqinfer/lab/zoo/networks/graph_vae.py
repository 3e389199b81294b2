"""The graph-convolutional variational autoencoder of an LHC study: particles are nodes, neighbours are connected.

The study specifies the two inputs, first-order filters, tanh, eight latent variables, beta, and the reconstruction of
the nodes' features; the widths are chosen here. A layer is act(A' (X W + b)) with A' = D^-1/2 (A + I) D^-1/2, D being
the degrees of A + I: the renormalised first-order filter of Kipf and Welling (arXiv:1609.02907, equation 2). The input
is the plain adjacency matrix A, with zeros on its diagonal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mqinfer.lab.zoo.export import Input
from mqinfer.lab.zoo.layers import keras, tensorflow
from mqinfer.lab.zoo.networks.autoencoder import JETS, Autoencoder
from mqinfer.lab.zoo.networks.jets import FEATURES, PARTICLES

ADJACENCY = Input("adjacency", (None, PARTICLES, PARTICLES))
_LATENT, _BETA = 8, 10.0
_WIDTHS = (16, 8)
_DENSE = 100


def renormalised(adjacency: Any) -> Any:
    """Return A' for each adjacency matrix of [N,nodes,nodes]."""
    tf = tensorflow()
    joined = adjacency + np.eye(adjacency.shape[-1], dtype=np.float32)
    scale = tf.math.rsqrt(tf.reduce_sum(joined, axis=2, keepdims=True))
    return joined * tf.matmul(scale, scale, transpose_b=True)


def graph_vae() -> Autoencoder:
    """Build the network with random weights."""
    keras().utils.set_random_seed(0)
    layers = keras().layers
    features, latent = layers.Input((PARTICLES, FEATURES)), layers.Input((_LATENT,))
    filters = layers.Input((PARTICLES, PARTICLES))
    nodes = _convolved(features, filters, _WIDTHS)
    hidden = layers.Dense(_DENSE, activation="tanh")(layers.Flatten()(nodes))
    heads = [layers.Dense(_LATENT, name=name)(hidden) for name in ("z", "z_log_var")]
    return Autoencoder(
        (Input("features", JETS.shape), ADJACENCY),
        keras().Model([features, filters], heads, name="encoder"),
        keras().Model([latent, filters], _rebuilt(latent, filters), name="decoder"),
        _BETA,
        lambda adjacency: (renormalised(adjacency),),
    )


def _rebuilt(latent: Any, filters: Any) -> Any:
    layers = keras().layers
    hidden = layers.Dense(_DENSE, activation="tanh")(latent)
    nodes = layers.Dense(PARTICLES * _WIDTHS[-1], activation="tanh")(hidden)
    nodes = _convolved(layers.Reshape((PARTICLES, _WIDTHS[-1]))(nodes), filters, _WIDTHS[-2::-1])
    return layers.Dot((2, 1))([filters, layers.Dense(FEATURES)(nodes)])


def _convolved(nodes: Any, filters: Any, widths: Sequence[int]) -> Any:
    layers = keras().layers
    for width in widths:
        nodes = layers.Activation("tanh")(layers.Dot((2, 1))([filters, layers.Dense(width)(nodes)]))
    return nodes
