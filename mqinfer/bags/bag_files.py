"""Which files make up a bag."""

from __future__ import annotations

import shutil
import sys
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from mqinfer.protocol.errors import SourceError

__all__ = ["files_to_read", "is_bag", "storage_of"]

_STORAGES = {".mcap": "mcap", ".db3": "sqlite3"}
_ZIPPED = (".zst", ".zstd")


def is_bag(path: Path) -> bool:
    """Say whether a path looks like a bag: by its suffix, or a folder with metadata or storage files in it.

    Raises:
        SourceError: There is nothing, or it may not be looked at.
    """
    try:
        if not path.exists():
            raise SourceError(f"{path}: no such file or folder (a camera is camera:0, a network camera its URL)")
        if path.is_dir():
            return (path / "metadata.yaml").exists() or bool(_storage_files(path))
    except OSError as failed:
        raise SourceError(f"{path}: {failed.strerror}") from failed
    return path.suffix == ".bag" or path.suffix in _STORAGES or _is_zipped(path)


def storage_of(path: Path) -> str:
    """Name the storage of a ROS 2 bag, `mcap` or `sqlite3`, by the suffix of its files; empty if they don't say."""
    suffixes = (suffix for each in (path, *_contents(path)) for suffix in each.suffixes)
    return next((_STORAGES[suffix] for suffix in suffixes if suffix in _STORAGES), "")


def files_to_read(path: Path, resources: ExitStack) -> list[Path]:
    """Give what rosbags' reader takes: a folder with metadata, or storage files.

    Args:
        path: The bag.
        resources: Removes what had to be unpacked.
    """
    if path.is_dir():
        return [path] if (path / "metadata.yaml").exists() else _storage_files(path)
    return [_unpack(path, resources)] if _is_zipped(path) else [path]


def _storage_files(folder: Path) -> list[Path]:
    return [each for each in _contents(folder) if each.suffix in _STORAGES]


def _contents(path: Path) -> list[Path]:
    return sorted(path.iterdir()) if path.is_dir() else []


def _is_zipped(path: Path) -> bool:
    return path.suffix in _ZIPPED and Path(path.stem).suffix in _STORAGES


def _unpack(path: Path, resources: ExitStack) -> Path:
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd  # a dependency of rosbags

    folder = resources.enter_context(TemporaryDirectory(prefix="mqinfer-"))
    target = Path(folder, path.stem)
    with zstd.open(path, "rb") as packed, target.open("wb") as unpacked:
        shutil.copyfileobj(packed, unpacked)
    return target
