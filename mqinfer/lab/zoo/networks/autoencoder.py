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

__all__ = ["JETS", "OUTPUTS", "Autoencoder", "Parts", "export", "train"]

OUTPUTS = ("loss", "chamfer", "reconstruction", "z")
JETS = Input("jets", (None, PARTICLES, FEATURES))

Array = npt.NDArray[np.float32]
_BATCH = 128


@dataclass(frozen=True, slots=True)
class Parts:
    """Latent distribution of normalised jets.

    Attributes:
        mean: Mean of the latent variables.
        log_variance: Logarithm of their variance.
    """

    mean: Any
    log_variance: Any


@dataclass(frozen=True, slots=True)
class Autoencoder:
    """A variational autoencoder, as functions of tensors.

    Attributes:
        inputs: The jets, and further inputs that pass through `prepare` to encoder and decoder.
        encode: Function from normalised jets and the prepared inputs to the latent distribution.
        decode: Function from latent variables and the prepared inputs to normalised jets.
        beta: Weight of the divergence.
        variables: Variables of encoder and decoder.
        prepare: Converts the further inputs, once.
    """

    inputs: tuple[Input, ...]
    encode: Callable[..., Parts]
    decode: Callable[..., Any]
    beta: float
    variables: Sequence[Any]
    prepare: Callable[..., tuple[Any, ...]] = lambda *further: further


def export(model: Autoencoder) -> Network:
    """Return the served network."""
    # Constants have the size of a whole jet, since engines are slow at broadcasting a short last axis.
    mean, std = (np.tile(np.array(each, np.float32), (1, PARTICLES, 1)) for each in (MEAN, STD))

    def infer(jets: Any, *further: Any) -> Mapping[str, Any]:
        normal, prepared = (jets - mean) / std, model.prepare(*further)
        parts = model.encode(normal, *prepared)
        rebuilt = model.decode(parts.mean, *prepared)
        return {
            "loss": _loss(model, normal, rebuilt, parts),
            "chamfer": chamfer_distance(normal, rebuilt),
            "reconstruction": rebuilt * std + mean,
            "z": parts.mean,
        }

    return Network(infer, model.inputs, OUTPUTS, model.variables)


def train(model: Autoencoder, inputs: Sequence[Array], *, steps: int, rate: float, seed: int = 0) -> list[float]:
    """Train by Adam on L_RECO + beta * D_KL, with latent variables drawn from their distribution.

    Args:
        model: Autoencoder; its variables change.
        inputs: Jets and the further inputs; batches are taken in order.
        steps: Number of batches of 128.
        rate: Learning rate.
        seed: Seed of the random samples.

    Returns:
        The loss of each step.
    """
    tf = tensorflow()
    optimiser = keras().optimizers.Adam(rate)
    optimiser.build(model.variables)
    draws = tf.random.Generator.from_seed(seed)

    def step(jets: Any, *further: Any) -> Any:
        with tf.GradientTape() as tape:
            normal, prepared = (jets - MEAN) / STD, model.prepare(*further)
            parts = model.encode(normal, *prepared)
            noise = draws.normal(tf.shape(parts.mean)) * tf.exp(0.5 * parts.log_variance)
            rebuilt = model.decode(parts.mean + noise, *prepared)
            loss = tf.reduce_mean(_loss(model, normal, rebuilt, parts))
        optimiser.apply(tape.gradient(loss, model.variables), model.variables)
        return loss

    traced = tf.function(step)
    starts = [number * _BATCH % (len(inputs[0]) - _BATCH + 1) for number in range(steps)]
    return [float(traced(*(each[start : start + _BATCH] for each in inputs))) for start in starts]


def _loss(model: Autoencoder, normal: Any, rebuilt: Any, parts: Parts) -> Any:
    return squared_error(normal, rebuilt) + model.beta * divergence(parts.mean, parts.log_variance)
