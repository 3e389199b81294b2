"""The callers of a server and their keys, in a TOML file of the operator's."""

from __future__ import annotations

import hmac
import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import msgspec

from mqinfer.protocol.decoding import prepare
from mqinfer.protocol.errors import ConfigError
from mqinfer.toml_files import parse_toml, read_text
from mqinfer.web.quotas import Quota

_LARGEST = 16 << 20  # bytes: tens of thousands of callers
_log = logging.getLogger("mqinfer.web")

_LOOK_S = 1.0
"""Interval at which the key file is looked at again, while calls come."""
_LEAST_KEY = 16
"""Characters of a key; a shorter one can be guessed."""


class _Entry(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    rights: list[str]
    key: str = ""
    requests_per_second: float = math.inf
    bytes_per_second: float = math.inf
    highest_priority: int = 0


prepare(_Entry)


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a caller of the key file may do.

    Attributes:
        name: Of the caller.
        rights: What it may call.
    """

    name: str
    rights: frozenset[str]


class KeyFile:
    """The callers of a TOML file, which is read again when it changes.

    Each table has a caller's name, its `rights`, and its `key`; without a key it stands for the client certificate of
    that common name. `requests_per_second`, `bytes_per_second` and `highest_priority` bound what it may send to a
    gateway. Keys are looked up by their SHA-256, so the time of a look-up tells nothing about them.

    Args:
        path: Of the file.
        granted: What each right that a file may name allows.
        clock: In seconds.

    Raises:
        ConfigError: The file can't be read, or has a fault. A fault that comes later is logged, and the callers stay.
    """

    def __init__(
        self, path: Path, granted: Mapping[str, frozenset[str]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._path, self._granted, self._clock = path, granted, clock
        self._stamp = self._look()
        self._keys, self._certificates, self._quotas = _read_callers(path, granted)
        self._looked = clock()

    def of_key(self, key: str) -> Credentials | None:
        """Return who has a key; None for nobody."""
        return self.of_digest(self.digest(key))

    @staticmethod
    def digest(key: str) -> bytes:
        """Return what a key is looked up by."""
        return sha256(key.encode(errors="replace")).digest()

    def of_digest(self, digest: bytes) -> Credentials | None:
        """Return who has the key of this digest; None for nobody, also where it has been removed meanwhile."""
        self._refresh()
        for known, found in self._keys.items():
            if hmac.compare_digest(known, digest):
                return found
        return None

    def of_certificate(self, name: str) -> Credentials | None:
        """Return the caller whose certificate has this common name; None for nobody."""
        self._refresh()
        return self._certificates.get(name)

    def quota_of(self, name: str) -> Quota | None:
        """Return the quota of a caller; None where it has none."""
        return self._quotas.get(name)

    def _refresh(self) -> None:
        now = self._clock()
        if now - self._looked < _LOOK_S:
            return
        self._looked = now
        stamp = self._look()
        if stamp == self._stamp:
            return
        self._stamp = stamp
        if self._path.is_fifo():  # to read it would hold up everybody
            _log.error("the keys stay as they were: key file %s is a pipe now", self._path)
            return
        try:
            self._keys, self._certificates, self._quotas = _read_callers(self._path, self._granted)
        except ConfigError as error:
            _log.error("the keys stay as they were: %s", error)
        else:
            _log.info("read %s again: %d keys", self._path, len(self._keys))

    def _look(self) -> tuple[int, int, int] | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_ino, found.st_size, found.st_mtime_ns


def _read_callers(
    path: Path, granted: Mapping[str, frozenset[str]]
) -> tuple[dict[bytes, Credentials], dict[str, Credentials], dict[str, Quota]]:
    """Return the callers of a key file: by the SHA-256 of a key, and by the name of a certificate; and their quotas."""
    try:
        entries = msgspec.convert(parse_toml(read_text(path, _LARGEST)), dict[str, _Entry])
    except OSError as error:
        raise ConfigError(f"key file {path} can't be read: {error.strerror}") from None
    except (ValueError, msgspec.ValidationError) as error:  # of UTF-8, of TOML, or of its fields
        raise ConfigError(
            f"key file {path}: {error}; expected a table for each caller, such as "
            f'[ann] with key = "…" and rights = ["{next(iter(granted))}"]'
        ) from None
    keys: dict[bytes, Credentials] = {}
    certificates: dict[str, Credentials] = {}
    for name, entry in entries.items():
        found = Credentials(name, _rights(path, name, entry.rights, granted))
        digest = sha256(entry.key.encode()).digest()
        if not entry.key:
            certificates[name] = found
        elif len(entry.key) < _LEAST_KEY or not (entry.key.isascii() and entry.key.isprintable()):
            raise ConfigError(f"key file {path}: key of {name!r}: expected {_LEAST_KEY} or more characters of ASCII")
        elif digest in keys:
            raise ConfigError(f"key file {path}: {name!r} and {keys[digest].name!r} have the same key")
        else:
            keys[digest] = found
    return keys, certificates, _quotas(path, entries)


def _quotas(path: Path, entries: Mapping[str, _Entry]) -> dict[str, Quota]:
    found: dict[str, Quota] = {}
    for name, entry in entries.items():
        try:
            quota = Quota(entry.requests_per_second, entry.bytes_per_second, entry.highest_priority)
        except ConfigError as error:
            raise ConfigError(f"key file {path}: {name!r}: {error}") from None
        if quota != Quota():
            found[name] = quota
    return found


def _rights(path: Path, name: str, wanted: Iterable[str], granted: Mapping[str, frozenset[str]]) -> frozenset[str]:
    unknown = sorted(set(wanted) - granted.keys())
    if unknown:
        raise ConfigError(f"key file {path}: right {unknown[0]!r} of {name!r}; expected one of {', '.join(granted)}")
    return frozenset().union(*(granted[each] for each in wanted))
