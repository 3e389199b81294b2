"""Bring collected frames to a folder or a store, each once, and remove them here when they are there whole."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from mqinfer.edge_agent.collecting.store import entries, sync
from mqinfer.edge_agent.output_files import lock, replacing, writing
from mqinfer.models.repository.remote import Remote
from mqinfer.protocol.checksum import checksum
from mqinfer.protocol.errors import ConfigError

_FILE = "file://"


def upload(folder: Path, url: str) -> Iterator[bool]:
    """Upload the entries of a folder, the oldest first, and remove each here that is there.

    An edge may go on collecting. What was cut is done again for the entry that it was cut in: its name tells whether it
    is there.

    Args:
        folder: Of `--collect`.
        url: A folder, or an address of fsspec such as `s3://bucket/fleet`.

    Yields:
        After each entry, whether it was uploaded; else it was there before.

    Raises:
        ConfigError: The folder is none, another upload is at the same entry, or a file can't be read or written.
        ModelNotLoadable: The address can't be read or written.
        MissingExtra: The package that writes there is not installed.
    """
    if not folder.is_dir():
        raise ConfigError(f"{folder} is no folder; name that of --collect")
    is_folder = url.startswith(_FILE) or "://" not in url
    target = _Folder(Path(url.removeprefix(_FILE)), folder) if is_folder else Remote(url)
    for path in sorted(entries(folder)):
        with writing(path), os.fdopen(lock(path), "rb") as source:
            if is_new := not target.has(path.name):
                target.upload(path.name, source)
            path.unlink(missing_ok=True)
        yield is_new


class _Folder:
    """A folder, such as one of a disk that is carried away or of another machine."""

    def __init__(self, folder: Path, source: Path) -> None:
        self._folder = folder
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            if folder.samefile(source):
                raise ConfigError(f"{folder} is the folder of --collect itself; name another one")
        _, digits = checksum((platform.node().encode(), os.fsencode(source.absolute())))
        self._prefix = f"{digits}-"  # uploads from other folders may be at the same frame

    def has(self, name: str) -> bool:
        """Return whether it is there."""
        return (self._folder / name).is_file()

    def upload(self, name: str, source: BinaryIO) -> None:
        """Write it under another name first, so that its own name stands for a whole one, also after a power cut."""
        path = self._folder / name
        with writing(path):
            with replacing(path, prefix=self._prefix) as unfinished:
                with unfinished.open("wb") as file:
                    shutil.copyfileobj(source, file)
                sync(unfinished)
            sync(self._folder)
