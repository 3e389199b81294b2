"""Common parts of the two jet autoencoders: their outputs with the anomaly scores, and a short training.

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
from mqinfer.lab.zoo.networks.anomaly import chamfer_distance, divergence, squared_error
from mqinfer.lab.zoo.networks.jets import FEATURES, MEAN, PARTICLES, STD

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
