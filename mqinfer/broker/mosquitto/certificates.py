"""A private certificate authority: signs and revokes certificates of the broker and its clients (X.509, EC P-256).

A client's certificate has `clientAuth` and the broker's `serverAuth`, so no client can pose as the broker, nor the
broker's key be used as a client. The common name is the user name (`use_identity_as_username`).
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING

from mqinfer.broker.mosquitto.access import GUARD
from mqinfer.broker.mosquitto.files import write_file
from mqinfer.broker.mosquitto.register import Issued
from mqinfer.extras import missing_extra
from mqinfer.protocol.errors import ConfigError

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

_AUTHORITY_DAYS = 3650
_SLACK = timedelta(hours=1)  # clocks of vehicles differ: a certificate is good from a little before it was made
_SECOND = timedelta(seconds=1)
_LIST_SLACK = timedelta(days=1)  # room for that many later lists, each dated a second after the one before
_HOST = re.compile(r"(\*\.)?[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?(\.[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?)*")


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its private key, both PEM.

    Attributes:
        certificate: May be shown to anybody.
        key: Must not.
    """

    certificate: bytes
    key: bytes


class Authority:
    """Signs certificates.

    Args:
        pair: Its own certificate and key.

    Raises:
        ConfigError: They can't be read.
        MissingExtra: `cryptography` is not installed.
    """

    def __init__(self, pair: Pair) -> None:
        _require()
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        try:
            self._certificate = x509.load_pem_x509_certificate(pair.certificate)
            key = load_pem_private_key(pair.key, password=None)
        except (ValueError, TypeError) as error:
            raise ConfigError(f"the authority's certificate or key can't be read: {error}") from error
        if not isinstance(key, EllipticCurvePrivateKey) or key.public_key() != self._certificate.public_key():
            raise ConfigError("the authority's key does not belong to its certificate")
        self._key = key

    @classmethod
    def make(cls) -> Pair:
        """Make a new authority, good for ten years.

        Raises:
            MissingExtra: `cryptography` is not installed.
        """
        _require()
        from cryptography import x509

        name = f"mqinfer authority {secrets.token_hex(4)}"
        key = _new_key()
        builder = (
            _builder(name, name, key.public_key(), _AUTHORITY_DAYS)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
        )
        return _signed(builder, key, key)

    def broker(self, hosts: Sequence[str], days: int) -> Pair:
        """Make a broker's certificate.

        Args:
            hosts: Names and addresses under which clients reach it; at least one.
            days: That it is good for.

        Raises:
            ConfigError: A host is neither a name nor an address.
        """
        from cryptography import x509
        from cryptography.x509.oid import ExtendedKeyUsageOID

        names = [_general_name(check_host(host)) for host in hosts]
        key, builder = self._leaf("mqinfer-broker", days, ExtendedKeyUsageOID.SERVER_AUTH)
        return _signed(builder.add_extension(x509.SubjectAlternativeName(names), critical=False), key, self._key)

    def client(self, name: str, days: int) -> Pair:
        """Make a client's certificate.

        Args:
            name: Its user name at the broker.
            days: That it is good for; one that is not positive makes a certificate that has run out, for tests.
        """
        from cryptography.x509.oid import ExtendedKeyUsageOID

        key, builder = self._leaf(name, days, ExtendedKeyUsageOID.CLIENT_AUTH)
        return _signed(builder, key, self._key)

    def issued(self, certificate: bytes) -> Issued | None:
        """Return what the register holds of a client's certificate (PEM), or None if another authority signed it."""
        from cryptography import x509
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

        try:
            found = x509.load_pem_x509_certificate(certificate)
            found.verify_directly_issued_by(self._certificate)
        except (ValueError, TypeError, InvalidSignature):
            return None
        key = found.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        return Issued(
            common_name(found), found.serial_number, found.not_valid_after_utc, key=hashlib.sha256(key).hexdigest()
        )

    def revocation_list(self, certificates: Iterable[Issued], before: bytes | None) -> bytes:
        """Return the signed list of revoked certificates (PEM), which is good for as long as the authority.

        A broker refuses everybody when its list has run out, so this one never needs to be renewed. OpenSSL keeps the
        lists that it has read and believes the one with the latest date, which has whole seconds: each list is dated
        at least a second after the one before, and never in the future.

        Args:
            certificates: Of the register.
            before: The list that this one replaces, or None. It is returned unchanged if it has the same content.
        """
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.serialization import Encoding

        wanted = {each.serial: each.revoked for each in certificates if each.revoked}
        now = datetime.now(UTC)
        date = now - _LIST_SLACK
        old = self._own_list(before)
        if before is not None and old is not None:
            if {each.serial_number for each in old} == set(wanted):
                return before
            date = min(now, max(date, old.last_update_utc + _SECOND))
        key = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self._certificate.subject)
            .last_update(date)
            .next_update(self._certificate.not_valid_after_utc)
            .add_extension(key, critical=False)
            .add_extension(x509.CRLNumber(int(date.timestamp())), critical=False)
        )
        for serial, at in wanted.items():
            one = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(at)
            builder = builder.add_revoked_certificate(one.build())
        return builder.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM)

    def _own_list(self, content: bytes | None) -> x509.CertificateRevocationList | None:
        """Return a revocation list that this authority has signed, or None."""
        from cryptography import x509

        try:
            found = x509.load_pem_x509_crl(content or b"")
        except ValueError:
            return None
        return found if found.is_signature_valid(self._key.public_key()) else None

    def _leaf(
        self, name: str, days: int, purpose: x509.ObjectIdentifier
    ) -> tuple[EllipticCurvePrivateKey, x509.CertificateBuilder]:
        from cryptography import x509

        key = _new_key()
        authority = self._certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
        builder = (
            _builder(name, common_name(self._certificate), key.public_key(), days)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(authority), critical=False)
        )
        return key, builder


def make_guard(place: Path, *others: bytes) -> tuple[Path, Path, str]:
    """Make the certificate of a guard, which an authority of its own has signed, good for as long as that.

    Args:
        place: Folder for the files.
        others: Certificates of further authorities for the first file.

    Returns:
        The file of authorities, that of the guard's key and certificate, and the hash of its public key.

    Raises:
        MissingExtra: `cryptography` is not installed.
    """
    pair = Authority.make()
    authority, file, login = Authority(pair), place / "ca.crt", place / "guard.pem"
    guard = authority.client(GUARD, _AUTHORITY_DAYS)
    issued = authority.issued(guard.certificate)
    write_file(file, b"".join((*others, pair.certificate)), secret=False)
    write_file(login, guard.key + guard.certificate)
    return file, login, issued.key if issued else ""


def check_host(host: str) -> str:
    """Return a broker's name or address if it can stand in a certificate.

    Raises:
        ConfigError: It is neither.
    """
    if len(host) <= 253 and (_is_address(host) or _HOST.fullmatch(host)):
        return host
    raise ConfigError(f"host {host[:80]!r} is neither a name nor an address, such as broker.example.org or 10.0.0.5")


def hosts_of(certificate: bytes) -> list[str]:
    """Return the names and addresses in a broker's certificate (PEM), in its order.

    Raises:
        ConfigError: It is no certificate of a broker.
    """
    _require()
    from cryptography import x509

    try:
        found = x509.load_pem_x509_certificate(certificate)
        names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, x509.ExtensionNotFound) as error:
        raise ConfigError(
            f"the broker's certificate can't be read: {error}; write it anew: mqinfer broker init"
        ) from error
    return [str(name.value) for name in names if isinstance(name, x509.DNSName | x509.IPAddress)]


def common_name(certificate: x509.Certificate) -> str:
    """Return a certificate's common name."""
    from cryptography.x509.oid import NameOID

    return str(certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)


def _require() -> None:
    try:
        import cryptography  # noqa: F401 - whether it is there
    except ImportError as error:
        raise missing_extra("cryptography", "security") from error


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _general_name(host: str) -> x509.GeneralName:
    from cryptography import x509

    return x509.IPAddress(ip_address(host)) if _is_address(host) else x509.DNSName(host)


def _new_key() -> EllipticCurvePrivateKey:
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP256R1())


def _builder(name: str, issuer: str, key: object, days: int) -> x509.CertificateBuilder:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    now = datetime.now(UTC)
    end = now + timedelta(days=days)
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(key)  # type: ignore[arg-type]  # an elliptic curve's, as made above
        .serial_number(x509.random_serial_number())
        .not_valid_before(min(now, end) - _SLACK)
        .not_valid_after(end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)  # type: ignore[arg-type]
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _signed(builder: x509.CertificateBuilder, key: EllipticCurvePrivateKey, signer: EllipticCurvePrivateKey) -> Pair:
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    certificate = builder.sign(signer, hashes.SHA256())
    return Pair(
        certificate.public_bytes(Encoding.PEM),
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
    )
