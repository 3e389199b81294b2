"""A lower bound of the accuracy from frames of a video, which are not independent of each other."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
_LONGEST_LAG = 100
"""Errors farther apart than this many frames count as independent."""


def design_effect(series: Sequence[Floats]) -> float:
    """Return how many consecutive frames tell as little about a mean as one independent frame; at least 1.

    It is `1 + 2 * sum((1 - k / K) * r_k)` for `k = 1 ... K - 1` (Newey and West, Econometrica 55, 1987), where `r_k` is
    the correlation of a frame with the k-th after it; the largest one of all series that vary, since one without
    errors shows nothing of their correlation.

    Args:
        series: What is averaged, and what varies like it, each [n].
    """
    return max([1.0, *map(_design_effect, series)])


def _design_effect(values: Floats) -> float:
    lags = min(_LONGEST_LAG, max(len(values) // 5, 1))
    centred = values - values.mean()
    variance = float(centred @ centred)
    if variance <= 0:
        return 1.0
    # The sum over all pairs at once: the transform of the correlations is the spectrum.
    spectrum = np.abs(np.fft.rfft(centred, 2 * len(centred))) ** 2
    correlations = np.fft.irfft(spectrum)[1:lags] / variance
    return float(1 + 2 * (1 - np.arange(1, lags) / lags) @ correlations)


def lower_bound(mean: Floats, at_risk: Floats, count: Floats, confidence: float) -> Floats:
    """Return what the true mean of values from 0 to 1 exceeds with a confidence, given the mean of some of them.

    Values that are not at risk are 1. For the others it is the smallest `p` with
    `count * KL(mean, p) <= ln(1 / (1 - confidence))`, Chernoff's bound in Hoeffding's form (J. Am. Stat. Assoc. 58,
    1963, theorem 1), which holds for every distribution; where all values are 1 it is Clopper and Pearson's.

    Args:
        mean: Of all values, 0 to 1.
        at_risk: Share of the values that may be below 1.
        count: How many independent values at risk there are.
        confidence: Such as 0.95.
    """
    risk = np.maximum(at_risk, 1e-9)
    own = np.clip(1 - (1 - np.asarray(mean)) / risk, 0.0, 1.0)
    allowed = -math.log(1 - confidence) / np.maximum(count, 1e-9)
    low, high = np.zeros_like(own), own.copy()
    for _ in range(50):
        middle = (low + high) / 2
        is_far = _divergence(own, middle) > allowed
        low, high = np.where(is_far, middle, low), np.where(is_far, high, middle)
    return np.where(at_risk > 0, 1 - risk * (1 - low), 1.0)


def _divergence(mean: Floats, assumed: Floats) -> Floats:
    """Return the relative entropy of two coins; `assumed` is above 0 where `mean` is."""
    tiny = 1e-300
    first = mean * (np.log(np.maximum(mean, tiny)) - np.log(np.maximum(assumed, tiny)))
    second = (1 - mean) * (np.log(np.maximum(1 - mean, tiny)) - np.log(np.maximum(1 - assumed, tiny)))
    return np.asarray(first + second)
