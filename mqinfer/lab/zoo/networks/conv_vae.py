"""The convolutional variational autoencoder of an LHC study, with the layers of its published summary.

The encoder ends in `z`, the means of the latent variables. The logarithms of their variances come from one more dense
layer on the same features (264 parameters), which is needed for the score only.
"""

from __future__ import annotations

from typing import Any

from mqinfer.lab.zoo.layers import keras
from mqinfer.lab.zoo.networks.autoencoder import JETS, Autoencoder
from mqinfer.lab.zoo.networks.jets import FEATURES, PARTICLES

LATENT = 8
_BETA = 5e-4
_POOLED = (47, 24)


def conv_vae(size: int = LATENT) -> Autoencoder:
    """Build the network with random weights: with 8 latent variables 160,796 and 264 parameters encode, 161,893 decode.

    Args:
        size: Number of latent variables; the study has 6 and 12 too.
    """
    keras().utils.set_random_seed(0)
    layers = keras().layers
    jets = keras().Input((PARTICLES, FEATURES), name="encoder_input")
    features = _features(jets)
    mean, log_variance = (layers.Dense(size, name=name)(features) for name in ("z", "z_log_var"))
    latent = keras().Input((size,), name="z")
    encoder = keras().Model([jets], [mean, log_variance], name="encoder")
    return Autoencoder((JETS,), encoder, keras().Model([latent], _rebuilt(latent), name="decoder"), _BETA)


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
