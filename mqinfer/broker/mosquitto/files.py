"""Files of a secured broker: written whole, secret where they must be; and the lines of its password file.

A line is `NAME:$7$ITERATIONS$SALT$HASH`: PBKDF2 with SHA-512, as `mosquitto_passwd` writes it.
"""

from __future__ import annotations

import errno
import hashlib
import os
import pwd
import secrets
import shlex
import stat
from base64 import b64encode
from contextlib import suppress
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
        for_broker: Whether a Mosquitto that root starts must be able to read it: it drops root's rights first. A file
            that somebody else owned stays that one's.

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
                if os.geteuid() == 0:
                    _set_owner(file.fileno(), path, for_broker=for_broker)
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
    except PermissionError as error:
        user = _own_user()
        raise ConfigError(
            f"{path} can't be read by user {user}; give it to that user, as root: "
            f"mqinfer broker init {shlex.quote(str(path.parent))} --user {user}"
        ) from error
    except OSError as error:
        raise ConfigError(
            f"{path} can't be read: {error.strerror or error}; make it with: mqinfer broker init"
        ) from error


def check_user(name: str, folder: Path) -> None:
    """Make a folder, and check that files in it can be given to a user, who can then reach them.

    Raises:
        ConfigError: There is no such user, it is another one and this is not root, or the user can't enter the folder.
    """
    try:
        account = pwd.getpwnam(name)
    except KeyError as error:
        raise ConfigError(f"there is no user {name} on this machine; make one: useradd --system {name}") from error
    if os.geteuid() not in {0, account.pw_uid}:
        raise ConfigError(f"only root may give files to {name}; run it with sudo, or as {name} without --user")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        closed = [
            each for each in (folder.resolve(), *folder.resolve().parents) if not _may_enter(account, each.stat())
        ]
    except OSError as error:
        raise ConfigError(f"{folder} can't be made: {error.strerror or error}") from error
    if closed:
        raise ConfigError(f"{name} can't enter {closed[-1]}; run: chmod a+x {shlex.join(map(str, closed))}")


def _may_enter(account: pwd.struct_passwd, folder: os.stat_result) -> bool:
    if folder.st_uid == account.pw_uid:
        return bool(folder.st_mode & stat.S_IXUSR)
    if folder.st_gid in os.getgrouplist(account.pw_name, account.pw_gid):
        return bool(folder.st_mode & stat.S_IXGRP)
    return bool(folder.st_mode & stat.S_IXOTH)


def give_file(path: Path, name: str) -> None:
    """Make a user the owner of a file.

    Raises:
        ConfigError: That is not possible.
    """
    account = pwd.getpwnam(name)
    try:
        os.chown(path, account.pw_uid, account.pw_gid)
    except OSError as error:
        raise ConfigError(f"{path} can't be given to {name}: {error.strerror or error}") from error


def _own_user() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:  # of a container that names no users
        return str(os.geteuid())


def _set_owner(descriptor: int, path: Path, *, for_broker: bool) -> None:
    """Keep the owner of a file that is replaced; give one for the broker to Mosquitto's account where that is root."""
    before = path.stat() if path.exists() else None
    if before is not None and before.st_uid:
        os.fchown(descriptor, before.st_uid, before.st_gid)
        return
    for account in _ACCOUNTS if for_broker else ():
        with suppress(KeyError):  # this system has no such account
            found = pwd.getpwnam(account)
            os.fchown(descriptor, found.pw_uid, found.pw_gid)  # Mosquitto 2.0.21 warns of another group
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
