"""The contract of a back end: one loaded version of one model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

from mqinfer.protocol.card import Signature
from mqinfer.protocol.datatypes import Array
from mqinfer.protocol.types import TensorSpec


class Backend(Protocol):
    """A model in memory, ready to run; at most `concurrency` callers at a time."""

    @property
    def platform(self) -> str:
        """Open Inference Protocol platform, such as `onnx_onnxv1`."""

    @property
    def engine(self) -> str:
        """Name and version of the engine that runs it, such as `onnxruntime 1.31.1`."""

    @property
    def device(self) -> str:
        """The device that it really runs on, which may differ from the requested one: `cpu`, `cuda:0`, …."""

    @property
    def precision(self) -> str:
        """The precision that it computes in: `fp32`, `bf16`, `fp16`, `int8`."""

    @property
    def concurrency(self) -> int:
        """How many calls of `infer` may run at the same time: above 1 where the engine has several streams."""

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """The inputs as the model file has them: -1 for axes of any size, batch axis included."""

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """The outputs, in the same form."""

    def infer(self, inputs: Mapping[str, Array], outputs: Sequence[str] = ()) -> dict[str, Array]:
        """Run the model once.

        Args:
            inputs: Every input by name, with the declared dtype and shape.
            outputs: Names of the requested outputs; empty for all.

        Raises:
            ModelFailed: The engine raised.
        """

    def close(self) -> None:
        """Release memory and devices; the back end can't be used afterwards."""


@runtime_checkable
class SignatureBackend(Backend, Protocol):
    """A back end that runs one of the signatures of a model, such as a SavedModel."""

    @property
    def signature(self) -> Signature | None:
        """The one that it runs; None where the model's file names none."""

    @property
    def others(self) -> Sequence[SignatureBackend]:
        """The model's further signatures; closed with this one."""


_PREPARED_SIZES = (1, 4, 8, 16, 32, 64)


def prepared_sizes(device: str, inputs: Sequence[TensorSpec]) -> tuple[int, ...]:
    """Return the rows of the batches that an engine with cuDNN should have; empty on a CPU, and where they are fixed.

    The first run with another number of rows plans every convolution anew: 0.4 s for eight convolutions in TensorFlow
    on an H100, 0.05 s for ResNet-50 in PyTorch and 2 s for a segmentation network of 968x608.
    """
    return _PREPARED_SIZES if device != "cpu" and inputs and inputs[0].shape[:1] == (-1,) else ()


def batch_sizes(backend: Backend) -> tuple[int, ...]:
    """Return the rows of the batches that the back end prepares, ascending and from 1 on; empty where any will do.

    They are its optional attribute `batch_sizes`: any other number of rows costs it many runs, so a worker fills up.
    """
    return getattr(backend, "batch_sizes", ())
