"""What is wrong with a map from a stranger is said in plain words, with the field's name."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import pytest
from msgspec import Meta, Struct

from mqinfer.protocol.datatypes import Datatype
from mqinfer.protocol.decoding import check
from mqinfer.protocol.errors import BadEnvelope, BadTensor, InvalidRequest
from mqinfer.protocol.types import Count, Finite


class Part(Struct):
    """A part of a map."""

    name: str
    datatype: Datatype = Datatype.FP32


class Whole(Struct):
    """A map with one field of each kind."""

    count: Count = 0
    ratio: Finite = 0.0
    names: tuple[str, ...] = ()
    parts: list[Part] | None = None
    pair: tuple[int, int] = (0, 0)
    free: Annotated[dict[str, Any], Meta(max_length=2)] | None = None


@pytest.mark.parametrize(
    ("found", "error", "sentence"),
    [
        ([], BadEnvelope, "thing must be a map, not an array"),
        ({1: 2}, BadEnvelope, "thing: every key must be a string"),
        ({"count": "1"}, BadEnvelope, "thing: 'count' must be an integer, not a string"),
        ({"count": True}, BadEnvelope, "thing: 'count' must be an integer, not a boolean"),
        ({"count": -1}, BadEnvelope, "thing: 'count' must be an integer >= 0"),
        ({"count": 1 << 63}, BadEnvelope, "thing: 'count' must be an integer <= 2**63 - 1"),
        ({"count": None}, BadEnvelope, "thing: 'count' must be an integer, not nil"),
        ({"ratio": float("nan")}, BadEnvelope, "thing: 'ratio' must be a finite number"),
        ({"ratio": float("inf")}, BadEnvelope, "thing: 'ratio' must be a finite number"),
        ({"ratio": 10**400}, BadEnvelope, "thing: 'ratio' is wrong: Number out of range"),
        ({"names": "x"}, BadEnvelope, "thing: 'names' must be an array, not a string"),
        ({"names": ["x", 1]}, BadEnvelope, "thing: 'names[1]' must be a string, not an integer"),
        ({"parts": {}}, BadEnvelope, "thing: 'parts' must be an array, not a map"),
        ({"parts": [{}]}, BadEnvelope, "thing: 'parts[0].name' is missing"),
        ({"pair": [1]}, BadEnvelope, "thing: 'pair' must be an array of length 2, not 1"),
        ({"free": {"a": 1, "b": 2, "c": 3}}, BadEnvelope, "thing: 'free' must be a map of length <= 2"),
        (
            {"parts": [{"name": "x", "datatype": "FP8 - at `$.count`"}]},
            BadTensor,
            f"thing: 'parts[0].datatype' is 'FP8 - at `$.count`'; it must be one of {', '.join(Datatype)}",
        ),
    ],
)
def test_a_wrong_field_is_named_in_plain_words(found: object, error: type[InvalidRequest], sentence: str) -> None:
    """What was wrong, where, and what was expected."""
    with pytest.raises(error, match=f"^{re.escape(sentence)}$"):
        check(found, Whole, "thing")


def test_unknown_fields_are_ignored() -> None:
    """A newer peer may add some, of any kind."""
    assert check({"count": 1, "novel": [{}]}, Whole, "thing") == Whole(1)


def test_many_threads_may_decode_first() -> None:
    """Each shape that travels, decoded first by eight threads at the same time, in eight fresh processes."""
    root = Path(__file__).parents[2]
    command = [sys.executable, "-X", "faulthandler", "-m", "tests.protocol.racing"]
    for _ in range(8):
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
