"""Files of a secured broker: written whole, secret where they must be; and the lines of its password file.

A line is `NAME:$7$ITERATIONS$SALT$HASH`: PBKDF2 with SHA-512, as `mosquitto_passwd` writes it.
"""

from __future__ import annotations

import errno
import hashlib
import os
import pwd
import secrets
from base64 import b64encode
from pathlib import Path
from tempfile import NamedTemporaryFile

from mqinfer.protocol.errors import ConfigError, MqinferError

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_ACCOUNTS = ("mosquitto", "nobody")  # Mosquitto runs as the first that exists when root starts it
# The broker computes the hash at each login, on its one thread: a millisecond. It need not be slow, since these
# passwords are not chosen by people: they have 192 random bits.
_ITERATIONS = 1000
_SALT_BYTES, _HASH_BYTES = 12, 64


def write_file(path: Path, content: bytes, *, secret: bool = True, for_broker: bool = False) -> None:
    """Write a file, whole or not at all.

    Args:
        path: Of the file; its folder is made.
        content: Its bytes.
        secret: Whether its owner alone may read it.
        for_broker: Whether a Mosquitto that root starts must be able to read it: it drops root's rights first.

    Raises:
        ConfigError: It can't be written.
        MqinferError: There is no room for it now.
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
        kind = MqinferError if error.errno in _NO_ROOM else ConfigError
        raise kind(f"{path} can't be written: {error.strerror or error}") from error


def read_file(path: Path) -> bytes:
    """Read a file that must exist.

    Raises:
        ConfigError: It does not exist or can't be read.
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
            found = pwd.getpwnam(account)
        except KeyError:  # this system has no such account
            continue
        os.chown(path, found.pw_uid, found.pw_gid)  # Mosquitto 2.0.21 warns of another group
        return


def new_password() -> str:
    """Return a random password that a URL can hold as it is."""
    return secrets.token_urlsafe(24)


def hash_password(password: str) -> str:
    """Return the hash of a password, with a salt of its own."""
    salt = secrets.token_bytes(_SALT_BYTES)
    digest = hashlib.pbkdf2_hmac("sha512", password.encode(), salt, _ITERATIONS, _HASH_BYTES)
    return f"$7${_ITERATIONS}${b64encode(salt).decode()}${b64encode(digest).decode()}"


def put_password(text: str, name: str, password: str) -> str:
    """Return a password file's text with a line for a user, which replaces an older one."""
    return f"{without_password(text, name)}{name}:{hash_password(password)}\n"


def without_password(text: str, name: str) -> str:
    """Return a password file's text without a user."""
    return "".join(line for line in text.splitlines(keepends=True) if line.partition(":")[0] != name)
