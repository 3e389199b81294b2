"""Writes the reports of a measurement, several files of text in one folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from mqinfer.protocol.errors import ConfigError

__all__ = ["write_files"]


def write_files(directory: Path, texts: Mapping[str, str]) -> tuple[Path, ...]:
    """Write files into a folder, which is made if it isn't there.

    Args:
        directory: The folder.
        texts: What goes into each file, by its name.

    Returns:
        The files' paths.

    Raises:
        ConfigError: The folder can't be made or written.
    """
    paths = tuple(directory / name for name in texts)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for path in paths:
            path.write_text(texts[path.name], encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write to {directory}: {error.strerror or error}; name another folder") from error
    return paths
