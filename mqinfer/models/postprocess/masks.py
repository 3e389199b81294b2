"""Convert logits to class masks in the worker, for models that can't be changed.

This reads all logits once more (measured: a quarter of a second network's time at 2048x1024 and 19 classes), so
the graph is the better place: `mqinfer models optimize` fuses the argmax, and then the logits are never written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from mqinfer.models.repository.output_tables import Segmentation
from mqinfer.protocol.card import Layout
from mqinfer.protocol.datatypes import Array, Datatype
from mqinfer.protocol.errors import ConfigError
from mqinfer.protocol.types import TensorSpec

_FLOATS = (Datatype.FP16, Datatype.FP32, Datatype.FP64)
_MOST_CLASSES = 256
_MASK_AXES = 3


def is_mask(settings: Segmentation, outputs: Sequence[TensorSpec]) -> bool:
    """Return whether the output is a mask already, as in a version of the model with the argmax in its graph."""
    return any(
        spec.name == settings.output and spec.datatype is Datatype.UINT8 and len(spec.shape) == _MASK_AXES
        for spec in outputs
    )


class ClassMask:
    """A step that makes a mask of logits: the class of the largest one, of equal ones the first (NumPy's argmax).

    Args:
        settings: The table `[segmentation]`.
        outputs: The model's outputs.

    Raises:
        ConfigError: The model has no such output, or it is no logits of at most 256 classes.
    """

    def __init__(self, settings: Segmentation, outputs: Sequence[TensorSpec]) -> None:
        by_name = {spec.name: spec for spec in outputs}
        logits = by_name.get(settings.output)
        self._name, self._axis = settings.output, 1 if settings.layout is Layout.NCHW else -1
        if logits is None or logits.datatype not in _FLOATS or len(logits.shape) != 4:
            shown = ", ".join(f"{spec.name} {spec.datatype}{list(spec.shape)}" for spec in outputs)
            raise ConfigError(
                f"model.toml: segmentation.output = {settings.output!r}: expected an output of floats with four axes; "
                f"the outputs are {shown}"
            )
        if logits.shape[self._axis] > _MOST_CLASSES:
            raise ConfigError(
                f"model.toml: segmentation.layout = {settings.layout}: means {logits.shape[self._axis]} classes; "
                f"a mask holds at most {_MOST_CLASSES}"
            )
        shape = tuple(size for axis, size in enumerate(logits.shape) if axis != self._axis % 4)
        self.needs = (settings.output,)
        self.makes = (TensorSpec(settings.output, Datatype.UINT8, shape),)

    def __call__(self, outputs: Mapping[str, Array]) -> dict[str, Array]:
        """Make the mask of `outputs`."""
        return {self._name: np.argmax(outputs[self._name], axis=self._axis).astype(np.uint8)}
