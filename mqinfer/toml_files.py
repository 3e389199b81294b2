"""Small files that a user names, and TOML: both are bounded before they are read."""

from __future__ import annotations

import errno
import re
import tomllib
from pathlib import Path
from typing import Any

MAX_FILE_BYTES = 1 << 20
"""Largest file of options, or of a model's configuration."""
_MAX_NESTING = 100
_PART = r"""(?:[\w-]+|"[^"\n]*"|'[^'\n]*')[ \t]*"""
_DOTTED = re.compile(rf"(?<![\w-])(?:{_PART}\.[ \t]*){{{_MAX_NESTING}}}")
"""A key with very many parts, for which the parser of TOML takes the square of their number."""


def read_text(path: Path, most_bytes: int = MAX_FILE_BYTES) -> str:
    """Return the text of a small file or a pipe, without the mark of UTF-8 that Windows writes before it.

    Raises:
        OSError: It can't be read, or is larger.
        UnicodeDecodeError: It is not UTF-8.
    """
    return read_bytes(path, most_bytes).decode("utf-8-sig").replace("\r\n", "\n")


def read_bytes(path: Path, most_bytes: int) -> bytes:
    """Return what a file or a pipe holds; what never ends, such as a device, is not read on and on.

    Raises:
        OSError: It can't be read, or is larger.
    """
    with path.open("rb") as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise OSError(errno.EFBIG, f"it has more than {most_bytes} bytes", str(path))
    return content


def parse_toml(text: str) -> dict[str, Any]:
    """Return the tables of TOML.

    Raises:
        ValueError: It is no TOML, has an integer of more digits than Python reads, or is nested too deep.
    """
    try:
        content = None if _DOTTED.search(text) else tomllib.loads(text)
    except RecursionError:
        content = None
    if content is None or is_deep(content):
        raise ValueError(f"tables are nested more than {_MAX_NESTING} deep")
    return content


def is_deep(value: Any) -> bool:
    """Return whether parsed tables and lists are nested deeper than 100."""
    level = [value]
    for _ in range(_MAX_NESTING):
        level = [each for each in level if isinstance(each, dict | list)]
        level = [each for within in level for each in (within.values() if isinstance(within, dict) else within)]
    return any(isinstance(each, dict | list) for each in level)
