"""Writes files that must be whole and, some of them, secret."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from tempfile import NamedTemporaryFile

from mqinfer.protocol.errors import ConfigError

__all__ = ["read_file", "write_file"]

_ACCOUNTS = ("mosquitto", "nobody")  # which Mosquitto becomes when root starts it


def write_file(path: Path, content: bytes, *, secret: bool = True, for_broker: bool = False) -> None:
    """Write a file, whole or not at all.

    Args:
        path: Where; its folder is made.
        content: What.
        secret: Whether its owner alone may read it.
        for_broker: Whether a Mosquitto that root starts must be able to read it: it drops root's rights first.

    Raises:
        ConfigError: It can't be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:  # made 0600
            try:
                file.write(content)
                file.flush()
                os.fchmod(file.fileno(), 0o600 if secret else 0o644)
                if for_broker and os.geteuid() == 0:
                    _give_to_broker(file.name)
                Path(file.name).replace(path)
            except BaseException:
                Path(file.name).unlink(missing_ok=True)
                raise
    except OSError as error:
        raise ConfigError(f"{path} can't be written: {error.strerror or error}") from error


def read_file(path: Path) -> bytes:
    """Read a file that is to be there.

    Raises:
        ConfigError: It is not, or can't be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"{path} can't be read: {error.strerror or error}; make it with: mqinfer broker init"
        ) from error


def _give_to_broker(path: str) -> None:
    for account in _ACCOUNTS:
        try:
            shutil.chown(path, account)
        except LookupError:  # no such account here
            continue
        return
