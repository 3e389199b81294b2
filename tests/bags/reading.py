"""Reading a source to its end."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

from mqinfer.bags.frame import Frame
from mqinfer.bags.sources import open_source


def read(path: Path, **options: Any) -> list[Frame]:
    """Open, read to the end, close."""
    with closing(open_source(str(path), **options)) as source:
        return list(source.frames())
