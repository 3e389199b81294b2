"""The convolutional variational autoencoder of the LHC study, layer by layer as its summary prints it.

The summary's encoder ends in `z`, the means of the latent variables. The logarithms of their variances come from one
more dense layer on the same features (264 parameters), which belongs to the score and not to that encoder.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mqinfer.lab.zoo.layers import keras
from mqinfer.lab.zoo.networks.autoencoder import JETS, Autoencoder, Parts
from mqinfer.lab.zoo.networks.jets import FEATURES, PARTICLES

__all__ = ["LATENT", "ConvVae", "conv_vae"]

LATENT = 8
_BETA = 5e-4
_POOLED = (47, 24)


@dataclass(frozen=True, slots=True)
class ConvVae:
    """The parts, Keras models on normalised jets.

    Attributes:
        encoder: Jets [N,100,3] to latent means [N,8]: 160,796 parameters.
        heads: Jets to latent means and logarithms of variances, by the encoder's own layers and one more.
        decoder: Latent variables [N,8] to jets: 161,893 parameters.
    """

    encoder: Any
    heads: Any
    decoder: Any

    def autoencoder(self) -> Autoencoder:
        """Put the parts together."""
        return Autoencoder(
            (JETS,),
            lambda jets: Parts(*self.heads(jets)),
            self.decoder,
            _BETA,
            self.heads.trainable_variables + self.decoder.trainable_variables,
        )


def conv_vae(*, seed: int = 0) -> ConvVae:
    """Build the network; weights are random, and the same for the same seed."""
    keras().utils.set_random_seed(seed)
    layers = keras().layers
    jets = keras().Input((PARTICLES, FEATURES), name="encoder_input")
    features = _features(jets)
    mean, log_variance = (layers.Dense(LATENT, name=name)(features) for name in ("z", "z_log_var"))
    latent = keras().Input((LATENT,), name="z")
    return ConvVae(
        keras().Model(jets, mean, name="encoder"),
        keras().Model(jets, [mean, log_variance], name="heads"),
        keras().Model(latent, _rebuilt(latent), name="decoder"),
    )


def _features(jets: Any) -> Any:
    layers = keras().layers
    tensor = layers.Reshape((PARTICLES, FEATURES, 1))(jets)
    tensor = layers.Conv2D(16, 3, activation="relu")(tensor)
    tensor = layers.Reshape((PARTICLES - 2, 16))(tensor)
    tensor = layers.Conv1D(20, 3, activation="relu")(tensor)
    tensor = layers.Conv1D(24, 3, activation="relu")(tensor)
    tensor = layers.Flatten()(layers.AveragePooling1D(2)(tensor))
    return layers.Dense(32, activation="relu")(layers.Dense(136, activation="relu")(tensor))


def _rebuilt(latent: Any) -> Any:
    layers = keras().layers
    tensor = layers.Dense(136, activation="relu")(layers.Dense(32, activation="relu")(latent))
    tensor = layers.Dense(_POOLED[0] * _POOLED[1], activation="relu")(tensor)
    tensor = layers.UpSampling1D(2)(layers.Reshape(_POOLED)(tensor))
    tensor = layers.Conv1DTranspose(20, 3, activation="relu")(tensor)
    tensor = layers.Conv1DTranspose(16, 3, activation="relu")(tensor)
    tensor = layers.Reshape((PARTICLES - 2, 1, 16))(tensor)
    tensor = layers.Conv2DTranspose(1, 3, activation="elu")(tensor)
    return layers.Reshape((PARTICLES, FEATURES))(tensor)
