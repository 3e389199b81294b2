"""How many requests may share one run of a model: `max_batch_size` in Triton's meaning, discovered or checked."""

from __future__ import annotations

from collections.abc import Sequence

from mqinfer.protocol.errors import ConfigError
from mqinfer.protocol.types import TensorSpec

__all__ = ["DEFAULT_MAX_BATCH_SIZE", "max_batch_size"]

DEFAULT_MAX_BATCH_SIZE = 8


def max_batch_size(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], stated: int | None = None) -> int:
    """Find the largest batch.

    Args:
        inputs: The model's, batch axis included.
        outputs: Likewise.
        stated: `max_batch_size` of `model.toml`; None: discover it.

    Returns:
        0 where there is no batch axis; 1 where it is there but fixed at 1; otherwise `stated`, or 8.

    Raises:
        ConfigError: `stated` is more than the inputs' first axes allow.
    """
    if stated is None:
        return _discover(inputs, outputs)
    for spec in inputs:
        first = spec.shape[0] if spec.shape else 0
        if stated > 0 and first != -1 and not stated == first == 1:
            raise ConfigError(
                f"model.toml: max_batch_size = {stated}: input {spec.name!r} has the shape {list(spec.shape)}; "
                f"{_possible(first)} is possible (0 = no batch axis)"
            )
    return stated


def _discover(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> int:
    firsts = {spec.shape[:1] for spec in inputs}
    if firsts == {(1,)}:
        return 1
    if firsts == {(-1,)} and all(spec.shape[:1] == (-1,) for spec in outputs):
        return DEFAULT_MAX_BATCH_SIZE
    return 0


def _possible(first: int) -> str:
    return f"at most {int(first == 1)}" if first < 2 else f"0 or, if all outputs have that first axis too, {first}"
