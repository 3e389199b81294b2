"""Anomaly scores of autoencoders over sets of particles: differences between a jet and its reconstruction.

All functions take TensorFlow tensors, so that the scores are part of the served graph.
"""

from __future__ import annotations

from typing import Any

from mqinfer.lab.zoo.layers import tensorflow


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
