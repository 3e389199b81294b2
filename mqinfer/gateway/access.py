"""Who may call what: bearer keys, client certificates, and the header that Triton's restricted protocols expect."""

from __future__ import annotations

import hmac
import logging
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from enum import StrEnum

from mqinfer.gateway.errors import Unauthenticated
from mqinfer.logs import log_dropped
from mqinfer.protocol.errors import ConfigError, NotAuthorized
from mqinfer.web.keys import Credentials, KeyFile

_log = logging.getLogger("mqinfer.gateway")

_RESTRICTION = re.compile(r"(?P<calls>[a-z-]+(?:,[a-z-]+)*)[:=](?P<key>[A-Za-z0-9_.-]+)[:=](?P<value>.+)")
_GRPC_HEADER = "triton-grpc-protocol-{}"
_BEARER = "bearer "
BY_KEY = "key "
"""Precedes the name of a caller of the file of keys: of these there are only so many."""


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
GRANTED: Mapping[str, frozenset[Right]] = {
    "infer": frozenset({Right.INFERENCE}),
    "metadata": frozenset({Right.METADATA, Right.MODEL_CONFIG, Right.STATISTICS}),
    "admin": frozenset(Right),
    "watch": frozenset(),
}
"""What the rights of a key file allow; everybody may ask whether the gateway and its models are ready. `watch` is one
of the dashboard, so that both may have one file."""


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

    def lacks_key(self, headers: Mapping[str, str], certificate: str) -> bool:
        """Return whether a caller needs a key, and has shown nothing yet by which it could be known."""
        return self._keys is not None and not certificate and "authorization" not in headers

    def _check_rights(self, keys: KeyFile, right: Right, headers: Mapping[str, str], certificate: str) -> str:
        found = self._identify(keys, headers, certificate)
        if right not in found.rights:
            raise NotAuthorized(f"{found.name!r} has no right to {right} calls; its rights stand in the gateway's keys")
        return f"{BY_KEY}{found.name}"

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
