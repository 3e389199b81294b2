"""What the fronts ask of the core and get from it, whatever protocol it came by."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import ParamSpec, TypeVar

import numpy as np

from mqinfer.protocol.datatypes import Array
from mqinfer.protocol.errors import BadTensor
from mqinfer.protocol.types import EncodedTensor, RequestedOutput, Scalar
from mqinfer.value_object import value_object

LARGE = 64 << 10
"""What is larger, in bytes, is read and written by a thread; a hand-over takes longer than less than that."""
_MOST_SHOWN = 4
"""Shapes that an error names."""
_P = ParamSpec("_P")
_R = TypeVar("_R")


@value_object(eq=False)
class InferCall:
    """A call for inference.

    Attributes:
        model: Name as the caller stated it; unchecked.
        version: As the caller stated it, unchecked; empty or None for the default one.
        inputs: With their bytes as they came, where possible without a copy.
        outputs: The requested ones; empty for all.
        caller: Who calls; callers take turns.
        deadline_s: Seconds until the call's own deadline, or None where it has none.
        timeout_s: The request's `timeout` parameter in seconds, or None; past it the request ends in another way.
        priority: 1 is the highest, 0 the model's default.
        traceparent: W3C trace context, or empty.
        signature: Of a SavedModel; empty for the model's own.
        tracestate: W3C trace state beside `traceparent`, or empty.
        parameters: Those of the request that say how pictures come, and what is asked of them.
        source: Stream of pictures that are encoded against each other, or empty.
    """

    model: str = ""
    version: str | None = None
    inputs: tuple[EncodedTensor, ...] = ()
    outputs: tuple[RequestedOutput, ...] = field(default=())
    caller: str = ""
    deadline_s: float | None = None
    timeout_s: float | None = None
    priority: int = 0
    traceparent: str = ""
    signature: str = ""
    tracestate: str = ""
    parameters: Mapping[str, Scalar] = field(default_factory=dict)
    source: str = ""


async def offload(size: int, function: Callable[_P, _R], *args: _P.args, **kwargs: _P.kwargs) -> _R:
    """Return what a function returns: called at once for a small `size` in bytes, else by a thread."""
    return function(*args, **kwargs) if size <= LARGE else await asyncio.to_thread(function, *args, **kwargs)


def outputs_size(outputs: Mapping[str, Array]) -> int:
    """Return how many bytes the outputs of a result take, strings only by their pointers."""
    return sum([array.nbytes for array in outputs.values()])


def joined(parts: Sequence[Mapping[str, Array]], rows: Sequence[int]) -> dict[str, Array]:
    """Return the outputs of several requests joined at their first axis.

    Args:
        parts: The outputs of each.
        rows: How many each request had.

    Raises:
        BadTensor: An output has other rows than its request, or rows of another shape than in another request.
    """
    joined: dict[str, Array] = {}
    for name in parts[0]:
        arrays = [part[name] for part in parts]
        shapes = [array.shape for array in arrays]
        if [shape[:1] for shape in shapes] != [(each,) for each in rows] or len({shape[1:] for shape in shapes}) > 1:
            found = " or ".join(str(list(shape)) for shape in sorted(set(shapes))[:_MOST_SHOWN])
            raise BadTensor(
                f"the answers to {len(parts)} requests can't be joined: output {name!r} has the shape {found}, and can "
                "have one only where its first axis is that of the input, and the others are alike; call once for each"
            )
        joined[name] = np.concatenate(arrays)
    return joined
