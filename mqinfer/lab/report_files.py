"""Writes the report of a measurement as text files in one folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from mqinfer.edge_agent.output_files import set_aside
from mqinfer.protocol.errors import ConfigError

__all__ = ["write_files"]


def write_files(directory: Path, texts: Mapping[str, str]) -> tuple[Path, ...]:
    """Write files into a folder; create the folder if needed, and keep files of earlier measurements under numbers.

    Args:
        directory: The folder.
        texts: Content of each file, by file name.

    Returns:
        Paths of the files.

    Raises:
        ConfigError: The folder can't be created or written.
    """
    paths = tuple(directory / name for name in texts)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for path in paths:
            set_aside(path)
            path.write_text(texts[path.name], encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write to {directory}: {error.strerror or error}; choose another folder") from error
    return paths
