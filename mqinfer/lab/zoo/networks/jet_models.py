"""Builds the two jet autoencoders: each is trained for seconds on synthetic jets, once in a process."""

from __future__ import annotations

import functools
from dataclasses import replace

from mqinfer.lab.zoo.export import Network
from mqinfer.lab.zoo.networks.autoencoder import Autoencoder, export, train
from mqinfer.lab.zoo.networks.conv_vae import LATENT, conv_vae
from mqinfer.lab.zoo.networks.graph_vae import graph_vae
from mqinfer.lab.zoo.networks.jets import adjacency, draw_jets

_JETS, _STEPS = 4096, 300


@functools.cache
def conv_vae_network(latent: int = LATENT) -> Network:
    """Return the Conv-VAE: float32 `jets` [N,100,3] to `loss`, `chamfer`, `reconstruction` and `z`.

    Args:
        latent: Number of latent variables.
    """
    return _trained(conv_vae(latent), rate=1e-3, graph=False)


@functools.cache
def graph_vae_network() -> Network:
    """Return the graph Conv-VAE: float32 `features` [N,100,3] and `adjacency` [N,100,100] to the same outputs."""
    return _trained(graph_vae(), rate=3e-3, graph=True)


def _trained(model: Autoencoder, *, rate: float, graph: bool) -> Network:
    jets = draw_jets(_JETS)
    losses = train(model, (jets, adjacency(jets)) if graph else (jets,), steps=_STEPS, rate=rate)
    return replace(export(model), losses=losses)
