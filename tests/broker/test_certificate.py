"""A client's own certificate: whose it is and when it ends, as `cryptography` and OpenSSL write it."""

from __future__ import annotations

import subprocess
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqinfer.broker.address import BrokerAddress
from mqinfer.broker.certificate import OwnCertificate
from mqinfer.broker.mosquitto.certificates import Authority
from mqinfer.client.connection import default_name
from mqinfer.protocol.errors import ConfigError
from tests.programs import find_program

PEM = Authority(Authority.make()).client("car-1", 30).certificate


def client(tmp_path: Path, name: str, days: int = 30) -> Path:
    """Write a client's certificate behind its key, as some give it away."""
    pair = Authority(Authority.make()).client(name, days)
    file = tmp_path / "client.pem"
    file.write_bytes(pair.key + pair.certificate)
    return file


def test_name_and_end(tmp_path: Path) -> None:
    """Both come from the first certificate of the file, whatever stands before it."""
    own = OwnCertificate.read(client(tmp_path, "car-1"))
    assert own.name == "car-1"
    assert timedelta(days=29, hours=23) < own.end - datetime.now(UTC) < timedelta(days=30, hours=1)


@pytest.mark.parametrize(
    ("subject", "days", "name"),
    [("/O=Plant/CN=car-1/OU=x", 10, "car-1"), ("/O=Plant", 10, ""), ("/CN=Fäßchen", 20_000, "Fäßchen")],
)
def test_certificates_of_openssl(tmp_path: Path, subject: str, days: int, name: str) -> None:
    """Other fields beside the name, none at all, letters beyond ASCII, and an end beyond 2049, written otherwise."""
    file = tmp_path / "own.crt"
    command = [
        find_program("openssl"),
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-utf8",
    ]
    rest = ["-keyout", str(tmp_path / "key"), "-out", str(file), "-subj", subject, "-days", str(days)]
    subprocess.run([*command, *rest], check=True, capture_output=True)
    own = OwnCertificate.read(file)
    assert own.name == name
    assert abs(own.end - datetime.now(UTC) - timedelta(days=days)) < timedelta(hours=1)


@given(st.integers(0, len(PEM) - 1), st.binary(max_size=3))
def test_damaged_certificates(tmp_path_factory: pytest.TempPathFactory, at: int, instead: bytes) -> None:
    """Any damage is a configuration error, or leaves what can be read; nothing else is raised."""
    file = tmp_path_factory.getbasetemp() / "damaged.crt"
    file.write_bytes(PEM[:at] + instead + PEM[at + len(instead) :])
    with suppress(ConfigError):
        OwnCertificate.read(file)


def test_files_that_hold_none(tmp_path: Path) -> None:
    """A missing file and one without a certificate are named."""
    with pytest.raises(ConfigError, match=r"none.crt can't be read: No such file"):
        OwnCertificate.read(tmp_path / "none.crt")
    (tmp_path / "empty.crt").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"empty.crt holds no certificate"):
        OwnCertificate.read(tmp_path / "empty.crt")


def test_the_default_name(tmp_path: Path) -> None:
    """That of the certificate, else that of the login; a random one without either, or where topics can't hold it."""
    certificate = client(tmp_path, "car-1")
    assert default_name(BrokerAddress.parse("mqtts://pass-car:x@host", cert_file=certificate)) == "car-1"
    assert default_name(BrokerAddress.parse("mqtts://pass-car:x@host")) == "pass-car"
    addresses = [BrokerAddress.parse(url) for url in ("mqtt://host", "mqtt://Car%201:x@host", "memory://broker")]
    for address in (*addresses, BrokerAddress.parse("mqtts://host", cert_file=client(tmp_path, "Car 1"))):
        names = {default_name(address) for _ in range(3)}
        assert len(names) == 3
        assert all(name.startswith("client-") for name in names)


@pytest.mark.parametrize(("days", "words"), [(40, None), (12, "ends in 11 days"), (0, "ended on")])
def test_a_certificate_that_ends_soon(tmp_path: Path, days: int, words: str | None) -> None:
    """Its owner is warned from 30 days before."""
    address = BrokerAddress.parse("mqtts://host", cert_file=client(tmp_path, "car-1", days))
    warning = address.expiry_warning()
    assert (warning is None) == (words is None)
    assert not words or words in (warning or "")
    assert BrokerAddress.parse("mqtts://host").expiry_warning() is None


def test_passwords_come_from_a_file_or_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first line of the file counts, else the variable, and only where the URL has a user without a password."""
    file = tmp_path / "password"
    file.write_text("päss word\n")

    def password(url: str, given: Path | None = None) -> str | None:
        return BrokerAddress.parse(url, password_file=given).password

    monkeypatch.delenv("MQINFER_PASSWORD", raising=False)
    assert [password("mqtts://car-1@host", file), password("mqtts://car-1@host")] == ["päss word", None]
    monkeypatch.setenv("MQINFER_PASSWORD", "from environment")
    urls = ("mqtts://car-1@host", "mqtts://car-1:own@host", "mqtts://host")
    assert [password(url) for url in urls] == ["from environment", "own", None]
    assert password("mqtts://car-1@host", file) == "päss word"


@pytest.mark.parametrize(
    ("url", "content", "fault"),
    [
        ("mqtts://car-1:secret@host", b"secret", "leave out one"),
        ("mqtts://host", b"secret", "needs a user name"),
        ("mqtts://car-1@host", b"", "is empty"),
        ("mqtts://car-1@host", b"\xffsecret", "no text in UTF-8"),
        ("mqtts://car-1@host", None, "No such file"),
    ],
)
def test_password_files_that_are_none(tmp_path: Path, url: str, content: bytes | None, fault: str) -> None:
    """The error states what is wrong, and repeats no password."""
    if content is not None:
        (tmp_path / "password").write_bytes(content)
    with pytest.raises(ConfigError, match=fault) as caught:
        BrokerAddress.parse(url, password_file=tmp_path / "password")
    assert "secret" not in str(caught.value)
