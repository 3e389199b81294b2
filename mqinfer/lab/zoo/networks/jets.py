"""Synthetic jets: sets of particles that are simple enough to draw in a second, and of two kinds that differ.

A jet is a spray of particles about an axis. Ordinary ones have one core; the anomalous ones here come from something
heavy that decayed into two, and so have two. This is no physics simulation: it gives the jet autoencoders something
to learn, and something that they have not learned.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["FEATURES", "MEAN", "PARTICLES", "STD", "adjacency", "draw_jets"]

PARTICLES, FEATURES = 100, 3
"""Particles of a jet, those of highest momentum first, zeros behind the last; eta and phi about the axis, pT in GeV."""
MEAN = (0.0, 0.0, 5.0)
STD = (0.05, 0.05, 12.5)
"""Of the features, about: what the networks normalise by."""
_RADIUS, _DISTANCE = 0.4, 0.05

Jets = npt.NDArray[np.float32]


def draw_jets(count: int, cores: int = 1, *, seed: int = 0) -> Jets:
    """Draw jets.

    Args:
        count: How many.
        cores: 1 for ordinary jets, 2 for anomalous ones.
        seed: The same seed, the same jets.

    Returns:
        Float32 [count,100,3].
    """
    rng = np.random.default_rng(seed)
    shares = np.sort(rng.dirichlet(np.full(PARTICLES, 0.15), count), axis=1)[:, ::-1]
    momenta = shares * rng.uniform(400, 600, (count, 1))
    # The softer a particle, the wider it strays from its core.
    width = 0.02 + 0.1 / (1 + momenta[..., None])
    angles = rng.normal(0, 1, (count, PARTICLES, 2)) * width + _centres(rng, count, cores)
    jets = np.concatenate([angles, momenta[..., None]], axis=2)
    jets[(shares < 1e-4) | (np.hypot(jets[..., 0], jets[..., 1]) > 2 * _RADIUS)] = 0
    return jets.astype(np.float32)


def _centres(rng: np.random.Generator, count: int, cores: int) -> npt.NDArray[np.float64]:
    """Where each particle's core is, [count,100,2]: cores lie on opposite sides of the axis."""
    if cores == 1:
        return np.zeros((count, PARTICLES, 2))
    turn = rng.uniform(0, 2 * np.pi, (count, 1)) + np.pi * rng.integers(0, cores, (count, PARTICLES))
    return _DISTANCE * np.stack([np.cos(turn), np.sin(turn)], axis=2)


def adjacency(jets: Jets, radius: float = _RADIUS / 4) -> Jets:
    """Join the particles of each jet that are near one another.

    Args:
        jets: Float32 [N,particles,3].
        radius: In eta and phi.

    Returns:
        Float32 [N,particles,particles], symmetric, 1 where two are joined, 0 on the diagonal.
    """
    angles, there = jets[..., :2], jets[..., 2] > 0
    apart = np.linalg.norm(angles[:, :, None] - angles[:, None], axis=3)
    joined = (apart < radius) & there[:, :, None] & there[:, None] & ~np.eye(jets.shape[1], dtype=bool)
    result: Jets = joined.astype(np.float32)
    return result
