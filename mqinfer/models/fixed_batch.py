"""Models whose file fixes the batch at N rows: a smaller batch is filled up, and what came of the filling is cut off.

Only where `max_batch_size` states that N: then the first axis is a batch axis, and requests of fewer rows share a run.
Unstated, the first axis is taken for part of the shape, and a request brings all N rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from mqinfer.models.backend import Backend
from mqinfer.protocol.datatypes import Array
from mqinfer.protocol.errors import ModelFailed
from mqinfer.protocol.types import TensorSpec

__all__ = ["FilledBatch", "with_filled_batches"]


class FilledBatch:
    """A back end that takes from 1 to N rows of a model that computes N.

    Args:
        network: The model; the first axis of each input and output is `rows`.
        rows: N.
    """

    def __init__(self, network: Backend, rows: int) -> None:
        self._network = network
        self._rows = rows
        self.platform, self.engine, self.device = network.platform, network.engine, network.device
        self.precision, self.concurrency = network.precision, network.concurrency
        self.inputs = tuple(map(_opened, network.inputs))
        self.outputs = tuple(map(_opened, network.outputs))

    def infer(self, inputs: Mapping[str, Array], outputs: Sequence[str] = ()) -> dict[str, Array]:
        """Fill the batch up by its last row, which the model surely can compute, and run it.

        Raises:
            ModelFailed: The engine raised, or there are no rows, or more than the model takes.
        """
        rows = len(next(iter(inputs.values())))
        if not 1 <= rows <= self._rows:
            raise ModelFailed(f"a batch of {rows} rows; the model's file fixes it at {self._rows}")
        if rows == self._rows:
            return self._network.infer(inputs, outputs)
        filled = {name: _filled(array, self._rows) for name, array in inputs.items()}
        return {name: array[:rows] for name, array in self._network.infer(filled, outputs).items()}

    def close(self) -> None:
        """Close the model."""
        self._network.close()


def with_filled_batches(network: Backend, stated: int | None) -> Backend:
    """Let smaller batches be filled up where `max_batch_size` states what the file fixes; otherwise change nothing."""
    firsts = {spec.shape[:1] for spec in (*network.inputs, *network.outputs)}
    if stated is None or stated < 2 or not network.inputs or firsts != {(stated,)}:
        return network
    return FilledBatch(network, stated)


def _opened(spec: TensorSpec) -> TensorSpec:
    return replace(spec, shape=(-1, *spec.shape[1:]))


def _filled(array: Array, rows: int) -> Array:
    return np.concatenate([array, np.repeat(array[-1:], rows - len(array), axis=0)])
