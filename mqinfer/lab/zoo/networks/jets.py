"""Synthetic jets: random sets of particles of two kinds, ordinary and anomalous.

A jet is a spray of particles about an axis. Ordinary jets have one core; anomalous ones, from a heavy particle that
decayed into two, have two cores. This is no physics simulation: it yields training data for the jet autoencoders, and
data that differ from it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

PARTICLES, FEATURES = 100, 3
"""Particles of a jet, by descending momentum, padded with zeros; features are eta and phi about the axis, pT in GeV."""
MEAN = (0.0, 0.0, 5.0)
STD = (0.05, 0.05, 12.5)
"""Approximate mean and standard deviation of the features, for normalisation."""
_RADIUS, _DISTANCE = 0.4, 0.05

Jets = npt.NDArray[np.float32]


def draw_jets(count: int, cores: int = 1, *, seed: int = 0) -> Jets:
    """Draw jets.

    Args:
        count: Number of jets.
        cores: 1 for ordinary jets, 2 for anomalous ones.
        seed: Seed of the random numbers.

    Returns:
        Float32 [count,100,3].
    """
    rng = np.random.default_rng(seed)
    shares = np.sort(rng.dirichlet(np.full(PARTICLES, 0.15), count), axis=1)[:, ::-1]
    momenta = shares * rng.uniform(400, 600, (count, 1))
    # The smaller its momentum, the farther a particle is from its core.
    width = 0.02 + 0.1 / (1 + momenta[..., None])
    angles = rng.normal(0, 1, (count, PARTICLES, 2)) * width + _centres(rng, count, cores)
    jets = np.concatenate([angles, momenta[..., None]], axis=2)
    jets[(shares < 1e-4) | (np.hypot(jets[..., 0], jets[..., 1]) > 2 * _RADIUS)] = 0
    return jets.astype(np.float32)


def _centres(rng: np.random.Generator, count: int, cores: int) -> npt.NDArray[np.float64]:
    """Return the core of each particle, [count,100,2]; the cores are on opposite sides of the axis."""
    if cores == 1:
        return np.zeros((count, PARTICLES, 2))
    turn = rng.uniform(0, 2 * np.pi, (count, 1)) + np.pi * rng.integers(0, cores, (count, PARTICLES))
    return _DISTANCE * np.stack([np.cos(turn), np.sin(turn)], axis=2)


def draw_both(count: int) -> Jets:
    """Draw `count` jets with one core, the background, and behind them as many with two, the signal."""
    return np.concatenate([draw_jets(count, seed=1), draw_jets(count, 2, seed=2)])


def adjacency(jets: Jets) -> Jets:
    """Return the adjacency matrix of the near particles of each jet.

    Args:
        jets: Float32 [N,particles,3].

    Returns:
        Float32 [N,particles,particles], symmetric, 1 for neighbours, 0 on the diagonal.
    """
    angles, there = jets[..., :2], jets[..., 2] > 0
    apart = np.linalg.norm(angles[:, :, None] - angles[:, None], axis=3)
    joined = (apart < _RADIUS / 4) & there[:, :, None] & there[:, None] & ~np.eye(jets.shape[1], dtype=bool)
    result: Jets = joined.astype(np.float32)
    return result
