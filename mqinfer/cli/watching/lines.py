"""Describe results of others: one line for people, one JSON object for programs."""

from __future__ import annotations

import math
from datetime import datetime

from msgspec.structs import asdict

from mqinfer.answers.outputs import class_shares, find_boxes, find_mask, find_top, label, top_label
from mqinfer.answers.words import describe_boxes, describe_outputs, describe_top, elements
from mqinfer.client.result import InferResult
from mqinfer.client.watching import SeenResult
from mqinfer.logs import printable
from mqinfer.protocol.card import ClassInfo
from mqinfer.protocol.datatypes import Array
from mqinfer.protocol.types import Scalar, Timings

_MOST_NAMED = 3
"""Classes, boxes or outputs that a line names."""
_LONGEST = 160
"""Characters of one text of a message in a line."""
_STAGES = ("server_queue", "decode", "preprocess", "inference", "postprocess", "encode")


def line_of(seen: SeenResult, result: InferResult, classes: tuple[ClassInfo, ...]) -> str:
    """Return one line: time, client, source, sequence, outcome, worker, model, time in the worker, and the answer.

    Args:
        seen: As it came.
        result: The same, decoded.
        classes: Of the model's card.
    """
    capture = result.capture
    parts = (
        f"{datetime.fromtimestamp(seen.received_ns / 1e9):%H:%M:%S.%f}"[:-3],  # noqa: DTZ006 - the reader's own time
        seen.client,
        capture.source or "-",
        "-" if capture.sequence is None else str(capture.sequence),
        result.outcome.value,
        result.worker or "-",
        f"{result.model_name} {result.model_version}".strip(),
        _split(result.timings),
        f"{result.error.code}: {result.error.message}" if result.error else _answer(result, classes),
    )
    return "  ".join(_short(part) for part in parts)


def describe(
    seen: SeenResult, result: InferResult, classes: tuple[ClassInfo, ...], *, with_tensors: bool = False
) -> dict[str, object]:
    """Return a result as an object for JSON; of its outputs shape, hash and what is small, or all of their bytes.

    Args:
        seen: As it came.
        result: The same, decoded.
        classes: Of the model's card.
        with_tensors: Whether each output has its elements, too: row by row, little-endian, in base64.
    """
    outputs = describe_outputs(result.outputs, classes)
    if with_tensors:
        for name, output in result.outputs.items():
            outputs[name] |= elements(output)
    return {
        "received_ns": seen.received_ns,
        "client": seen.client,
        "id": seen.request_id,
        **asdict(result.capture),
        "outcome": result.outcome.value,
        "model_name": result.model_name,
        "model_version": result.model_version,
        "model_hash": result.model_hash,
        "worker": result.worker,
        "stage": result.stage,
        "attempt": result.attempts,
        "timings": asdict(result.timings),
        "outputs": outputs,
        **describe_boxes(find_boxes(result.outputs), classes),
        **describe_top(find_top(result.outputs, classes)),
        "parameters": {name: _finite(value) for name, value in result.parameters.items()},
        "error": asdict(result.error) if result.error else None,
    }


def _finite(value: Scalar) -> Scalar:
    """Return what JSON has no number for as text."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _split(timings: Timings) -> str:
    """Return the time in the worker, and what it was spent on."""
    stages = ((name, getattr(timings, name)) for name in _STAGES)
    parts = [f"{name.removeprefix('server_')} {spent / 1e6:.1f}" for name, spent in stages if spent >= 50_000]
    return f"{timings.server / 1e6:.1f} ms" + (f" ({', '.join(parts)})" if parts else "")


def _answer(result: InferResult, classes: tuple[ClassInfo, ...]) -> str:
    """Return what the model found: the largest classes of a mask, the best boxes or classes; else what it returned."""
    if boxes := find_boxes(result.outputs):
        named = ", ".join(label(each, classes) for each in boxes[:_MOST_NAMED])
        return f"{len(boxes)} boxes: {named}"
    if mask := find_mask(result.outputs):
        shares = class_shares(mask[1], classes)
        largest = sorted(shares, key=lambda name: -shares[name])[:_MOST_NAMED]
        return ", ".join(f"{name} {shares[name]:.0%}" for name in largest if shares[name])
    if top := find_top(result.outputs, classes):
        return ", ".join(map(top_label, top[:_MOST_NAMED]))
    found = [f"{name} {_values(output)}" for name, output in list(result.outputs.items())[:_MOST_NAMED]]
    return ", ".join(found) or "no outputs"


def _values(output: Array) -> str:
    if output.size == 1 and output.dtype.kind in "biuf":
        return f"{output.item():.6g}"
    return f"{output.dtype.name}{list(output.shape)}"


def _short(text: str) -> str:
    """Return a text of a message as it may be printed: on its line, without control characters, of bounded length."""
    return printable(text if len(text) <= _LONGEST else f"{text[:_LONGEST]}...")
