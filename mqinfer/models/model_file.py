"""First looks at a model's files, before an engine sees them: is it there, is it whole, is it a pointer to it?"""

from __future__ import annotations

from pathlib import Path

from mqinfer.protocol.errors import ModelNotLoadable

__all__ = ["check_model_files", "describe"]

_LFS_POINTER = b"version https://git-lfs"
_LFS_POINTER_BYTES = 1024  # the specification's limit for a pointer file
_SHOWN = 48


def check_model_files(path: Path) -> None:
    """Refuse what can't be a model: a missing or empty file, or a Git LFS pointer in a model's place.

    Args:
        path: A model file, or a SavedModel's folder, every file of which is looked at.

    Raises:
        ModelNotLoadable: With the path, what was found, and what to do.
    """
    if not path.exists():
        raise ModelNotLoadable(f"{path}: there is no such file; check the repository's path and the version's folder")
    try:
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.is_file():
                _check_file(file, may_be_empty=path.is_dir())
            elif not file.is_dir():  # a pipe would keep whoever opens it
                raise ModelNotLoadable(f"{file}: is no file; put the model itself here")
    except OSError as error:
        raise ModelNotLoadable(f"{path}: can't be read: {error}; check who owns it") from error


def _check_file(path: Path, *, may_be_empty: bool) -> None:
    size = path.stat().st_size
    if size == 0 and not may_be_empty:
        raise ModelNotLoadable(f"{path}: the file is empty; copy the model again")
    if size <= _LFS_POINTER_BYTES and _head(path).startswith(_LFS_POINTER):
        raise ModelNotLoadable(
            f"{path}: {size} bytes, a Git LFS pointer and not the model itself; "
            "run `git lfs pull` in the repository that it came from, and copy it again"
        )


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_SHOWN)


def describe(path: Path) -> str:
    """Say what lies at a path that no engine could read: its size, and whether it is text.

    The sentence is for the end of an error message: what was found, what to do.
    """
    if path.is_dir():
        files = sum(1 for each in path.rglob("*") if each.is_file())
        return f"a folder of {files} files; it may be incomplete: copy or export the model again"
    head = _head(path)
    if head.isascii() and head.decode().replace("\n", " ").replace("\t", " ").isprintable():
        return f"{path.stat().st_size} bytes of text beginning {head.decode()!r}; put the model itself here"
    return f"{path.stat().st_size} bytes; it may be truncated or of another format: copy or export the model again"
