"""What a model's configuration asks for beside the plain engine: Triton's `optimization.execution_accelerators`.

Names and parameters are those of Triton's ONNX Runtime back end
(https://github.com/triton-inference-server/onnxruntime_backend#onnx-runtime-with-tensorrt-optimization).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mqinfer.models.repository.tables import array, mapping, scalar, table, text
from mqinfer.protocol.types import Scalar

__all__ = ["OPTIMIZATION", "Accelerator", "Accelerators"]


@dataclass(frozen=True, slots=True)
class Accelerator:
    """One of them: `tensorrt`, `cuda`, `openvino`, with its parameters as the file has them."""

    name: str
    parameters: Mapping[str, Scalar] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Accelerators:
    """Those of a model, in order of preference.

    Attributes:
        gpu: Tried where the model may run on a GPU.
        cpu: Tried on the CPU.
    """

    gpu: tuple[Accelerator, ...] = ()
    cpu: tuple[Accelerator, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Of all that are asked for."""
        return tuple(each.name for each in self.gpu + self.cpu)


def _accelerators(
    gpu_execution_accelerator: tuple[Accelerator, ...] = (), cpu_execution_accelerator: tuple[Accelerator, ...] = ()
) -> Accelerators:
    return Accelerators(gpu_execution_accelerator, cpu_execution_accelerator)


_LIST = array(table({"name": text, "parameters": mapping(scalar)}, Accelerator, required=("name",)))

OPTIMIZATION = table(
    {
        "execution_accelerators": table(
            {"gpu_execution_accelerator": _LIST, "cpu_execution_accelerator": _LIST}, _accelerators
        )
    },
    lambda execution_accelerators=None: execution_accelerators or Accelerators(),
    ignored=(
        "graph",
        "cuda",
        "priority",
        "input_pinned_memory",
        "output_pinned_memory",
        "gather_kernel_buffer_threshold",
        "eager_batching",
    ),
)
"""The check of the table `optimization`."""
