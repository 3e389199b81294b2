"""A TensorFlow function with named inputs and outputs, as a back end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mqinfer.models.backends.tensorflow.runtime import running
from mqinfer.models.load_options import Stated, state_shape
from mqinfer.protocol.datatypes import BY_NAME, Array, Datatype
from mqinfer.protocol.errors import ModelFailed, ModelNotLoadable
from mqinfer.protocol.types import TensorSpec

__all__ = ["TensorFlowBackend", "TensorFlowModel", "has_datatype", "input_specs", "output_specs"]

_DATATYPES = {**BY_NAME, "string": Datatype.BYTES}


def has_datatype(tensor: Any) -> bool:
    """Tell whether the Open Inference Protocol has a datatype for a tensor (not for resources or bfloat16)."""
    return tensor.dtype.base_dtype.name in _DATATYPES


def input_specs(tensors: Mapping[str, Any], stated: Mapping[str, Stated], path: Path) -> tuple[TensorSpec, ...]:
    """Read names, datatypes and shapes of a model's inputs off TensorFlow's tensors or tensor specifications.

    Strings of unknown rank (serialised examples, in TensorFlow 1) are a list of them.

    Raises:
        ModelNotLoadable: A datatype that the Open Inference Protocol doesn't have, or a rank that nobody states.
        ConfigError: A stated shape or name contradicts the model.
    """
    for name, tensor in tensors.items():
        if tensor.shape.rank is None and tensor.dtype.name != "string" and stated.get(name, Stated()).shape is None:
            raise ModelNotLoadable(
                f"{path}: the file leaves the rank of the input {name!r} open; state its shape in model.toml: "
                f'[[input]] name = "{name}", dims = [...]'
            )
    return output_specs(tensors, stated, path)


def output_specs(tensors: Mapping[str, Any], stated: Mapping[str, Stated], path: Path) -> tuple[TensorSpec, ...]:
    """Do the same for outputs; where the rank is unknown, the stated shape is taken, and else [-1].

    Raises:
        ModelNotLoadable: A datatype that the Open Inference Protocol doesn't have.
        ConfigError: A stated shape or name contradicts the model.
    """
    unknown = [name for name, tensor in tensors.items() if tensor.shape.rank is None]
    return state_shape([_spec(name, tensor, path) for name, tensor in tensors.items()], stated, unknown)


def _spec(name: str, tensor: Any, path: Path) -> TensorSpec:
    if not has_datatype(tensor):
        raise ModelNotLoadable(
            f"{path}: {name!r} is {tensor.dtype.name}, which the Open Inference Protocol has no datatype for; "
            "export the model with a cast to one that it has"
        )
    sizes = (-1,) if tensor.shape.rank is None else tuple(-1 if size is None else size for size in tensor.shape)
    return TensorSpec(name, _DATATYPES[tensor.dtype.base_dtype.name], sizes)


@dataclass(frozen=True, slots=True)
class TensorFlowModel:
    """What a loader found: a function from named tensors to named tensors, and what it wants and gives."""

    platform: str
    path: Path
    call: Callable[[Mapping[str, Any]], Mapping[str, Any]]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    precision: str = "fp32"


class TensorFlowBackend:
    """Runs a loaded model."""

    concurrency = 1

    def __init__(self, tensorflow: Any, model: TensorFlowModel, device: str) -> None:
        self._tensorflow = tensorflow
        self._path = model.path
        self._call: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = model.call
        self.platform = model.platform
        self.engine = f"tensorflow {tensorflow.__version__}"
        self.device = device
        self.inputs = model.inputs
        self.outputs = model.outputs
        self.precision = model.precision

    def infer(self, inputs: Mapping[str, Array], outputs: Sequence[str] = ()) -> dict[str, Array]:
        """Run the model once.

        Raises:
            ModelFailed: TensorFlow raised, an input is missing, or the back end was closed.
        """
        missing = [spec.name for spec in self.inputs if spec.name not in inputs]
        if self._call is None or missing:
            raise ModelFailed(f"{self._path.name}: {f'no input {missing[0]!r}' if missing else 'closed'}")
        with running(self._tensorflow, self._path):
            feeds = {spec.name: self._tensorflow.convert_to_tensor(inputs[spec.name]) for spec in self.inputs}
            results = self._call(feeds)
            return {name: _as_array(results[name]) for name in outputs or [spec.name for spec in self.outputs]}

    def close(self) -> None:
        """Let go of the function; TensorFlow itself gives memory back only when the process ends."""
        self._call = None


def _as_array(tensor: Any) -> Array:
    value = tensor.numpy() if hasattr(tensor, "numpy") else tensor  # a session gives arrays
    # A string without axes comes as bytes, of which NumPy would make a fixed-length string.
    return np.asarray(value, np.object_) if isinstance(value, bytes) else np.asarray(value)
