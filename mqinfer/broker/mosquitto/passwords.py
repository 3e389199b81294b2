"""Mosquitto's password file: `NAME:$7$ITERATIONS$SALT$HASH`, PBKDF2 with SHA-512, as `mosquitto_passwd` writes it."""

from __future__ import annotations

import hashlib
import secrets
from base64 import b64encode

__all__ = ["hash_password", "new_password", "put_password", "without_password"]

# The broker computes it at each login, on its one thread: a millisecond. It need not be slow, since no person chooses
# these passwords: they have 192 random bits.
_ITERATIONS = 1000
_SALT_BYTES, _HASH_BYTES = 12, 64


def new_password() -> str:
    """Draw a password that fits into an URL as it is."""
    return secrets.token_urlsafe(24)


def hash_password(password: str) -> str:
    """Hash a password with a salt of its own."""
    salt = secrets.token_bytes(_SALT_BYTES)
    digest = hashlib.pbkdf2_hmac("sha512", password.encode(), salt, _ITERATIONS, _HASH_BYTES)
    return f"$7${_ITERATIONS}${b64encode(salt).decode()}${b64encode(digest).decode()}"


def put_password(text: str, name: str, password: str) -> str:
    """Put a user into a password file's text, in place of the line that the user may have."""
    return f"{without_password(text, name)}{name}:{hash_password(password)}\n"


def without_password(text: str, name: str) -> str:
    """Take a user out of a password file's text."""
    return "".join(line for line in text.splitlines(keepends=True) if line.partition(":")[0] != name)
