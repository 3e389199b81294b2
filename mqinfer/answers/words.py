"""The one description of a result in words, for JSON: lines, messages, replies of a gateway and a worker.

What is found stands under the same names everywhere: `detections` with `class`, `score` and `box`, their `counts` by
class, the `top` classes, `class_shares` of a mask, the range of a `depth`.
"""

from __future__ import annotations

import base64
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from xxhash import xxh3_128_hexdigest

from mqinfer.answers.answer import PictureAnswer
from mqinfer.answers.keypoints import named_keypoints
from mqinfer.answers.outputs import (
    MOST_BOXES,
    SMALL_OUTPUT,
    DetectedBox,
    TopClass,
    class_name,
    class_shares,
    extremes,
    find_mask,
    strings_of,
)
from mqinfer.protocol.card import ClassInfo
from mqinfer.protocol.datatypes import Array, datatype_of


def describe_answer(answer: PictureAnswer, *, min_score: float = 0.0, most: int = MOST_BOXES) -> dict[str, object]:
    """Describe what was found in a picture: only what there is, in the picture's pixels.

    - `detections`, the best first, and `counts` of them by class, which is there, and empty, where none were found;
    - `top`: the best classes of a classifier;
    - `class_shares`: the share of each class in the pixels of a mask;
    - `depth`: the `least` and the `greatest` of the numbers that each pixel has, and the `output` that they are from.

    Args:
        answer: The outputs, and where the picture lies.
        min_score: Objects of a lower score are left out.
        most: Objects that are described, the best first.

    Raises:
        MissingExtra: OpenCV is not installed, and objects have masks.
    """
    boxes = [box for box in answer.boxes if box.score >= min_score][:most]
    found = describe_boxes(boxes, answer.classes)
    for box, each in zip(boxes, found.get("detections", ()), strict=True):
        if outline := answer.outline(box):
            each["outline"] = outline
    if "boxes" in answer.outputs:
        found["counts"] = dict(Counter(each["class"] or "" for each in found.get("detections", ())))
    found |= describe_top(answer.top)
    if answer.mask is not None:
        found["class_shares"] = answer.shares
    if answer.depth is not None:
        depth = answer.depth
        found["depth"] = {"output": depth.name, "least": depth.least, "greatest": depth.greatest}
    return found


def describe_outputs(
    outputs: Mapping[str, Array],
    classes: Sequence[ClassInfo],
    shares: Mapping[str, float] | None = None,
    picture: tuple[int, int] | None = None,
) -> dict[str, dict[str, object]]:
    """Describe outputs for JSON: shape, datatype, hash, `class_shares` of a mask, `values` of anything small.

    Larger ones have their `least` and `greatest` number that is finite.

    Args:
        outputs: Decoded arrays by name.
        classes: Of the model's card.
        shares: Of the classes in the pixels of the frame; empty or None to count those of the mask itself.
        picture: As in `find_mask`.
    """
    found = find_mask(outputs, picture)
    described: dict[str, dict[str, object]] = {}
    for name, output in outputs.items():
        entry: dict[str, object] = {
            "shape": list(output.shape),
            "datatype": datatype_of(output.dtype).value,
            "hash": f"xxh3:{_hash(output)}",
        }
        if found and found[0] == name:
            entry["class_shares"] = shares or class_shares(found[1], classes)
        elif output.size <= SMALL_OUTPUT:
            entry["values"] = [_plain(value) for value in output.ravel().tolist()]
        elif (ends := extremes(output)) is not None:
            entry["least"], entry["greatest"] = ends
        described[name] = entry
    return described


def elements(output: Array) -> dict[str, object]:
    """Return all elements of an output for JSON: little-endian bytes, or strings, in base64."""
    if output.dtype.kind == "O":
        return {"strings": [base64.b64encode(each).decode() for each in strings_of(output)]}
    return {"data": base64.b64encode(np.ascontiguousarray(output).tobytes()).decode()}


def _hash(output: Array) -> str:
    """Return a hash of the elements in order; it tells two results apart, and protects from nobody."""
    if output.dtype.kind == "O":  # strings, each behind its length
        return xxh3_128_hexdigest(b"".join(len(each).to_bytes(8, "little") + each for each in strings_of(output)))
    return xxh3_128_hexdigest(np.ascontiguousarray(output).reshape(-1).view(np.uint8).data)


def _plain(value: object) -> object:
    """Convert a value for JSON: bytes to text, numbers that are not finite to protobuf's JSON words."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def describe_boxes(boxes: Sequence[DetectedBox], classes: Sequence[ClassInfo]) -> dict[str, Any]:
    """Describe boxes for JSON: empty without any, otherwise the key `detections`."""
    return {"detections": [_describe_box(each, classes) for each in boxes]} if boxes else {}


def _describe_box(found: DetectedBox, classes: Sequence[ClassInfo]) -> dict[str, object]:
    return {
        "class": None if found.number is None else class_name(found.number, classes),
        "score": round(found.score, 6),
        "box": [round(side, 2) for side in found.box],
        **({} if found.id is None else {"id": found.id}),
        **({"keypoints": _points(found, classes)} if found.keypoints else {}),
    }


def _points(found: DetectedBox, classes: Sequence[ClassInfo]) -> dict[str, list[float]]:
    points = named_keypoints(found, classes)
    return {name: [round(x, 2), round(y, 2), round(score, 6)] for name, (x, y, score) in points.items()}


def describe_top(top: Sequence[TopClass]) -> dict[str, object]:
    """Describe the best classes for JSON: empty without any, otherwise the key `top`."""
    if not top:
        return {}
    return {"top": [{"class": each.name, "number": each.number, "score": round(each.score, 6)} for each in top]}


SCHEMA = 1
"""Version of `answer.schema.json`, which describes the whole document; it stands in each one as `schema`."""
MOST_BYTES = 64 * 1024
"""Bytes of a document in words: what is above is cut in the order of `_CUTS`."""
_CUTS = ("outline", "keypoints", "outputs", "class_shares", "joined", "detections", "others")
_NEVER_CUT = ("schema", "source", "sequence", "capture_time_ns", "outcome", "model_name", "model_version", "error")
_LONGEST = 1000
"""Characters that are kept of a text, where all but a few fields are cut."""


def document(described: Mapping[str, Any]) -> tuple[bytes, tuple[str, ...]]:
    """Return a description as JSON of at most `MOST_BYTES`, and what was cut of it, which stands in its field `cut`."""
    whole: dict[str, Any] = {"schema": SCHEMA, **described}
    payload: bytes = _json(whole)
    cut: tuple[str, ...] = ()
    for what in _CUTS:
        if len(payload) <= MOST_BYTES:
            break
        whole, cut = _without(whole, what), (*cut, what)
        payload = _json({**whole, "cut": cut})
    return payload, cut


def _json(whole: Mapping[str, Any]) -> bytes:
    return json.dumps(whole, separators=(",", ":"), allow_nan=False).encode()


def _without(whole: Mapping[str, Any], what: str) -> dict[str, Any]:
    if what in {"outline", "keypoints"}:
        plain = [{key: each[key] for key in each if key != what} for each in whole.get("detections", ())]
        return {**whole, "detections": plain} if plain else dict(whole)
    if what != "others":
        return {key: value for key, value in whole.items() if key != what}
    return {key: _short(whole[key]) for key in _NEVER_CUT if key in whole}


def _short(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _short(each) for key, each in value.items()}
    return value[:_LONGEST] if isinstance(value, str) else value
