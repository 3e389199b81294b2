"""Try whether the rows of a model's open first axis are independent, so that strangers' requests may share a run.

Shapes don't tell: a softmax over points, or a mean over a sequence, has the same open first axis before and after it.
Rows of unlike values run together and each alone; where the results differ, requests never share a run.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import numpy as np

from mqinfer.models.backend import Backend, SignatureBackend
from mqinfer.protocol.card import ModelCard, Signature
from mqinfer.protocol.datatypes import Array, Datatype, dtype_of, nbytes
from mqinfer.protocol.errors import MqinferError
from mqinfer.protocol.limits import DEFAULT_LIMITS
from mqinfer.protocol.types import TensorSpec

_SIDES = ((256, 4), (64, 16), (256, 1))
"""Sizes that are tried for open axes, of pictures and of others: those of several inputs often must agree."""
_SEED = 3
_ROWS = 3
_TOLERANCE = 1e-3
"""Largest difference, in parts of an output's largest value: engines add up in another order for another batch."""
_COARSE = 2e-2
"""The same for 16 bits and on GPUs, which round more."""
_UNLIKE_ELEMENTS = 0.01
"""Share of a whole-numbered output that may differ: the noise above turns a class where two are nearly alike."""
_DIFFER = "rows that run together"
_NOT_BATCH = ("seq", "len", "point", "time", "frame", "token", "node", "edge", "atom", "step", "height", "width")


def why_rows_stay_alone(backend: Backend, card: ModelCard, *, may_run: bool = True) -> str:
    """Return why requests can't share a run of the model; empty where they can.

    Args:
        backend: The model; its optional attribute `first_axes` has the names of the first axes in its file, and
            `has_independent_rows` promises what is tried otherwise.
        card: Its card.
        may_run: Whether the configuration allows runs at the start.
    """
    if getattr(backend, "has_independent_rows", False):
        return ""
    if isinstance(backend, SignatureBackend) and (name := _of_any_rank(backend.signature)):
        return f"the file leaves open how many axes {name!r} has"
    names = [str(name).lower() for name in getattr(backend, "first_axes", ())]
    if other := next(filter(_names_another_axis, names), ""):
        return f"its open first axis is called {other!r}"
    reason = _tried(backend, card) if may_run else "no run is allowed at the start"
    if reason.startswith(_DIFFER) or not names:
        return reason
    return "" if all(map(_names_a_batch, names)) else reason


def _of_any_rank(signature: Signature | None) -> str:
    """Return an input of any number of axes, if there is one but serialised examples, which always have one."""
    tensors = signature.inputs if signature else ()
    return next((each.name for each in tensors if each.shape is None and each.datatype is not Datatype.BYTES), "")


def _names_a_batch(axis: str) -> bool:
    return "batch" in axis or axis in {"n", "b", "bs"}


def _names_another_axis(axis: str) -> bool:
    return "batch" not in axis and any(part in axis for part in _NOT_BATCH)


def _tried(backend: Backend, card: ModelCard) -> str:
    """Return why the trial has not shown independent rows; empty where it has."""
    pictures = {image.input for image in card.pictures}
    has_open_axes = any(-1 in spec.shape[1:] for spec in card.inputs)
    reason = ""
    for picture, side in _SIDES if has_open_axes else _SIDES[:1]:
        rows = _rows(backend.inputs, {spec.name: picture if spec.name in pictures else side for spec in card.inputs})
        if rows is None:
            return "it is too large for a trial"
        try:
            alone = _each_alone(backend, rows)
        except (MqinferError, MemoryError) as error:
            reason = f"it refused the rows of a trial ({error})"
            continue
        return _compared(backend, rows, alone)
    return reason


def _each_alone(backend: Backend, rows: Mapping[str, Array]) -> list[dict[str, Array]]:
    return [backend.infer({name: each[row : row + 1] for name, each in rows.items()}) for row in range(_ROWS)]


def _compared(backend: Backend, rows: Mapping[str, Array], alone: list[dict[str, Array]]) -> str:
    try:
        together = backend.infer(rows)
    except (MqinferError, MemoryError) as error:
        return f"{_DIFFER} fail ({error})"
    for name, array in together.items():
        if reason := _difference(name, array, [single[name] for single in alone], _tolerance(backend)):
            return reason
    if all(_alike(one[name], other[name], 0.0) for one, other in pairwise(alone) for name in together):
        return "rows of unlike values made the same results in a trial"
    return ""


def _difference(name: str, array: Array, alone: list[Array], tolerance: float) -> str:
    for row, single in enumerate(alone):
        if single.shape[:1] != (1,) or array.shape != (_ROWS, *single.shape[1:]):
            return f"{_DIFFER} make {name!r} {list(array.shape)}, one alone {list(single.shape)}"
        if not _alike(array[row : row + 1], single, tolerance):
            return f"{_DIFFER} make another {name!r} than each alone"
    return ""


def _tolerance(backend: Backend) -> float:
    return _TOLERANCE if backend.device == "cpu" and backend.precision in {"fp32", "int8"} else _COARSE


def _alike(one: Array, other: Array, tolerance: float) -> bool:
    if one.shape != other.shape:
        return False
    if one.dtype.kind not in "fc":
        unlike = _UNLIKE_ELEMENTS if tolerance else 0.0
        return bool(np.count_nonzero(one != other) <= unlike * one.size)
    finite = np.abs(other[np.isfinite(other)], dtype=np.float64)
    return bool(np.allclose(one, other, rtol=0.0, atol=tolerance * finite.max(initial=0.0), equal_nan=True))


def _rows(inputs: tuple[TensorSpec, ...], sides: Mapping[str, int]) -> dict[str, Array] | None:
    """Return rows of unlike values and scales for each input; None where they have more bytes than a request may."""
    random = np.random.default_rng(_SEED)
    rows = {}
    for spec in inputs:
        shape = (_ROWS, *(sides[spec.name] if size == -1 else size for size in spec.shape[1:]))
        if spec.datatype is not Datatype.BYTES and nbytes(spec.datatype, shape) > DEFAULT_LIMITS.tensor_bytes:
            return None
        rows[spec.name] = _values(random, spec.datatype, shape)
    return rows


def _values(random: np.random.Generator, datatype: Datatype, shape: tuple[int, ...]) -> Array:
    """Return a row from 0 to 1, one from -2 to 2 and one from 0 to 255; of whole numbers 0 and 1, of pixels all."""
    bits = random.integers(0, 2, shape)
    bits[1] = 1 - bits[0]
    if datatype is Datatype.BYTES:
        return np.where(bits, b"1", b"0").astype(np.object_)
    dtype = dtype_of(datatype)
    if dtype.kind == "f":
        values = random.random(shape, np.float32)
        values[1] = 4 * values[1] - 2
        values[2] *= 255
        return values.astype(dtype)
    if datatype is not Datatype.UINT8:
        return bits.astype(dtype)
    pixels = random.integers(0, 256, shape, dtype)
    pixels[0] //= 4  # a dark picture
    pixels[2] |= 128  # a bright one
    return pixels
