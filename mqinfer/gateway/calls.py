"""What the fronts ask of the core and get from it, whatever protocol it came by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from mqinfer.protocol.datatypes import Array
from mqinfer.protocol.errors import ModelFailed
from mqinfer.protocol.types import EncodedTensor, RequestedOutput


@dataclass(frozen=True, slots=True, eq=False)
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


def outputs_size(outputs: Mapping[str, Array]) -> int:
    """Return how many bytes the outputs of a result take, strings only by their pointers."""
    return sum(array.nbytes for array in outputs.values())


def joined(parts: Sequence[Mapping[str, Array]], rows: int) -> dict[str, Array]:
    """Return the outputs of several requests, of so many rows together, joined at their first axis.

    Raises:
        ModelFailed: They do not fit together.
    """
    joined: dict[str, Array] = {}
    for name in parts[0]:
        try:
            joined[name] = np.concatenate([part[name] for part in parts])
        except (KeyError, ValueError) as error:
            raise ModelFailed(f"output {name!r} of several requests can't be joined: {error}") from error
        if len(joined[name]) != rows:
            raise ModelFailed(f"output {name!r} has {len(joined[name])} rows for {rows}: it can't be joined; send less")
    return joined
