"""The graph-convolutional variational autoencoder of the LHC study: particles are nodes, neighbours are joined.

The study gives the two inputs, first-order filters, tanh, eight latent variables, beta and that the features of the
nodes are reconstructed; the widths are this file's choice. A layer is act(A' (X W + b)) with
A' = D^-1/2 (A + I) D^-1/2, D being the degrees of A + I: the renormalised first-order filter of Kipf and Welling
(arXiv:1609.02907, equation 2). What is sent is the plain adjacency matrix A, zeros on its diagonal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mqinfer.models.zoo.autoencoder import JETS, Autoencoder, Parts
from mqinfer.models.zoo.export import Input
from mqinfer.models.zoo.jets import FEATURES, PARTICLES
from mqinfer.models.zoo.layers import keras, tensorflow

__all__ = ["ADJACENCY", "GraphVae", "degree_scale", "graph_vae"]

ADJACENCY = Input("adjacency", (None, PARTICLES, PARTICLES))
_LATENT, _BETA = 8, 10.0
_WIDTHS = (16, 8)
_DENSE = 100


@dataclass(frozen=True, slots=True)
class GraphVae:
    """The parts, Keras models; A is the adjacency [N,100,100], D the scale [N,100,1] that `degree_scale` gives.

    Attributes:
        encoder: Normalised features [N,100,3], A and D to latent means and logarithms of variances, [N,8] both.
        decoder: Latent variables, A and D to normalised features.
    """

    encoder: Any
    decoder: Any

    def autoencoder(self) -> Autoencoder:
        """Put the parts together."""
        return Autoencoder(
            (Input("features", JETS.shape), ADJACENCY),
            lambda features, joined: Parts(*self.encoder([features, joined, degree_scale(joined)])),
            lambda latent, joined: self.decoder([latent, joined, degree_scale(joined)]),
            _BETA,
            self.encoder.trainable_variables + self.decoder.trainable_variables,
        )


def degree_scale(adjacency: Any) -> Any:
    """Give the diagonal of D^-1/2, D being the degrees of A + I: [N,nodes,nodes] to [N,nodes,1]."""
    tf = tensorflow()
    return tf.math.rsqrt(tf.reduce_sum(adjacency, axis=2, keepdims=True) + 1)


def graph_vae(*, seed: int = 0) -> GraphVae:
    """Build the network; weights are random, and the same for the same seed."""
    keras().utils.set_random_seed(seed)
    layers = keras().layers
    features, latent = layers.Input((PARTICLES, FEATURES)), layers.Input((_LATENT,))
    graph = layers.Input((PARTICLES, PARTICLES)), layers.Input((PARTICLES, 1))
    nodes = _convolved(features, graph, _WIDTHS)
    hidden = layers.Dense(_DENSE, activation="tanh")(layers.Flatten()(nodes))
    heads = [layers.Dense(_LATENT, name=name)(hidden) for name in ("z", "z_log_var")]
    return GraphVae(
        keras().Model([features, *graph], heads, name="encoder"),
        keras().Model([latent, *graph], _rebuilt(latent, graph), name="decoder"),
    )


def _rebuilt(latent: Any, graph: Sequence[Any]) -> Any:
    layers = keras().layers
    hidden = layers.Dense(_DENSE, activation="tanh")(latent)
    nodes = layers.Dense(PARTICLES * _WIDTHS[-1], activation="tanh")(hidden)
    nodes = _convolved(layers.Reshape((PARTICLES, _WIDTHS[-1]))(nodes), graph, _WIDTHS[-2::-1])
    return _filtered(layers.Dense(FEATURES)(nodes), graph)


def _convolved(nodes: Any, graph: Sequence[Any], widths: Sequence[int]) -> Any:
    layers = keras().layers
    for width in widths:
        nodes = layers.Activation("tanh")(_filtered(layers.Dense(width)(nodes), graph))
    return nodes


def _filtered(nodes: Any, graph: Sequence[Any]) -> Any:
    """Multiply by A' without making it: D^-1/2 (A + I) D^-1/2 X = d (A (d X) + d X), d scaling each node's row."""
    layers = keras().layers
    adjacency, scale = graph
    scaled = layers.Multiply()([nodes, scale])
    summed = layers.Add()([layers.Dot((2, 1))([adjacency, scaled]), scaled])
    return layers.Multiply()([summed, scale])
