"""Pictures of one stream as differences to one that a worker has answered: for cameras that stand still.

The reference is no frame that was merely sent: a worker has replied to it, and so has it. Frames in flight, lost ones
and workers that come and go then need no rule of their own. A frame is offered as the next reference, the worker keeps
it, and with its result later frames are encoded against it and go to that worker.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from mqinfer.client.result import InferResult
from mqinfer.codecs import encode_tensor
from mqinfer.codecs.difference import array_name, take_difference
from mqinfer.protocol.errors import ReferenceLost
from mqinfer.protocol.header import KEEP, REFERENCE
from mqinfer.protocol.types import EncodedTensor, Outcome, Scalar

__all__ = ["DifferenceEncoder"]


@dataclass(slots=True, eq=False)
class _Reference:
    """A picture that was sent to be kept: its name, its samples, and the worker that has it."""

    name: str
    array: NDArray[Any]
    worker: str = ""


class DifferenceEncoder:
    """Encodes one stream's pictures for one input; a `StreamEncoder`. Thread-safe."""

    def __init__(self, codec: str) -> None:
        """Start without a reference.

        Args:
            codec: Carries the differences, and pictures on their own; it loses nothing.
        """
        self._codec = codec
        self._lock = threading.Lock()
        self._reference: _Reference | None = None
        self._offered: _Reference | None = None

    def encode(
        self, name: str, array: NDArray[Any], parameters: Mapping[str, Scalar], *, whole: bool
    ) -> tuple[EncodedTensor, str]:
        """Encode a picture: as a difference, if a worker has one of its kind and `whole` is not asked for."""
        codec = self._codec if array.dtype.kind == "u" else "lz4"
        with self._lock:
            reference = None if whole else self._reference
            offers = self._offered is None
            if offers:
                self._offered = _Reference(array_name(array), array.copy())
                parameters = {**parameters, KEEP: self._offered.name}
        if reference is None or (reference.array.shape, reference.array.dtype) != (array.shape, array.dtype):
            return encode_tensor(name, array, codec, parameters), ""
        tensor = take_difference(name, array, parameters, reference.array, reference.name, codec)
        return tensor, reference.worker

    def on_result(self, tensor: EncodedTensor, result: InferResult) -> None:
        """Take a picture as the reference that a worker has kept; drop one that is lost there."""
        kept, lost = tensor.parameters.get(KEEP), result.error and result.error.code == ReferenceLost.code
        with self._lock:
            if lost and self._reference and tensor.parameters.get(REFERENCE) == self._reference.name:
                self._reference = None
            offered = self._offered
            if offered is None or kept != offered.name:
                return
            self._offered = None
            if result.outcome is Outcome.OK and result.worker:
                offered.worker = result.worker
                self._reference = offered
