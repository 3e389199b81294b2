"""Check a model's files before anything opens them: they lie in the repository, are whole, and are of a known format.

Two rules. Folders and model files may be symbolic links as long as they end inside the repository. Files that a model
only names (labels, warm-up data, ONNX external data) must be plain files within the model's own folder: clients can see
what is in them (class names in the card, weights in the results), and an archive can contain a symbolic or a hard link
to any file of the machine (CVE-2026-34446, CVE-2025-51480).
"""

from __future__ import annotations

import mmap
import stat
from collections.abc import Mapping
from pathlib import Path

from mqinfer.codecs.image import lfs_pointer
from mqinfer.protobuf_wire import fields
from mqinfer.protocol.errors import InvalidRequest, ModelNotLoadable

_LONGEST = 1024  # characters of a relative path
_LFS_POINTER_BYTES = 1024  # the specification's limit for a pointer file
_SHOWN = 48
_PROTOBUF = frozenset({".onnx", ".pb", ".graphdef"})

SUFFIXES: Mapping[str, str] = {
    ".onnx": "onnx_onnxv1",
    ".ort": "onnx_onnxv1",
    ".graphdef": "tensorflow_graphdef",
    ".pb": "tensorflow_graphdef",
    ".keras": "tensorflow_keras",
    ".h5": "tensorflow_keras",
    ".hdf5": "tensorflow_keras",
    ".tflite": "tensorflow_lite",
    ".pt": "pytorch_torchscript",
    ".jit": "pytorch_torchscript",
    ".xml": "openvino_ir",
    ".echo": "mqinfer_echo",
}
"""A model file's suffix to its platform; a folder is a SavedModel."""


def check_inside(path: Path, root: Path) -> None:
    """Raise if the links of a path lead out of `root`; nothing is opened.

    Raises:
        ModelNotLoadable: The message has the path and where it leads.
    """
    try:
        resolved = path.resolve()
    except (OSError, RuntimeError, ValueError) as error:  # a loop of links; a NUL
        raise ModelNotLoadable(f"{path}: can't be followed: {error}") from error
    if not resolved.is_relative_to(root.resolve()):
        raise ModelNotLoadable(
            f"{path}: leads outside the repository, to {resolved}; copy the model into the repository"
        )


def inner_path(folder: Path, name: str, what: str) -> Path:
    """Join a folder and a relative name from a model's file.

    Args:
        folder: The folder that the name is relative to.
        name: As written in the file.
        what: The key that has the name, for the message.

    Raises:
        ModelNotLoadable: The name is absolute, has `..`, or has characters that no file name should have.
    """
    parts = name.removeprefix("./").split("/")
    if (
        len(name) > _LONGEST
        or not name.isprintable()
        or "\\" in name
        or any(part in {"", ".", ".."} or len(part.encode()) > 255 for part in parts)
    ):
        shown = name if len(name) <= 80 else name[:80] + "…"
        raise ModelNotLoadable(
            f"{folder}: {what} = {shown!r}: must be the name of a file below this folder, without '..', not absolute"
        )
    return folder.joinpath(*parts)


def named_file(folder: Path, name: str, what: str) -> Path:
    """Return the path of a file that a model names: a plain one within the folder, with one name only.

    Raises:
        ModelNotLoadable: It is missing, is a symbolic or hard link, or is no file.
    """
    path = inner_path(folder, name, what)
    try:
        for above in reversed(path.relative_to(folder).parents[:-1]):
            if stat.S_ISLNK((folder / above).lstat().st_mode):
                raise ModelNotLoadable(
                    f"{folder / above}: {what} goes through a symbolic link; put the file itself here"
                )
        status = path.lstat()
    except OSError as error:
        raise ModelNotLoadable(f"{path}: named by {what}, but it can't be opened ({error.strerror})") from error
    if stat.S_ISLNK(status.st_mode) or status.st_nlink > 1:
        kind = "symbolic" if stat.S_ISLNK(status.st_mode) else "hard"
        raise ModelNotLoadable(f"{path}: named by {what}, but it is a {kind} link; put a copy of the file itself here")
    if not stat.S_ISREG(status.st_mode):
        raise ModelNotLoadable(f"{path}: named by {what}, but it is not a file")
    return path


def check_model_files(path: Path) -> None:
    """Raise if a file can't be a model: it is missing or empty, or a Git LFS pointer in place of a model.

    Args:
        path: A model file, or a SavedModel's folder, of which every file is checked.

    Raises:
        ModelNotLoadable: The message has the path, what was found, and what to do.
    """
    if not path.exists():
        raise ModelNotLoadable(f"{path}: there is no such file; check the repository's path and the version's folder")
    try:
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.is_file():
                _check_file(file, may_be_empty=path.is_dir())
            elif not file.is_dir():  # opening a pipe would block
                raise ModelNotLoadable(f"{file}: not a file; put the model itself here")
    except OSError as error:
        raise ModelNotLoadable(f"{path}: can't be read: {error}; check who owns it") from error


def _check_file(path: Path, *, may_be_empty: bool) -> None:
    size = path.stat().st_size
    if size == 0 and not may_be_empty:
        raise ModelNotLoadable(f"{path}: the file is empty; copy the model again")
    if size <= _LFS_POINTER_BYTES and (pointer := lfs_pointer(_head(path), "the model itself")):
        raise ModelNotLoadable(f"{path}: {size} bytes, {pointer}")


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_SHOWN)


def describe(path: Path) -> str:
    """Return what a path has that no engine could read, and what to do; for the end of an error message."""
    if path.is_dir():
        files = sum(1 for each in path.rglob("*") if each.is_file())
        return f"a folder of {files} files; it may be incomplete: copy or export the model again"
    head = _head(path)
    if head.isascii() and head.decode().replace("\n", " ").replace("\t", " ").isprintable():
        return f"{path.stat().st_size} bytes of text beginning {head.decode()!r}; put the model itself here"
    if path.suffix.lower() in _PROTOBUF and _is_whole(path):
        return (
            f"{path.stat().st_size} bytes, not cut off: the engine may be too old for it, or lack something that it "
            "needs; export the model for this engine's version, or choose another back end in model.toml"
        )
    return f"{path.stat().st_size} bytes; it may be truncated or of another format: copy or export the model again"


def _is_whole(path: Path) -> bool:
    """Return whether the outermost fields of a message end where its bytes end: nothing is cut off."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        try:
            return sum(1 for _ in fields(content)) > 0
        except InvalidRequest:
            return False
