"""The contract of a back end: one loaded version of one model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from mqinfer.protocol.datatypes import Array
from mqinfer.protocol.types import TensorSpec

__all__ = ["Backend"]


class Backend(Protocol):
    """A model in memory, ready to run. At most `concurrency` callers at a time."""

    @property
    def platform(self) -> str:
        """Open Inference Protocol platform, such as `onnx_onnxv1`."""

    @property
    def engine(self) -> str:
        """What runs it, with its version, such as `onnxruntime 1.31.1`."""

    @property
    def device(self) -> str:
        """What it really runs on: `cpu`, `cuda:0`, … (never what was merely asked for)."""

    @property
    def precision(self) -> str:
        """What it computes in: `fp32`, `bf16`, `fp16`, `int8`."""

    @property
    def concurrency(self) -> int:
        """How many calls of `infer` may run at the same time; more than 1 where the engine keeps several streams."""

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """As discovered in the model file, -1 for axes of any size, batch axis included."""

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """Likewise."""

    def infer(self, inputs: Mapping[str, Array], outputs: Sequence[str] = ()) -> dict[str, Array]:
        """Run the model once.

        Args:
            inputs: Every input by name, with the declared dtype and shape.
            outputs: Names of the outputs wanted; empty for all.

        Raises:
            ModelFailed: The engine raised.
        """

    def close(self) -> None:
        """Give back memory and devices; the back end can't be used afterwards."""
