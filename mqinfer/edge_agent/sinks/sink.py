"""The contract of a sink."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from mqinfer.bags.frame import Frame
from mqinfer.client.result import InferResult
from mqinfer.protocol.errors import ConfigError

__all__ = ["FileNames", "Picture", "Sink", "writing"]

Picture = npt.NDArray[np.uint8]
"""RGB pixels `[height, width, 3]`, 0 to 255."""


class Sink(Protocol):
    """Keeps results. Called from one thread, in the order in which the frames of a stream were read."""

    def write(self, frame: Frame, picture: Picture, result: InferResult) -> None:
        """Keep one result, whatever its outcome.

        Args:
            frame: As it was read.
            picture: What the model saw, before its own normalisation; `[0, 0, 3]` where the frame could not be decoded.
            result: The outcome.
        """

    def close(self) -> tuple[Path, ...]:
        """Finish the files and name them."""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn the operating system's refusal into an error that names the file.

    Raises:
        ConfigError: The file or folder can't be made or written.
    """
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"cannot write {path}: {error.strerror or error}; name another place or make room there"
        ) from error


class FileNames:
    """Turns the names of streams (`/camera/image_raw`) into parts of file names, a different one for each."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def of(self, source: str) -> str:
        """Give the stream's part: letters, digits, `.`, `_` and `-`; two streams never share one."""
        if source not in self._names:
            plain = re.sub(r"[^A-Za-z0-9._-]+", "-", source).strip("-.") or "stream"
            taken = set(self._names.values())
            numbered = (f"{plain}-{number}" for number in range(2, len(taken) + 3))
            self._names[source] = plain if plain not in taken else next(name for name in numbered if name not in taken)
        return self._names[source]
