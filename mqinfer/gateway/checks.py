"""Checks of a call against the model's card, in the words of Triton; what a card can't decide is left to the worker."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from math import prod

from mqinfer.broker.packets import buffer_size
from mqinfer.gateway.calls import InferCall
from mqinfer.protocol.card import ModelCard
from mqinfer.protocol.datatypes import Datatype, array_bytes, nbytes
from mqinfer.protocol.errors import BadTensor, LimitExceeded
from mqinfer.protocol.header import IMAGE_ENCODING
from mqinfer.protocol.limits import DEFAULT_LIMITS
from mqinfer.protocol.types import EncodedTensor, TensorSpec

_SHOWN = 200
"""Characters of a caller's text that an error repeats."""


_MOST_COUNTED = 64 << 10
"""Bytes of strings that are counted for an error's words."""
_MOST_SHOWN = 16
"""Inputs, and axes, that an error names."""

_STRINGS = replace(DEFAULT_LIMITS, tensor_bytes=DEFAULT_LIMITS.payload_bytes)
"""For tensors of strings: each takes ten times its bytes on the way through clients and workers."""


def check_shape(name: str, datatype: Datatype, shape: Sequence[int]) -> None:
    """Check the shape that a request states, before memory is taken for its elements.

    Raises:
        BadTensor: An axis is negative, or beyond 63 bits.
        LimitExceeded: Too many axes, bytes or strings.
    """
    limits = _STRINGS if datatype is Datatype.BYTES else DEFAULT_LIMITS
    array_bytes(name, datatype, shape, limits, "for one tensor, which no option raises")


def check_names(what: str, names: Sequence[str]) -> None:
    """Check the names of a request's inputs or outputs.

    Raises:
        BadTensor: One stands twice.
        LimitExceeded: There are too many.
    """
    if len(names) > DEFAULT_LIMITS.tensors:
        raise LimitExceeded(f"{len(names)} {what}s; at most {DEFAULT_LIMITS.tensors} are accepted")
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise BadTensor(f"{what} '{twice[:_SHOWN]}' already exists in request; name each {what} once")


def in_words(error: BadTensor, inputs: Sequence[EncodedTensor], model: str) -> BadTensor:
    """Return a worker's refusal of inputs in Triton's words, where the strings of one are more or fewer than stated."""
    for tensor in reversed(inputs):  # of several, Triton names the last one
        if tensor.datatype is not Datatype.BYTES or tensor.encoding != "raw" or len(tensor.data) > _MOST_COUNTED:
            continue
        expected = prod(tensor.shape)
        found = _count_strings(memoryview(tensor.data), expected)
        of = f"for inference input '{tensor.name}' for model '{model}'"
        if found > expected:
            return BadTensor(f"unexpected number of string elements {found} {of}, expecting {expected}: {error}")
        if found < expected:
            return BadTensor(f"expected {expected} string elements {of}, got {found}: {error}")
    return error


def _count_strings(data: memoryview, most: int) -> int:
    """Return how many strings the raw form of a tensor begins, one above `most` at most."""
    at = found = 0
    while at + 4 <= len(data) and found <= most:
        at += 4 + int.from_bytes(data[at : at + 4], "little")
        found += 1
    return found


class CardChecks:
    """The checks that one card makes possible; made once a card.

    Attributes:
        card: The card.
    """

    def __init__(self, card: ModelCard) -> None:
        """Prepare.

        Args:
            card: Of the version that the calls are for.
        """
        self.card = card
        self._inputs = {spec.name: spec for spec in card.inputs}
        self._outputs = {spec.name for spec in card.outputs}
        self._most = card.max_batch_size
        self._least_axes = card.least_axes

    def check(self, call: InferCall) -> None:
        """Raise where no worker could serve a call.

        Raises:
            BadTensor: A name, datatype, shape, batch or size is wrong.
            LimitExceeded: The batch is larger than the model takes.
        """
        specs, inputs = self._inputs, call.inputs
        if len(inputs) != len(specs):
            raise self._wrong_count(inputs)
        seen: dict[str, EncodedTensor] = {}
        for tensor in inputs:
            spec = specs.get(tensor.name)
            if spec is None:
                raise self._unexpected(tensor.name)
            if tensor.name in seen:
                raise self._twice(tensor.name)
            seen[tensor.name] = tensor
            if IMAGE_ENCODING not in tensor.parameters:  # of a picture the worker makes the model's input
                self._check_tensor(tensor, spec)
        if self._most:
            self._check_batch(inputs)
        for output in call.outputs:
            if output.name not in self._outputs:
                what = f"unexpected inference output '{output.name[:_SHOWN]}' for model '{self._name}'"
                raise BadTensor(f"{what}; it has: {', '.join(sorted(self._outputs))}")

    @property
    def _name(self) -> str:
        return self.card.name

    def _check_tensor(self, tensor: EncodedTensor, spec: TensorSpec) -> None:
        if tensor.datatype != spec.datatype:
            raise BadTensor(
                f"inference input '{tensor.name}' data-type is '{tensor.datatype}', but model '{self._name}' expects "
                f"'{spec.datatype}'"
            )
        shape, declared = tensor.shape, spec.shape
        least = self._least_axes.get(tensor.name)
        fits = len(shape) == len(declared) if least is None else len(shape) >= least
        for size, expected in zip(shape, declared, strict=False):  # a loop: it runs for every input of a call
            fits = fits and size >= 0 and expected in {size, -1}
        if not fits:
            raise self._wrong_shape(tensor, spec)
        if tensor.encoding == "raw" and spec.datatype is not Datatype.BYTES:
            size = buffer_size(tensor.data)
            if size != (expected := nbytes(spec.datatype, shape)):
                of = f"for input '{tensor.name}' for model '{self._name}'"
                raise BadTensor(f"input byte size mismatch {of}. Expected {expected}, got {size}")

    def _check_batch(self, inputs: Sequence[EncodedTensor]) -> None:
        rows = None
        for tensor in inputs:
            if IMAGE_ENCODING in tensor.parameters:
                continue
            if rows is not None and rows != tensor.shape[0]:
                raise BadTensor(f"input '{tensor.name}' batch size does not match other inputs for '{self._name}'")
            rows = tensor.shape[0]
        if rows is not None and rows > self._most:
            raise LimitExceeded(f"inference request batch-size must be <= {self._most} for '{self._name}', got {rows}")

    def _wrong_count(self, inputs: Sequence[EncodedTensor]) -> BadTensor:
        given = _listed([tensor.name for tensor in inputs])
        unknown = [tensor.name for tensor in inputs if tensor.name not in self._inputs]
        if unknown:
            return self._unexpected(unknown[0])
        counts = Counter(tensor.name for tensor in inputs)
        twice = [name for name, count in counts.items() if count > 1]
        if twice:
            return self._twice(twice[0])
        missing = _listed(sorted(self._inputs.keys() - counts.keys()))
        return BadTensor(
            f"expected {len(self._inputs)} inputs but got {len(inputs)} inputs for model '{self._name}'. Got input(s) "
            f"{given}, but missing required input(s) {missing}. Please provide all required input(s)."
        )

    def _unexpected(self, name: str) -> BadTensor:
        known = ", ".join(sorted(self._inputs))
        return BadTensor(f"unexpected inference input '{name[:_SHOWN]}' for model '{self._name}'; it takes: {known}")

    def _twice(self, name: str) -> BadTensor:
        return BadTensor(f"input '{name}' already exists in request; model '{self._name}' takes each input once")

    def _wrong_shape(self, tensor: EncodedTensor, spec: TensorSpec) -> BadTensor:
        what = f"unexpected shape for input '{tensor.name}' for model '{self._name}'"
        note = ". The first axis is the batch" if self._most and len(tensor.shape) == len(spec.shape) - 1 else ""
        return BadTensor(f"{what}. Expected {_text(spec.shape)}, got {_text(tensor.shape)}{note}")


def _listed(names: Sequence[str]) -> str:
    """Return names as Triton lists them."""
    quoted = [f"'{name[:_SHOWN]}'" for name in names[:_MOST_SHOWN]]
    return f"[{','.join(quoted)}]"


def _text(shape: Sequence[int]) -> str:
    """Return a shape as Triton writes it."""
    return f"[{','.join(map(str, shape[:_MOST_SHOWN]))}]"
