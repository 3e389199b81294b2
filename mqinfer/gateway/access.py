"""Who may call what: bearer keys, client certificates, and the header that Triton's restricted protocols expect."""

from __future__ import annotations

import hmac
import logging
import re
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256
from pathlib import Path

import msgspec

from mqinfer.gateway.errors import Unauthenticated
from mqinfer.logs import log_dropped
from mqinfer.protocol.errors import ConfigError, NotAuthorized

__all__ = ["Access", "Credentials", "KeyFile", "Right", "read_restrictions"]

_log = logging.getLogger("mqinfer.gateway")

_LOOK_S = 1.0
"""Interval at which the key file is looked at again, while calls come."""
_LEAST_KEY = 16
"""Characters of a key; a shorter one can be guessed."""
_RESTRICTION = re.compile(r"(?P<calls>[a-z-]+(?:,[a-z-]+)*)[:=](?P<key>[A-Za-z0-9_.-]+)[:=](?P<value>.+)")
_GRPC_HEADER = "triton-grpc-protocol-{}"
_BEARER = "bearer "


class Right(StrEnum):
    """Groups of calls, named as Triton's restricted protocols are."""

    HEALTH = "health"
    METADATA = "metadata"
    INFERENCE = "inference"
    MODEL_CONFIG = "model-config"
    MODEL_REPOSITORY = "model-repository"
    STATISTICS = "statistics"
    SHARED_MEMORY = "shared-memory"
    TRACE = "trace"
    LOGGING = "logging"


_ALIASES = {"repository": Right.MODEL_REPOSITORY, "config": Right.MODEL_CONFIG}
_GRANTED: Mapping[str, frozenset[Right]] = {
    "infer": frozenset({Right.INFERENCE}),
    "metadata": frozenset({Right.METADATA, Right.MODEL_CONFIG, Right.STATISTICS}),
    "admin": frozenset(Right),
}
"""What the rights of a key file allow; everybody may ask whether the gateway and its models are ready."""


class _Entry(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    rights: list[str]
    key: str = ""


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a caller of the key file may do.

    Attributes:
        name: Of the caller.
        rights: What it may call.
    """

    name: str
    rights: frozenset[Right]


class KeyFile:
    """The callers of a TOML file, which is read again when it changes.

    Each table has a caller's name, its `rights`, and its `key`; without a key it stands for the client certificate of
    that common name. Keys are looked up by their SHA-256, so the time of a look-up tells nothing about them.

    Args:
        path: Of the file.
        clock: In seconds.

    Raises:
        ConfigError: The file can't be read, or has a fault. A fault that comes later is logged, and the callers stay.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path, self._clock = path, clock
        self._stamp = self._look()
        self._keys, self._certificates = _read_callers(path)
        self._looked = clock()

    def of_key(self, key: str) -> Credentials | None:
        """Return who has a key; None for nobody."""
        self._refresh()
        digest = sha256(key.encode(errors="replace")).digest()
        for known, found in self._keys.items():
            if hmac.compare_digest(known, digest):
                return found
        return None

    def of_certificate(self, name: str) -> Credentials | None:
        """Return the caller whose certificate has this common name; None for nobody."""
        self._refresh()
        return self._certificates.get(name)

    def _refresh(self) -> None:
        now = self._clock()
        if now - self._looked < _LOOK_S:
            return
        self._looked = now
        stamp = self._look()
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._keys, self._certificates = _read_callers(self._path)
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


def _read_callers(path: Path) -> tuple[dict[bytes, Credentials], dict[str, Credentials]]:
    """Return the callers of a key file: those with a key by its SHA-256, those with a certificate by their names."""
    try:
        entries = msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), dict[str, _Entry])
    except OSError as error:
        raise ConfigError(f"key file {path} can't be read: {error.strerror}") from None
    except (ValueError, msgspec.ValidationError) as error:  # of UTF-8, of TOML, or of its fields
        raise ConfigError(
            f"key file {path}: {error}; expected a table for each caller, such as "
            '[ann] with key = "…" and rights = ["infer", "metadata"]'
        ) from None
    keys: dict[bytes, Credentials] = {}
    certificates: dict[str, Credentials] = {}
    for name, entry in entries.items():
        found = Credentials(name, _rights(path, name, entry.rights))
        digest = sha256(entry.key.encode()).digest()
        if not entry.key:
            certificates[name] = found
        elif len(entry.key) < _LEAST_KEY or not (entry.key.isascii() and entry.key.isprintable()):
            raise ConfigError(f"key file {path}: key of {name!r}: expected {_LEAST_KEY} or more characters of ASCII")
        elif digest in keys:
            raise ConfigError(f"key file {path}: {name!r} and {keys[digest].name!r} have the same key")
        else:
            keys[digest] = found
    return keys, certificates


def _rights(path: Path, name: str, wanted: Iterable[str]) -> frozenset[Right]:
    unknown = sorted(set(wanted) - _GRANTED.keys())
    if unknown:
        raise ConfigError(f"key file {path}: right {unknown[0]!r} of {name!r}; expected one of {', '.join(_GRANTED)}")
    return frozenset().union(*(_GRANTED[each] for each in wanted))


def read_restrictions(texts: Iterable[str]) -> dict[Right, tuple[str, str]]:
    """Return the header and the value that calls need, from texts such as `model-repository,statistics:KEY=VALUE`.

    Raises:
        ConfigError: One has a fault, or two are about the same calls.
    """
    found: dict[Right, tuple[str, str]] = {}
    for text in texts:
        parts = _RESTRICTION.fullmatch(text)
        if not parts:
            raise ConfigError(f"--restrict {text!r}: expected CALLS:KEY=VALUE, such as model-repository:admin=secret")
        for name in parts["calls"].split(","):
            if name not in {*Right, *_ALIASES}:
                raise ConfigError(f"--restrict: unknown calls {name!r}; expected some of {', '.join(Right)}")
            right = _ALIASES.get(name) or Right(name)
            if right in found:
                raise ConfigError(f"--restrict: {name!r} is there twice; name it once")
            found[right] = parts["key"].lower(), parts["value"]
    return found


class Access:
    """Decides about calls; used by the loop's thread alone.

    Attributes:
        refused: Calls refused so far, by the code of the error.
        asks_certificates: Whether callers may show certificates.

    Args:
        keys: The callers that there are; None: everybody may call.
        restricted: Header and value that some calls need beside.
        asks_certificates: As the attribute.
    """

    def __init__(
        self,
        keys: KeyFile | None = None,
        restricted: Mapping[Right, tuple[str, str]] | None = None,
        *,
        asks_certificates: bool = True,
    ) -> None:
        self.refused: Counter[str] = Counter()
        self.asks_certificates = asks_certificates
        self._keys = keys
        self._restricted = dict(restricted or {})

    def admit(
        self, right: Right, headers: Mapping[str, str], peer: str, *, certificate: str = "", is_grpc: bool = False
    ) -> str:
        """Return the name of the caller, by which callers take turns, if the call is allowed.

        Args:
            right: What it calls.
            headers: Headers of HTTP or metadata of gRPC, with lower-case names.
            peer: Address of the connection.
            certificate: Common name of the client's certificate, where TLS has checked one; else empty.
            is_grpc: Whether it came over gRPC.

        Raises:
            Unauthenticated: It has no credentials, or wrong ones.
            NotAuthorized: It may not call this.
        """
        try:
            if right in self._restricted:
                self._check_header(right, headers, is_grpc=is_grpc)
            if self._keys is None or right is Right.HEALTH:
                return f"certificate {certificate}" if certificate else peer
            return self._check_rights(self._keys, right, headers, certificate)
        except (Unauthenticated, NotAuthorized) as error:
            self.refused[error.code] += 1
            log_dropped(_log, f"{right} call of {peer}: {error}", error.code, self.refused[error.code])
            raise

    def _check_rights(self, keys: KeyFile, right: Right, headers: Mapping[str, str], certificate: str) -> str:
        found = self._identify(keys, headers, certificate)
        if right not in found.rights:
            raise NotAuthorized(f"{found.name!r} has no right to {right} calls; its rights stand in the gateway's keys")
        return f"key {found.name}"

    def _check_header(self, right: Right, headers: Mapping[str, str], *, is_grpc: bool) -> None:
        key, value = self._restricted[right]
        header = _GRPC_HEADER.format(key) if is_grpc else key
        given = headers.get(header, "")
        if not hmac.compare_digest(given.encode(errors="replace"), value.encode()):
            what = "protocol" if is_grpc else "API"
            raise NotAuthorized(f"This {what} is restricted, expecting header '{header}'")

    def _identify(self, keys: KeyFile, headers: Mapping[str, str], certificate: str) -> Credentials:
        given = headers.get("authorization", "")
        if given[: len(_BEARER)].lower() == _BEARER:
            found = keys.of_key(given[len(_BEARER) :].strip())
            if found is None:
                raise Unauthenticated("the key is unknown here; ask the gateway's operator for one")
            return found
        found = keys.of_certificate(certificate) if certificate else None
        if found is None:
            raise Unauthenticated("this gateway wants a key; send the header 'Authorization: Bearer KEY'")
        return found
