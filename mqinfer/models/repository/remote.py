"""The files of a model repository at an address, as fsspec reads and writes them: the only place that imports it."""

from __future__ import annotations

import hashlib
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import urlsplit

from mqinfer.extras import import_extra, missing_extra
from mqinfer.logs import printable
from mqinfer.models.repository.manifest import MANIFEST, MOST_BYTES, Manifest, RemoteFile, read_manifest
from mqinfer.protocol.errors import ConfigError, ModelNotLoadable

_EXTRAS = {"s3": "s3", "gs": "gs", "az": "az", "http": "https", "https": "https", "file": "https"}
"""The schemes that an address may have, and the extra that reads each."""
_PACKAGES = {"s3": "s3fs", "gs": "gcsfs", "az": "adlfs"}
_PIECE = 1 << 20
_STALL_S = 60.0
"""A server that sends nothing for so long has failed."""
_LEAST_RATE = 4096
"""Bytes a second that a server has to send on average, after `_STALL_S`; one that only dribbles has failed."""


class Remote:
    """The files at an address.

    Args:
        url: Address of the repository. Credentials come from the environment, as the libraries read them.

    Raises:
        ConfigError: The address is none, or has credentials in it.
        MissingExtra: The package that reads it is not installed.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in _EXTRAS:
            known = ", ".join(f"{scheme}://" for scheme in _EXTRAS)
            raise ConfigError(f"address {parts.scheme}://…: expected a folder, or one of {known}")
        if "@" in parts.netloc or parts.query or parts.fragment:
            raise ConfigError(
                f"address {parts.scheme}://{parts.hostname}: it has credentials, ? or #; "
                "set credentials in the environment, such as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            )
        self.url = url.rstrip("/")
        extra = _EXTRAS[parts.scheme]
        fsspec = import_extra("fsspec", extra)
        try:
            self._files = fsspec.filesystem(parts.scheme, use_listings_cache=False, **self._options(parts.scheme))
        except ImportError as error:
            raise missing_extra(_PACKAGES.get(extra, extra), extra) from error
        except Exception as error:  # whatever a library raises for an environment without credentials
            raise ConfigError(f"address {self.url}: {_said(error)}") from error

    def _options(self, scheme: str) -> dict[str, Any]:
        if scheme == "file":
            return {"auto_mkdir": True}
        if scheme not in {"http", "https"}:
            return {}
        # What is packed may be a thousand times as much, all at once: sizes and hashes are those of what travels.
        plain = {"auto_decompress": False, "headers": {"Accept-Encoding": "identity"}}
        return {"client_kwargs": {"trust_env": True, **plain}, "block_size": 0}  # 0: it streams

    def _limits(self, most: int) -> dict[str, Any]:
        """Return what bounds the time of a download of so many bytes; libraries of stores have limits of their own."""
        if urlsplit(self.url).scheme not in {"http", "https"}:
            return {}
        timeout = import_extra("aiohttp", "https").ClientTimeout(
            total=_STALL_S + most / _LEAST_RATE, sock_connect=_STALL_S, sock_read=_STALL_S
        )
        return {"timeout": timeout, "size": most}  # a size, for without one it would be asked for, with no limit

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
                shutil.copyfileobj(source, file, _PIECE)
        except Exception as error:  # each library has its own errors
            raise ModelNotLoadable(f"{self.url}/{name}: can't be written: {_said(error)}") from error

    def has(self, name: str) -> bool:
        """Return whether there is such a file.

        Raises:
            ModelNotLoadable: The address can't be read.
        """
        try:
            return bool(self._files.exists(f"{self.url}/{name}"))
        except Exception as error:  # each library has its own errors
            raise ModelNotLoadable(f"{self.url}/{name}: {_said(error)}") from error

    def remove(self, name: str) -> None:
        """Delete a file that the manifest does not have any more; one that stays is of no harm."""
        with suppress(Exception):  # each library has its own errors
            self._files.rm_file(f"{self.url}/{name}")

    def _is_pipe(self, name: str) -> bool:
        """Return whether something of a folder is no file: it may never answer."""
        scheme, path = urlsplit(self.url).scheme, Path(urlsplit(self.url).path, name)
        return scheme == "file" and path.exists() and not path.is_file()

    def _pieces(self, name: str, most: int) -> Iterator[bytes]:
        """Yield a file's content, at most so many bytes."""
        if self._is_pipe(name):
            raise ModelNotLoadable(f"{self.url}/{name}: a pipe or a device; put the file itself there")
        try:
            with self._files.open(f"{self.url}/{name}", "rb", **self._limits(most)) as file:
                while most > 0 and (piece := file.read(min(_PIECE, most))):
                    most -= len(piece)
                    yield piece
        except FileNotFoundError:
            raise
        except Exception as error:  # each library has its own errors
            raise ModelNotLoadable(f"{self.url}/{name}: {_said(error)}") from error


def _said(error: Exception) -> str:
    """Return an error of a library in one bounded line."""
    if isinstance(error, TimeoutError):
        return f"the server was silent for {_STALL_S:.0f} s, or sends less than {_LEAST_RATE} bytes a second; try again"
    return printable(f"{type(error).__name__}: {error}"[:400])
