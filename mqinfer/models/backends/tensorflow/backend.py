"""Run a TensorFlow function with named inputs and outputs, as a back end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mqinfer.models.backend import prepared_sizes
from mqinfer.models.backends.tensorflow.runtime import running
from mqinfer.models.load_options import TensorOptions, check_ranks, with_configured_shapes
from mqinfer.protocol.card import Signature
from mqinfer.protocol.datatypes import BY_NAME, Array, Datatype
from mqinfer.protocol.errors import ModelFailed, ModelNotLoadable
from mqinfer.protocol.types import TensorSpec

_DATATYPES = {**BY_NAME, "string": Datatype.BYTES}


def has_datatype(tensor: Any) -> bool:
    """Return whether the Open Inference Protocol has a datatype for a tensor (not for resources or bfloat16)."""
    return tensor.dtype.base_dtype.name in _DATATYPES


def tensor_specs(
    tensors: Mapping[str, Any], configured: Mapping[str, TensorOptions], path: Path, *, ranked: bool = False
) -> tuple[TensorSpec, ...]:
    """Return names, datatypes and shapes from TensorFlow's tensors or tensor specifications.

    One of unknown rank has the configured shape, by default [-1]; strings of unknown rank are serialised examples, in
    TensorFlow 1.

    Args:
        tensors: By name.
        configured: Shapes and datatypes by name.
        path: The model's, for errors.
        ranked: Whether others of unknown rank need a configured shape, as inputs do.

    Raises:
        ModelNotLoadable: The Open Inference Protocol has no such datatype, or the rank is neither in the file nor
            configured.
        ConfigError: A configured shape or name contradicts the model.
    """
    unknown = [name for name, tensor in tensors.items() if tensor.shape.rank is None]
    if ranked:
        check_ranks((name for name in unknown if tensors[name].dtype.name != "string"), configured, path)
    return with_configured_shapes([_spec(name, tensor, path) for name, tensor in tensors.items()], configured, unknown)


def _spec(name: str, tensor: Any, path: Path) -> TensorSpec:
    if not has_datatype(tensor):
        raise ModelNotLoadable(
            f"{path}: {name!r} is {tensor.dtype.name}, for which the Open Inference Protocol has no datatype; "
            "export the model with a cast to one that it has"
        )
    sizes = (-1,) if tensor.shape.rank is None else tuple(-1 if size is None else size for size in tensor.shape)
    return TensorSpec(name, _DATATYPES[tensor.dtype.base_dtype.name], sizes)


@dataclass(frozen=True, slots=True)
class TensorFlowModel:
    """What a loader found: a function from named tensors to named tensors, and their specifications."""

    platform: str
    path: Path
    call: Callable[[Mapping[str, Any]], Mapping[str, Any]]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    precision: str = "fp32"
    signature: Signature | None = None


class TensorFlowBackend:
    """A loaded TensorFlow model.

    Args:
        tensorflow: The module.
        model: What a loader found.
        device: That it runs on.
        others: The model's further signatures, which share its variables.
    """

    concurrency = 1

    def __init__(
        self, tensorflow: Any, model: TensorFlowModel, device: str, others: Sequence[TensorFlowBackend] = ()
    ) -> None:
        self._tensorflow = tensorflow
        self._path = model.path
        self._call: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = model.call
        self.platform = model.platform
        self.engine = f"tensorflow {tensorflow.__version__}"
        self.device = device
        self.inputs = model.inputs
        self.outputs = model.outputs
        self.batch_sizes = prepared_sizes(device, model.inputs)
        self.precision = model.precision
        self.signature = model.signature
        self.others = tuple(others)
        method = model.signature.method.rpartition("/")[2] if model.signature else ""
        self.first_axes = ("batch",) if method in {"classify", "regress"} else ()  # as TensorFlow Serving defines them

    def infer(self, inputs: Mapping[str, Array], outputs: Sequence[str] = ()) -> dict[str, Array]:
        """Run the model once.

        Raises:
            ModelFailed: TensorFlow raised, an input is missing, or the back end is closed.
        """
        missing = [spec.name for spec in self.inputs if spec.name not in inputs]
        if self._call is None or missing:
            raise ModelFailed(f"{self._path.name}: {f'no input {missing[0]!r}' if missing else 'closed'}")
        with running(self._tensorflow, self._path):
            feeds = {spec.name: self._tensorflow.convert_to_tensor(inputs[spec.name]) for spec in self.inputs}
            results = self._call(feeds)
            return {name: _as_array(results[name]) for name in outputs or [spec.name for spec in self.outputs]}

    def close(self) -> None:
        """Release the function; TensorFlow releases memory only when the process ends."""
        self._call = None
        for other in self.others:
            other.close()


def _as_array(tensor: Any) -> Array:
    value = tensor.numpy() if hasattr(tensor, "numpy") else tensor  # a session returns arrays
    # A string without axes is bytes, which NumPy would convert to a fixed-length string.
    return np.asarray(value, np.object_) if isinstance(value, bytes) else np.asarray(value)
