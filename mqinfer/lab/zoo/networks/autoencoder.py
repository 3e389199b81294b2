"""Common parts of the two jet autoencoders: anomaly scores of sets of particles, outputs with them, a short training.

Outputs: `reconstruction` [N,100,3] in the units of the input, `z` [N,8] (the latent means, not random samples), and the
scores `loss` [N] and `chamfer` [N]. Both scores use normalised features, so that GeV do not outweigh angles. `loss` is
the training loss, L_RECO + beta * D_KL.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mqinfer.lab.zoo.export import Input, Network
from mqinfer.lab.zoo.layers import keras, tensorflow
from mqinfer.lab.zoo.networks.jets import FEATURES, MEAN, PARTICLES, STD


def squared_error(jets: Any, others: Any) -> Any:
    """Sum the squared differences of all features of all particles.

    Args:
        jets: Float32 [N,particles,features].
        others: The same shape.

    Returns:
        Float32 [N].
    """
    tf = tensorflow()
    return tf.reduce_sum(tf.math.squared_difference(jets, others), axis=[1, 2])


def divergence(mean: Any, log_variance: Any) -> Any:
    """Return the Kullback-Leibler divergence from the standard normal distribution.

    -1/2 sum(1 + log v - m^2 - v) over the latent variables (arXiv:1312.6114, appendix B).

    Args:
        mean: Float32 [N,latent].
        log_variance: The same shape.

    Returns:
        Float32 [N].
    """
    tf = tensorflow()
    return -0.5 * tf.reduce_sum(1 + log_variance - mean**2 - tf.exp(log_variance), axis=1)


def chamfer_distance(jets: Any, others: Any) -> Any:
    """Return the Chamfer distance of two unordered sets of particles.

    mean_i min_j |x_i - y_j|^2 + mean_j min_i |x_i - y_j|^2, the usual loss of jet autoencoders at the LHC
    (arXiv:1612.00603, section 4.2, introduced it for sets of points). Two matrix products, each with a minimum over
    its last axis, are fastest in all engines, since they need no array of all the differences.

    Args:
        jets: Float32 [N,particles,features].
        others: Float32 [N,others,features].

    Returns:
        Float32 [N].
    """
    tf = tensorflow()
    squares, other_squares = (tf.reduce_sum(each**2, axis=2, keepdims=True) for each in (jets, others))
    return _mean_nearest(jets, squares, others, other_squares) + _mean_nearest(others, other_squares, jets, squares)


def _mean_nearest(jets: Any, squares: Any, others: Any, other_squares: Any) -> Any:
    """Average, over the particles of each jet, the squared distance to the nearest of the others."""
    tf = tensorflow()
    left, right = tf.concat([jets, tf.ones_like(squares)], 2), tf.concat([-2 * others, other_squares], 2)
    # |y|^2 - 2 x.y in one product; |x|^2 does not change which y is nearest to x, so it is added after the minimum.
    nearest = tf.reduce_min(tf.matmul(left, right, transpose_b=True), axis=2) + squares[:, :, 0]
    return tf.reduce_mean(tf.nn.relu(nearest), axis=1)  # rounding may yield slightly less than 0


OUTPUTS = ("loss", "chamfer", "reconstruction", "z")
JETS = Input("jets", (None, PARTICLES, FEATURES))

Array = npt.NDArray[np.float32]
_BATCH = 128


@dataclass(frozen=True, slots=True)
class Autoencoder:
    """A variational autoencoder of normalised jets.

    Attributes:
        inputs: The jets, and further inputs that pass through `prepare` to encoder and decoder.
        encoder: Keras model from jets and the prepared inputs to the latent means and logarithms of variances.
        decoder: Keras model from latent variables and the prepared inputs to jets.
        beta: Weight of the divergence.
        prepare: Converts the further inputs, once.
    """

    inputs: tuple[Input, ...]
    encoder: Any
    decoder: Any
    beta: float
    prepare: Callable[..., tuple[Any, ...]] = lambda *further: further

    @property
    def variables(self) -> list[Any]:
        """Variables of encoder and decoder."""
        return [*self.encoder.trainable_variables, *self.decoder.trainable_variables]


def export(model: Autoencoder) -> Network:
    """Return the served network."""
    # Constants have the size of a whole jet, since engines are slow at broadcasting a short last axis.
    mean, std = (np.tile(np.array(each, np.float32), (1, PARTICLES, 1)) for each in (MEAN, STD))

    def infer(jets: Any, *further: Any) -> Mapping[str, Any]:
        normal, prepared = (jets - mean) / std, model.prepare(*further)
        mean_z, log_variance = model.encoder([normal, *prepared])
        rebuilt = model.decoder([mean_z, *prepared])
        return {
            "loss": _loss(model, normal, rebuilt, mean_z, log_variance),
            "chamfer": chamfer_distance(normal, rebuilt),
            "reconstruction": rebuilt * std + mean,
            "z": mean_z,
        }

    return Network(infer, model.inputs, OUTPUTS, model.variables)


def train(model: Autoencoder, inputs: Sequence[Array], *, steps: int, rate: float) -> list[float]:
    """Train by Adam on L_RECO + beta * D_KL, with latent variables drawn from their distribution.

    Args:
        model: Autoencoder; its variables change.
        inputs: Jets and the further inputs; batches are taken in order.
        steps: Number of batches of 128.
        rate: Learning rate.

    Returns:
        The loss of each step.
    """
    tf = tensorflow()
    optimiser = keras().optimizers.Adam(rate)
    optimiser.build(model.variables)
    draws = tf.random.Generator.from_seed(0)

    def step(jets: Any, *further: Any) -> Any:
        with tf.GradientTape() as tape:
            normal, prepared = (jets - MEAN) / STD, model.prepare(*further)
            mean_z, log_variance = model.encoder([normal, *prepared])
            noise = draws.normal(tf.shape(mean_z)) * tf.exp(0.5 * log_variance)
            rebuilt = model.decoder([mean_z + noise, *prepared])
            loss = tf.reduce_mean(_loss(model, normal, rebuilt, mean_z, log_variance))
        optimiser.apply(tape.gradient(loss, model.variables), model.variables)
        return loss

    traced = tf.function(step)
    starts = [number * _BATCH % (len(inputs[0]) - _BATCH + 1) for number in range(steps)]
    return [float(traced(*(each[start : start + _BATCH] for each in inputs))) for start in starts]


def _loss(model: Autoencoder, normal: Any, rebuilt: Any, mean: Any, log_variance: Any) -> Any:
    return squared_error(normal, rebuilt) + model.beta * divergence(mean, log_variance)
