"""MCAP files at an address: what is needed of one is read, and nothing else."""

from __future__ import annotations

import os
import re
from pathlib import Path, PosixPath
from typing import Any

from mqinfer.logs import without_logins
from mqinfer.protocol.errors import SourceError
from mqinfer.remote_files import open_files, open_parts, read_part, said

_ADDRESS = re.compile(r"(s3|gs|az|file)://.+|https?://[^?#]+\.(bag|mcap|db3|zstd?)([?#].*)?")


def is_remote(spec: str) -> bool:
    """Return whether a source is a recording at an address; what else a server of HTTP has is a camera."""
    return _ADDRESS.fullmatch(spec) is not None


def path_of(spec: str) -> Path:
    """Return the path of a recording, or what stands for it where that is at an address.

    Raises:
        SourceError: It is at an address, and no MCAP file.
        ConfigError: The address has credentials where they have no place.
        MissingExtra: The package that reads it is not installed.
    """
    if not is_remote(spec):
        return Path(spec)
    path = _RemoteMcap(without_logins(spec).partition("?")[0])
    if path.suffix != ".mcap":
        raise SourceError(f"{path}: at an address only MCAP files (.mcap) are read; download it, and name the file")
    path.url, path.files = spec, open_files(spec, is_signed=True)
    return path


class _RemoteMcap(PosixPath):
    """The path of an MCAP file at an address, shown without credentials, which readers take for one on this machine."""

    url = ""
    files: Any
    _state: tuple[Any, ...] = ()

    def __str__(self) -> str:
        return re.sub("(?<=:)/", "//", super().__str__())

    def exists(self, **_: Any) -> bool:
        return True  # reading it shows

    is_file = exists

    def is_dir(self, **_: Any) -> bool:
        return False

    def stat(self, **_: Any) -> os.stat_result:
        if not self._state:
            self._read(0, 1)
        return os.stat_result((0,) * 6 + (self._state[0], 0, 0, 0))

    def open(self, *_: Any, **__: Any) -> Any:
        return open_parts(self._read, self.stat().st_size)

    def _read(self, start: int, end: int) -> bytes:
        try:
            data, state = read_part(self.files, self.url, start, end)
        except FileNotFoundError:
            raise SourceError(f"{self}: no such file at this address") from None
        except Exception as error:  # each library has its own errors
            raise SourceError(f"{self}: can't be read from byte {start} on: {said(error)}") from error
        if self._state not in {(), state}:
            raise SourceError(f"{self} was written to while it was read; stop its recorder first")
        self._state = state
        return data
