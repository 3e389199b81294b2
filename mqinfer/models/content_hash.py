"""The content hash by which a result names exactly the model that made it."""

from __future__ import annotations

import hashlib
from pathlib import Path

__all__ = ["model_hash"]


def model_hash(path: Path) -> str:
    """Hash a model's content, in pieces, so that size does not matter.

    A file's hash is what `sha256sum` prints. A folder's covers every file in it: its path relative to the folder and
    its content, in the order of the paths, so that it does not depend on the file system.

    Returns:
        `sha256:` and 64 hex digits.
    """
    if path.is_file():
        return f"sha256:{_file_digest(path)}"
    whole = hashlib.sha256()
    files = {each.relative_to(path).as_posix(): each for each in path.rglob("*") if each.is_file()}
    for name in sorted(files):
        # NUL can't stand in a path: no two lists of files give the same bytes.
        whole.update(f"{name}\0{_file_digest(files[name])}\n".encode())
    return f"sha256:{whole.hexdigest()}"


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
