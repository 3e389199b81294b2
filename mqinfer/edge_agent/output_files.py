"""Files of results: one error for a file that cannot be written, and those of earlier runs kept under numbers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from mqinfer.protocol.errors import ConfigError

log = logging.getLogger("mqinfer.edge_agent")
__all__ = ["set_aside", "writing"]


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


def set_aside(
    path: Path, *, level: int = logging.WARNING, is_there: Callable[[Path], bool] = Path.is_file
) -> Path | None:
    """Rename a file of an earlier run, so that nothing is overwritten: `results.mcap` becomes `results.1.mcap`.

    Args:
        path: The file that is going to be written.
        level: How the new name is logged.
        is_there: Returns whether there is one; `Path.is_dir` for a folder.

    Returns:
        The new path; None if there is no such file.

    Raises:
        OSError: It cannot be renamed.
    """
    if not is_there(path):
        return None
    numbered = (path.with_suffix(f".{number}{path.suffix}") for number in count(1))
    free = next(each for each in numbered if not each.exists())
    path.rename(free)
    log.log(level, "%s of an earlier run is kept as %s", path, free.name)
    return free
