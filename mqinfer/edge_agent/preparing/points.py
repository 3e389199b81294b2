"""From the points beside a picture to the tensors that travel with it."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from mqinfer.bags.frame import Frame
from mqinfer.bags.points import read_points
from mqinfer.codecs import encode_tensor
from mqinfer.edge_agent.frames.table import PreparedFrame
from mqinfer.edge_agent.frames.times import EdgeStage
from mqinfer.protocol.card import POINTS_WITH_BATCH, ModelCard, NotFinite, PointsContract
from mqinfer.protocol.datatypes import FLOATS, Datatype, dtype_of
from mqinfer.protocol.errors import BadImage, ConfigError
from mqinfer.protocol.types import EncodedTensor, TensorSpec

_ENCODINGS = ("shuffle-lz4", "lz4", "raw")
"""What points travel in, the best first; all of them carry any array as it is."""


@dataclass(frozen=True, slots=True)
class PointsPreparer:
    """Turns the points of frames into one input of a model, and their mask into another one. Thread-safe.

    Attributes:
        contract: Of the input.
        spec: The input.
        mask: The input for the mask; None where there is none.
        has_batch: Whether these have a batch axis.
        encoding: Codec that they travel in.
        counts: How many points were `read` of the messages that were prepared, by topic; how many of these are
            `not_finite`, and so left out or replaced by padding; and how many were `left_out`, since the model takes
            no more.
    """

    contract: PointsContract
    spec: TensorSpec
    mask: TensorSpec | None
    has_batch: bool
    encoding: str
    counts: Counter[tuple[str, str]]
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def of(cls, contract: PointsContract, card: ModelCard, counts: Counter[tuple[str, str]]) -> Self:
        """Return what prepares points for an input of a model.

        Args:
            contract: Of the input.
            card: Of the model.
            counts: Shared by inputs with other topics.

        Raises:
            ConfigError: The card, which may be anybody's, has no such inputs.
        """
        inputs = {spec.name: spec for spec in card.inputs if spec.datatype is not Datatype.BYTES}
        spec, mask = inputs.get(contract.input), inputs.get(contract.mask)
        if spec is None or spec.datatype not in FLOATS or (mask is None and contract.mask):
            named = f"{contract.input!r} of floating point" + (f" and {contract.mask!r}" if contract.mask else "")
            raise ConfigError(f"the card of model {card.name!r} states points for inputs that it has not: {named}")
        encoding = next((each for each in _ENCODINGS if each in card.parameters.encodings), "raw")
        has_batch = card.max_batch_size > 0 or len(spec.shape) == POINTS_WITH_BATCH
        return cls(contract, spec, mask, has_batch, encoding, counts)

    def prepare(self, frame: Frame, main: PreparedFrame, record: Callable[[EdgeStage, int], None]) -> PreparedFrame:
        """Return the part of a request that the points of a frame are.

        Args:
            frame: With its messages.
            main: The picture that they go with; the part has what is not of points from it.
            record: Called with the duration of the stage.

        Raises:
            BadImage: The frame has no points, or not those fields, or states what can't be.
        """
        if not frame.points:
            raise BadImage(f"it has pictures, and the input {self.contract.input!r} takes points")
        started = time.perf_counter_ns()
        points, there = self._padded(*self._read(frame))
        points = points.T if self.contract.fields_first else points
        has_fields = len(self.spec.shape) > 1 + self.has_batch
        tensors = [self._tensor(self.spec, points if has_fields else points.ravel())]
        if self.mask:
            tensors.append(self._tensor(self.mask, there))
        record(EdgeStage.ENCODE, time.perf_counter_ns() - started)
        return replace(main, tensors=tuple(tensors), bytes_raw=points.nbytes, encoding=None)

    def _tensor(self, spec: TensorSpec, array: NDArray[Any]) -> EncodedTensor:
        own = np.ascontiguousarray(array, dtype_of(spec.datatype))
        return encode_tensor(spec.name, own[None] if self.has_batch else own, self.encoding)

    def _read(self, frame: Frame) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """Return the points `[points, fields]` that go to the model, and which of them are there; count the others."""
        contract = self.contract
        samples = frame.points[-(contract.count or 0) :]
        points = read_points(samples, contract.fields, np.dtype(dtype_of(self.spec.datatype)))
        there = np.isfinite(points).all(1) | (contract.not_finite is NotFinite.KEEP)
        points[~there] = contract.padding
        kept = np.flatnonzero(there | (contract.not_finite is NotFinite.PAD))
        most = contract.count or len(kept)
        counts = {"read": len(there), "not_finite": int((~there).sum()), "left_out": max(0, len(kept) - most)}
        with self._lock:
            self.counts.update({(frame.source, what): count for what, count in counts.items()})
        if len(kept) > most:
            kept = kept[np.arange(most) * len(kept) // most]
        return points[kept], there[kept]

    def _padded(self, points: NDArray[Any], there: NDArray[np.bool_]) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """Put padding behind fewer points than the model takes."""
        padding = max(0, (self.contract.count or 0) - len(points))
        padded = np.pad(points, ((0, padding), (0, 0)), constant_values=self.contract.padding)
        return padded, np.pad(there, (0, padding))
