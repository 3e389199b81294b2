"""Where files are made: names from streams, and one way to say that a file can't be written."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mqinfer.protocol.errors import ConfigError

__all__ = ["FileNames", "writing"]


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
