"""Keeps a model within its repository: whatever a file names is checked before anything opens it.

Two rules. Folders and model files may be symbolic links as long as they end inside the repository. Files that a model
merely names (labels, warm-up data, ONNX external data) must be plain files within the model's own folder: what is in
them comes back to whoever asks (class names stand in the card, weights shape the answers), and an archive can plant a
symbolic or a hard link to any file of the machine (CVE-2026-34446, CVE-2025-51480).
"""

from __future__ import annotations

import stat
from pathlib import Path

from mqinfer.protocol.errors import ModelNotLoadable

__all__ = ["check_inside", "inner_path", "named_file"]

_LONGEST = 1024  # characters of a relative path


def check_inside(path: Path, root: Path) -> None:
    """Refuse a path whose links lead out of `root`; nothing is opened.

    Raises:
        ModelNotLoadable: Names the path and where it leads.
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
    """Join a folder and a relative name that a model's file gives.

    Args:
        folder: Where the name is meant to be.
        name: As written in the file.
        what: The key or place that gives it, for the message.

    Raises:
        ModelNotLoadable: The name is absolute, climbs, or holds what no file name should.
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
    """Find a file that a model names: plain, within the folder, with one name only.

    Raises:
        ModelNotLoadable: It is not there, is a link of either kind, or no file.
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
        raise ModelNotLoadable(f"{path}: {what} names it, and it is not there ({error.strerror})") from error
    if stat.S_ISLNK(status.st_mode) or status.st_nlink > 1:
        kind = "symbolic" if stat.S_ISLNK(status.st_mode) else "hard"
        raise ModelNotLoadable(f"{path}: {what} names it, and it is a {kind} link; put a copy of the file itself here")
    if not stat.S_ISREG(status.st_mode):
        raise ModelNotLoadable(f"{path}: {what} names it, and it is no file")
    return path
