"""Files of results: one error for a file that cannot be written, and those of earlier runs kept under numbers."""

from __future__ import annotations

import fcntl
import logging
import os
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import chain, count
from pathlib import Path
from typing import Any

import numpy as np

from mqinfer.answers.outputs import strings_of
from mqinfer.logs import printable
from mqinfer.protocol.datatypes import Array
from mqinfer.protocol.errors import ConfigError

log = logging.getLogger("mqinfer.edge_agent")

_PATH_PARTS = re.compile(r"[/\\]+")
_LONGEST_NAME = 200
_MOST_PADDED = 1 << 20
"""Bytes that strings may take, beyond four times their own, so that they are an array of one length."""

_MOST_UNPACKED = 1 << 32
"""Bytes of the arrays of a file that is read."""


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


@contextmanager
def replacing(path: Path, *, prefix: str = "") -> Iterator[Path]:
    """Yield where to write a file, which gets its own name once the body has ended, so that one of that name is whole.

    What is no file, such as a device, is written as it is, and not replaced.

    Args:
        path: The file.
        prefix: Of its name until then.

    Raises:
        ConfigError: It cannot be written; nothing of it is left.
    """
    if path.exists() and not path.is_file():
        with writing(path):
            yield path
        return
    unfinished = path.with_name(f"{prefix}{path.name}.new")
    try:
        with writing(path):
            yield unfinished
            unfinished.replace(path)
    except BaseException:
        with suppress(OSError):
            unfinished.unlink()
        raise


def lock(path: Path) -> int:
    """Lock a file or a folder that is there for this process, until the descriptor is closed that it returns.

    Raises:
        OSError: It can't be opened, or another process has locked it.
    """
    handle = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise OSError("locked by another process") from None
    return handle


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


def write_npz(path: Path, arrays: Mapping[str, Array], *, prefix: str = "") -> None:
    """Write arrays by name, for `numpy.load`, which needs no pickle for them; the file has its name once it is whole.

    Strings become an array of bytes of one length. Where that would be far longer than they are, or one ends with a 0,
    they are `NAME`, the bytes of all, and `NAME.ends`, where each ends. A name that could be a path out of a folder
    loses what makes it one. `prefix` is as for `replacing`.

    Raises:
        ConfigError: It cannot be written.
    """
    with replacing(path, prefix=prefix) as unfinished, zipfile.ZipFile(unfinished, "w") as file:
        for name, array in _members(arrays).items():
            with file.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)


def read_npz(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    """Return the arrays of an `.npz` by name; a few of its bytes may stand for any number, and are bounded.

    Raises:
        ValueError: They are more.
        Exception: What NumPy's reader, and those of ZIP files and of what packed them, raise on damage.
    """
    with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
        if (size := sum(each.file_size for each in file.zip.infolist())) > _MOST_UNPACKED:
            raise ValueError(f"{size} bytes when unpacked; expected at most {_MOST_UNPACKED}")
        return {name: file[name] for name in file.files}


def _members(arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Return arrays that need no pickle, under names that make no paths; no two share one."""
    members: dict[str, Array] = {}
    for given, array in arrays.items():
        parts = [part for part in _PATH_PARTS.split(printable(given)) if part.strip(". ")]
        plain = "/".join(parts)[:_LONGEST_NAME] or "output"
        for suffix, part in _parts(array).items():
            numbered = (f"{plain}{number}{suffix}" for number in chain([""], (f"-{n}" for n in count(2))))
            members[next(name for name in numbered if name not in members)] = part
    return members


def _parts(array: Array) -> dict[str, Array]:
    """Return an array as it is stored, and what is stored beside it, by suffix of the name."""
    if array.dtype.kind != "O":
        return {"": array}
    values = strings_of(array)
    lengths = np.array([len(each) for each in values], np.int64)
    has_zero = any(each.endswith(b"\0") for each in values)
    if not has_zero and len(values) * lengths.max(initial=0) <= _MOST_PADDED + 4 * lengths.sum():
        return {"": np.array(values, np.bytes_).reshape(array.shape)}
    return {"": np.frombuffer(b"".join(values), np.uint8), ".ends": np.cumsum(lengths).reshape(array.shape)}
