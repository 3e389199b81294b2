"""How deep maps and arrays of strangers may lie within each other.

It is checked before anything that recurses reads them: how deep a parser goes by itself differs between Pythons.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from mqinfer.protocol.types import Buffer

MAX_NESTING = 100
"""As in Triton, for MessagePack, JSON and TOML."""

JSON_STRINGS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
"""A string of JSON; one without an end reaches to the text's, so that the time grows with the text alone."""
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
_NO_BRACKETS = bytes(set(range(256)) - set(b"[{]}"))

_CHUNK = 64 << 10

# Heads of MessagePack.
_SHORT = frozenset(range(0x80, 0xA0))  # maps and arrays of up to 15 items
_LONG = frozenset(range(0xDC, 0xE0))
_MAPS = frozenset({*range(0x80, 0x90), 0xDE, 0xDF})
NO_CONTAINERS = bytes(set(range(256)) - _SHORT - _LONG)
"""All bytes but those with which a map or an array begins in MessagePack. Who has few of those can't be nested deep."""
_LENGTHS = dict.fromkeys((0xC4, 0xC7, 0xD9), 1) | dict.fromkeys((0xC5, 0xC8, 0xDA, 0xDC, 0xDE), 2)
_LENGTHS |= dict.fromkeys((0xC6, 0xC9, 0xDB, 0xDD, 0xDF), 4)
"""Bytes of the length behind a head: of binary, extensions, strings, arrays and maps."""
_FIXED = dict(zip(range(0xCA, 0xD9), (4, 8, 1, 2, 4, 8, 1, 2, 4, 8, 2, 3, 5, 9, 17), strict=True))
_FIXED |= dict.fromkeys(range(0xC7, 0xCA), 1) | {0xA0 + size: size for size in range(32)}
"""Bytes of fixed number behind that: numbers, extensions with their type, short strings."""


def is_deep_json(text: Buffer) -> bool:
    """Return whether JSON is nested deeper than `MAX_NESTING`; it need not be well-formed."""
    whole = bytes(text)
    if whole.count(b"[") + whole.count(b"{") <= MAX_NESTING:
        return False
    # Brackets in strings would count both ways, so strings go first.
    steps = np.frombuffer(JSON_STRINGS.sub(b"", whole).translate(_STEPS, _NO_BRACKETS), np.int8)
    depth = 0
    for start in range(0, len(steps), _CHUNK):
        depths = depth + np.cumsum(steps[start : start + _CHUNK], dtype=np.int32)
        if depths.max() > MAX_NESTING:
            return True
        depth = int(depths[-1])
    return False


def is_deep_msgpack(packed: Buffer) -> bool:
    """Return whether MessagePack is nested deeper than `MAX_NESTING`; it need not be well-formed.

    Source: https://github.com/msgpack/msgpack/blob/master/spec.md
    """
    data = bytes(packed)
    still: list[int] = []  # of each map and array around the next value: how many values it still has
    at = 0
    while at < len(data) and len(still) <= MAX_NESTING:
        while still and not still[-1]:
            still.pop()
        if still:
            still[-1] -= 1
        head = data[at]
        behind = at + 1 + _LENGTHS.get(head, 0)
        length = int.from_bytes(data[at + 1 : behind])
        at = behind + _FIXED.get(head, 0)
        if head in _SHORT or head in _LONG:
            count = length if head in _LONG else head & 0x0F
            still.append(2 * count if head in _MAPS else count)
        else:
            at += length
    return len(still) > MAX_NESTING


def is_deep(value: Any) -> bool:
    """Return whether parsed tables and lists are nested deeper than `MAX_NESTING`."""
    level = [value]
    for _ in range(MAX_NESTING):
        level = [each for each in level if isinstance(each, dict | list)]
        level = [each for within in level for each in (within.values() if isinstance(within, dict) else within)]
    return any(isinstance(each, dict | list) for each in level)
