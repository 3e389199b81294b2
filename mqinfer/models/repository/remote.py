"""The files of a model repository at an address."""

from __future__ import annotations

import hashlib
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from mqinfer.models.repository.manifest import MANIFEST, MOST_BYTES, Manifest, RemoteFile, read_manifest
from mqinfer.protocol.errors import ModelNotLoadable
from mqinfer.remote_files import open_files, read_pieces, said


class Remote:
    """The files at an address.

    Args:
        url: Address of the repository. Credentials come from the environment, as the libraries read them.

    Raises:
        ConfigError: The address is none, or has credentials in it.
        MissingExtra: The package that reads it is not installed.
    """

    def __init__(self, url: str) -> None:
        self.url, self._files = url.rstrip("/"), open_files(url)

    def manifest(self) -> Manifest:
        """Return the repository's manifest.

        Raises:
            ConfigError: It is wrong.
            ModelNotLoadable: It can't be read.
            FileNotFoundError: There is none.
        """
        where = f"{self.url}/{MANIFEST}"
        content = b"".join(self._pieces(MANIFEST, MOST_BYTES + 1))
        return read_manifest(content, where)

    def manifest_or_none(self) -> Manifest:
        """Return the repository's manifest, an empty one if there is none."""
        try:
            return self.manifest()
        except FileNotFoundError:
            return Manifest()

    def download(self, name: str, wanted: RemoteFile, part: Path, path: Path, closed: threading.Event) -> None:
        """Write a file, unless what comes is not what the manifest says.

        Args:
            name: Of the file, below the repository.
            wanted: Its size and hash.
            part: Where it is while it is not whole.
            path: Where it goes when it is.
            closed: Ends the download when it is set.

        Raises:
            ModelNotLoadable: It can't be read, or is another file than the manifest says.
        """
        digest, size = hashlib.sha256(), 0
        with part.open("wb") as file:
            for piece in self._pieces(name, wanted.size + 1):
                if closed.is_set():
                    raise ModelNotLoadable(f"{self.url}/{name}: the worker stops")
                digest.update(piece)
                size += len(piece)
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        if size != wanted.size or digest.hexdigest() != wanted.sha256:
            part.unlink()
            what = "has another content" if size == wanted.size else f"has {size} bytes, or more,"
            why = f"{what} than the manifest says ({wanted.size} bytes)"
            raise ModelNotLoadable(f"{self.url}/{name}: {why}; push the model again, under a new version")
        path.parent.mkdir(parents=True, exist_ok=True)
        part.rename(path)

    def upload(self, name: str, source: BinaryIO) -> None:
        """Write a file; until it is whole there, the former one stays.

        Raises:
            ModelNotLoadable: It can't be written.
        """
        try:
            with self._files.transaction, self._files.open(f"{self.url}/{name}", "wb") as file:
                shutil.copyfileobj(source, file)
        except Exception as error:  # each library has its own errors
            raise ModelNotLoadable(f"{self.url}/{name}: can't be written: {said(error)}") from error

    def has(self, name: str) -> bool:
        """Return whether there is such a file.

        Raises:
            ModelNotLoadable: The address can't be read.
        """
        try:
            return bool(self._files.exists(f"{self.url}/{name}"))
        except Exception as error:  # each library has its own errors
            raise ModelNotLoadable(f"{self.url}/{name}: {said(error)}") from error

    def remove(self, name: str) -> None:
        """Delete a file that the manifest does not have any more; one that stays is of no harm."""
        with suppress(Exception):  # each library has its own errors
            self._files.rm_file(f"{self.url}/{name}")

    def _pieces(self, name: str, most: int) -> Iterator[bytes]:
        """Yield a file's content, at most so many bytes."""
        try:
            yield from read_pieces(self._files, f"{self.url}/{name}", most)
        except FileNotFoundError:
            raise
        except Exception as error:  # each library has its own errors
            raise ModelNotLoadable(f"{self.url}/{name}: {said(error)}") from error
