"""A client's own certificate: whose it is and when it ends, read without a library (X.509 in DER, RFC 5280).

TLS checks certificates; this module only reads two fields of a file that its owner has chosen, so that the owner need
not state the name twice and is warned in time. Python's `ssl` shows those of the other side's certificate alone.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from mqinfer.protocol.errors import ConfigError

__all__ = ["OwnCertificate"]

_BLOCK = re.compile(rb"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)
_INTEGER, _OBJECT_ID, _SEQUENCE, _VERSION = 0x02, 0x06, 0x30, 0xA0
_UTC_TIME, _GENERALIZED_TIME = 0x17, 0x18
_COMMON_NAME = b"\x55\x04\x03"  # 2.5.4.3
_ENCODINGS = {0x0C: "utf-8", 0x13: "ascii", 0x14: "latin-1", 0x16: "ascii", 0x1C: "utf-32-be", 0x1E: "utf-16-be"}
"""By the tag of a string: UTF8String, PrintableString, TeletexString, IA5String, UniversalString, BMPString."""


@dataclass(frozen=True, slots=True)
class OwnCertificate:
    """What a client reads of its certificate.

    Attributes:
        name: The first common name of its subject; empty where it has none.
        end: When it ends, in UTC.
    """

    name: str
    end: datetime

    @classmethod
    def read(cls, path: Path) -> OwnCertificate:
        """Read the first certificate of a PEM file.

        Raises:
            ConfigError: The file can't be read, or holds no certificate.
        """
        try:
            found = _BLOCK.search(path.read_bytes())
            if found is None:
                raise ConfigError(f"{path} holds no certificate; expected a PEM file with BEGIN CERTIFICATE")
            return cls._parse(ssl.PEM_cert_to_DER_cert(found[0].decode("ascii")))
        except OSError as error:
            raise ConfigError(f"{path} can't be read: {error.strerror or error}") from error
        except (ValueError, IndexError) as error:
            raise ConfigError(f"the certificate in {path} is damaged") from error

    @classmethod
    def _parse(cls, content: bytes) -> OwnCertificate:
        ((_, certificate),) = _elements(content)
        _, body = next(_elements(certificate))
        fields = [each for each in _elements(body) if each[0] != _VERSION]
        # serialNumber, signature, issuer, validity, subject, and what follows
        if [tag for tag, _ in fields[:5]] != [_INTEGER, *[_SEQUENCE] * 4]:
            raise ValueError("no certificate")
        _, end = _elements(fields[3][1])
        return cls(_common_name(fields[4][1]), _time(*end))


def _elements(content: bytes) -> Iterator[tuple[int, bytes]]:
    """List the elements that follow each other, each a tag and its content."""
    at = 0
    while at < len(content):
        tag, size = content[at], content[at + 1]
        at += 2
        if size >= 0x80:  # the length follows, in so many bytes
            count = size & 0x7F
            size = int.from_bytes(content[at : at + count])
            at += count
        if at + size > len(content):
            raise ValueError("an element is longer than what holds it")
        yield tag, content[at : at + size]
        at += size


def _common_name(subject: bytes) -> str:
    for _, group in _elements(subject):
        for _, attribute in _elements(group):
            (kind, identifier), (tag, value) = _elements(attribute)
            if (kind, identifier) == (_OBJECT_ID, _COMMON_NAME):
                return value.decode(_ENCODINGS.get(tag, "utf-8"))
    return ""


def _time(tag: int, value: bytes) -> datetime:
    if tag not in {_UTC_TIME, _GENERALIZED_TIME}:
        raise ValueError("no time")
    text = value.decode("ascii")
    if tag == _UTC_TIME:  # two digits of the year: from 1950 to 2049
        text = ("19" if text >= "50" else "20") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)
