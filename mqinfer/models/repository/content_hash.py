"""Hash a model's content, so that a result names exactly the model that made it."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Collection, Iterable
from functools import lru_cache
from pathlib import Path

from mqinfer.models.repository import ModelVersion
from mqinfer.models.repository.config_files import CONFIG_FILES

_MEMORY = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
"""Bytes of memory of this machine: a larger model could not be loaded, and to read it would hold up all others."""


def content_hash(model: ModelVersion) -> str:
    """Return the hash of all files that determine a model's results, without its configuration files.

    A single file's hash is its own; other files in the folder (an ONNX model's external data) are included. The hash of
    an ensemble includes the content of its models, of those that other workers run the names, and the maps of their
    tensors.
    """
    if model.config.ensemble_scheduling:
        wiring = [
            f"{content_hash(part)} {sorted(step.input_map.items())} {sorted(step.output_map.items())}\n"
            for step, part in zip(model.config.ensemble_scheduling, model.parts, strict=True)
        ]
        return _text_hash("".join(wiring))
    if model.is_remote:
        return _text_hash(f"{model.name} {model.version}, run by other workers")
    folder = model.path.parent
    beside = [each for each in folder.iterdir() if each.name not in CONFIG_FILES] if model.path.is_file() else []
    return model_hash(folder if len(beside) > 1 else model.path, without=CONFIG_FILES)


def _text_hash(text: str) -> str:
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def model_hash(path: Path, without: Collection[str] = ()) -> str:
    """Return the hash of a file or folder, read in pieces.

    A file's hash is what `sha256sum` prints. A folder's covers every file in it: its path relative to the folder and
    its content, in the order of the paths, so that it does not depend on the file system.

    Args:
        path: A file or a folder.
        without: Names directly in the folder that are not part of the content.

    Returns:
        `sha256:` and 64 hex digits.

    Raises:
        OSError: A file can't be read, or they are larger than this machine's memory.
    """
    if path.is_file():
        _check_size(path, [path])
        return f"sha256:{_file_digest(path)}"
    whole = hashlib.sha256()
    files = {each.relative_to(path).as_posix(): each for each in path.rglob("*") if each.is_file()}
    _check_size(path, files.values())
    for name in sorted(files.keys() - set(without)):
        # A path can't contain NUL: no two lists of files give the same bytes.
        whole.update(f"{name}\0{_file_digest(files[name])}\n".encode())
    return f"sha256:{whole.hexdigest()}"


def _check_size(path: Path, files: Iterable[Path]) -> None:
    if (size := sum(each.stat().st_size for each in files)) > _MEMORY:
        raise OSError(errno.EFBIG, f"{size} bytes, and this machine has a memory of {_MEMORY}", str(path))


def _file_digest(path: Path) -> str:
    stat = path.stat()
    return _read_digest(path, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)


@lru_cache(maxsize=4096)
def _read_digest(path: Path, *_signature: int) -> str:
    """Read a file once as long as its size and times do not change: a repository is scanned often."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
