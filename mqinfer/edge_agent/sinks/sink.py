"""The contract of a sink, and what sinks share: file names, and one error for a file that cannot be written."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Protocol

from mqinfer.bags.frame import Frame
from mqinfer.client.result import InferResult
from mqinfer.edge_agent.sinks.view import View
from mqinfer.protocol.errors import ConfigError

__all__ = ["FileNames", "Sink", "set_aside", "writing"]

log = logging.getLogger("mqinfer.edge_agent")


class Sink(Protocol):
    """Keeps results. Called from one thread, in the order in which the frames of a stream were read."""

    def write(self, frame: Frame, view: View, result: InferResult) -> None:
        """Keep one result, whatever its outcome.

        Args:
            frame: As it was read.
            view: Its pixels, and the outputs of the result in them.
            result: The outcome.
        """

    def close(self) -> tuple[Path, ...]:
        """Finish the files, and return their paths."""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raise an error that names the file if the body fails to write it.

    Raises:
        ConfigError: The file or folder cannot be created or written.
    """
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"cannot write {path}: {error.strerror or error}; choose another place, or make room there"
        ) from error


def set_aside(path: Path, *, level: int = logging.WARNING) -> Path | None:
    """Rename a file of an earlier run, so that nothing is overwritten: `results.mcap` becomes `results.1.mcap`.

    Args:
        path: The file that is going to be written.
        level: How the new name is logged.

    Returns:
        The new path; None if there is no such file.

    Raises:
        OSError: It cannot be renamed.
    """
    if not path.is_file():
        return None
    numbered = (path.with_suffix(f".{number}{path.suffix}") for number in count(1))
    free = next(each for each in numbered if not each.exists())
    path.rename(free)
    log.log(level, "%s of an earlier run is kept as %s", path, free.name)
    return free


class FileNames:
    """Makes parts of file names from names of streams (`/camera/image_raw`); no two streams share one."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def of(self, source: str) -> str:
        """Return the part for a stream: letters, digits, `.`, `_` and `-`."""
        if source not in self._names:
            plain = re.sub(r"[^A-Za-z0-9._-]+", "-", source).strip("-.") or "stream"
            taken = set(self._names.values())
            numbered = (f"{plain}-{number}" for number in range(2, len(taken) + 3))
            self._names[source] = plain if plain not in taken else next(name for name in numbered if name not in taken)
        return self._names[source]
