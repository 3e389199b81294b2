"""Certificates that were revoked: the broker's list of them, who signs it, and what their holders receive."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from mqinfer.broker.mosquitto import BrokerFolder, Ports, Role
from mqinfer.broker.mosquitto.certificates import Authority
from mqinfer.broker.mosquitto.folder import Login
from mqinfer.broker.mosquitto.register import Issued, format_register, parse_register
from mqinfer.broker.paho.link import PahoLink
from mqinfer.protocol.errors import ConfigError, LinkError, NotAuthorized
from tests.broker.attempts import PATIENCE, error_of, kept_current
from tests.patience import wait_until

Unique = Callable[[str], str]


@pytest.fixture
def folder(tmp_path: Path) -> BrokerFolder:
    """One that was just begun."""
    made = BrokerFolder(tmp_path / "broker")
    made.init(ports=Ports(18883))
    return made


def revocations(folder: BrokerFolder) -> Any:
    """The list that the broker reads."""
    return x509.load_pem_x509_crl((folder.path / "revoked.pem").read_bytes())


def serials(folder: BrokerFolder) -> set[int]:
    """Those that stand on it."""
    return {each.serial_number for each in revocations(folder)}


def serial(login: Login) -> int:
    """Of a client's certificate."""
    assert login.cert_file
    number: int = x509.load_pem_x509_certificate(login.cert_file.read_bytes()).serial_number
    return number


def keep(login: Login, place: Path) -> Login:
    """Move a client's files away, as the documentation advises."""
    assert login.cert_file
    assert login.key_file
    place.mkdir()
    return replace(
        login, cert_file=login.cert_file.rename(place / "own.crt"), key_file=login.key_file.rename(place / "own.key")
    )


def test_the_list_is_signed_and_outlives_everything(folder: BrokerFolder) -> None:
    """It begins empty, is the authority's own, holds for now, and ends when the authority ends: no day sooner."""
    authority = x509.load_pem_x509_certificate((folder.path / "ca.crt").read_bytes())
    found = revocations(folder)
    assert list(found) == []
    assert found.is_signature_valid(authority.public_key())
    assert found.last_update_utc < datetime.now(UTC) - timedelta(hours=1)  # clocks differ
    assert found.next_update_utc == authority.not_valid_after_utc
    assert "require_certificate true\nuse_identity_as_username true\ncrlfile revoked.pem\n" in (folder.configuration())


def test_each_list_is_later_than_the_one_before(folder: BrokerFolder) -> None:
    """OpenSSL believes the later of two, in whole seconds: of twenty made at once each has its date, none ahead."""
    dates = [revocations(folder).last_update_utc]
    for number in range(20):
        login = folder.add(Role.VEHICLE, f"car-{number}")
        assert folder.remove(login.name) == 1
        assert serial(login) in serials(folder)
        dates.append(revocations(folder).last_update_utc)
    assert len(serials(folder)) == 20
    assert dates == sorted(set(dates))
    assert dates[-1] <= datetime.now(UTC)


def test_a_list_of_a_clock_that_was_wrong() -> None:
    """A list dated in the future would refuse everybody: the next one is dated now."""
    pair = Authority.make()
    authority, now = Authority(pair), datetime.now(UTC)
    one, two = (Issued(name, number, now + timedelta(days=9), now) for number, name in enumerate(("a", "b"), 1))
    first = x509.load_pem_x509_crl(authority.revocation_list([one], None))
    ahead = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(first.issuer)
        .last_update(now + timedelta(days=365))
        .next_update(now + timedelta(days=366))
    )
    key = serialization.load_pem_private_key(pair.key, None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    before = ahead.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    assert x509.load_pem_x509_crl(authority.revocation_list([one, two], before)).last_update_utc <= datetime.now(UTC)


def test_renewing_keeps_the_earlier_certificate(folder: BrokerFolder, tmp_path: Path) -> None:
    """A vehicle is not cut off by its renewal; `remove` revokes both, `add` then makes one that is good."""
    first = keep(folder.add(Role.VEHICLE, "car-1"), tmp_path / "car-1")
    second = folder.add(Role.VEHICLE, "car-1")
    assert {each.serial for each in folder.certificates("car-1")} == {serial(first), serial(second)}
    assert serials(folder) == set()
    gone = {serial(first), serial(second)}
    assert folder.remove("car-1") == 2
    assert serials(folder) == gone
    third = folder.add(Role.VEHICLE, "car-1")
    assert [each.serial for each in folder.certificates("car-1")] == [serial(third)]
    assert serials(folder) == gone


def test_removing_without_the_authoritys_key(folder: BrokerFolder) -> None:
    """The rights go at once, and the error names what is missing; when the key is back, the certificate is revoked."""
    login = folder.add(Role.VEHICLE, "car-1")
    key = (folder.path / "ca.key").rename(folder.path.parent / "ca.key")
    with pytest.raises(ConfigError, match=r"car-1 has no rights any more, but its certificate.*ca\.key is missing"):
        folder.remove("car-1")
    assert folder.clients() == {}
    assert serials(folder) == set()
    key.rename(folder.path / "ca.key")
    folder.add(Role.VEHICLE, "car-2")  # whoever needs the key next signs what waits
    assert serials(folder) == {serial(login)}
    assert folder.remove("car-1") == 1


def test_beginning_again_without_the_authoritys_key(folder: BrokerFolder) -> None:
    """A second `init` makes no new authority, which would lock out every client: it asks for the key."""
    (folder.path / "ca.key").unlink()
    before = {path: path.read_bytes() for path in folder.path.iterdir() if path.is_file()}
    with pytest.raises(ConfigError, match=r"ca\.key is missing.*put it back"):
        folder.init()
    assert {path: path.read_bytes() for path in folder.path.iterdir() if path.is_file()} == before


def test_a_register_that_was_lost(folder: BrokerFolder, tmp_path: Path) -> None:
    """A second `init` enters the certificates that are there, and one that is put back later."""
    there, away = folder.add(Role.VEHICLE, "there"), keep(folder.add(Role.VEHICLE, "away"), tmp_path / "away")
    renewed = serial(folder.add(Role.VEHICLE, "renewed"))
    for name in ("certificates", "revoked.pem"):
        (folder.path / name).unlink()
    folder.add(Role.VEHICLE, "renewed")  # before the second init: the certificate that it replaces is not forgotten
    folder.init()
    assert folder.remove("there") == 1
    assert folder.remove("renewed") == 2
    assert folder.remove("away") == 0  # nobody knows its number until its certificate is put back
    assert serials(folder) >= {serial(there), renewed}
    assert away.cert_file
    (folder.path / "clients" / "away.crt").write_bytes(away.cert_file.read_bytes())
    folder.init()
    assert folder.remove("away") == 1
    assert serial(away) in serials(folder)


def test_the_register_forgets_what_has_run_out() -> None:
    """A certificate that ran out is refused for that; the list does not grow for ever."""
    now = datetime.now(UTC).replace(microsecond=0)
    good, revoked = Issued("a", 1, now + timedelta(days=1)), Issued("b", 255, now + timedelta(days=1), now)
    text = format_register([good, revoked, Issued("c", 3, now - timedelta(days=2), now)])
    assert parse_register(text) == [good, revoked]


@pytest.mark.parametrize("line", ["a", "a 1", "a xyz 2030-01-01T00:00:00Z", "a 1 never", "a 1 2030-01-01T00:00:00Z x"])
def test_a_register_that_is_malformed(folder: BrokerFolder, line: str) -> None:
    """It is an error that repeats the line, nothing is written over it, and removing takes the rights all the same."""
    folder.add(Role.VEHICLE, "car-2")
    (folder.path / "certificates").write_text(line + "\n")
    with pytest.raises(ConfigError, match="register of certificates"):
        folder.add(Role.VEHICLE, "car-1")
    with pytest.raises(ConfigError, match="register of certificates"):
        folder.remove("car-2")
    assert folder.clients() == {}
    assert (folder.path / "certificates").read_text() == line + "\n"


def refused(secured: Any, login: Login, client_id: str) -> LinkError:
    """Reload the broker, and connect until it has read the list."""
    secured.server.reload()
    return until_refused(secured, login, client_id)


def until_refused(secured: Any, login: Login, client_id: str) -> LinkError:
    """Connect until the broker refuses."""
    errors: list[LinkError] = []

    def is_refused() -> bool:
        errors.extend(filter(None, [error_of(secured.address(login), client_id)]))
        return bool(errors)

    wait_until(is_refused)
    return errors[0]


@pytest.mark.broker
def test_revoked_certificates_are_refused(secured: Any, unique: Unique) -> None:
    """Three removed one after the other, each with a reload: each is refused ten times of ten, and nobody else."""
    logins = [secured.folder.add(Role.VEHICLE, unique("gone")) for _ in range(3)]
    for login in logins:
        assert error_of(secured.address(login), login.name) is None
    for login in logins:
        secured.folder.remove(login.name)
        refused(secured, login, login.name)
    for login in logins:
        for _ in range(10):
            error = error_of(secured.address(login), login.name)
            assert isinstance(error, NotAuthorized)
            assert f"refused the client certificate {login.cert_file} (certificate revoked)" in str(error)
    assert error_of(secured.address("car-2"), unique("other")) is None


@pytest.mark.broker
def test_a_broker_that_runs_takes_notice(secured: Any, unique: Unique) -> None:
    """`mqinfer broker --config` reads the list by itself: it is one of the files that are watched."""
    login = secured.folder.add(Role.VEHICLE, unique("car"))
    with kept_current(secured):
        assert error_of(secured.address(login), login.name) is None
        secured.folder.remove(login.name)
        error = until_refused(secured, login, login.name)
    assert "certificate revoked" in str(error)


@pytest.mark.broker
def test_a_lost_key(secured: Any, unique: Unique, tmp_path: Path) -> None:
    """Removed and added again, the client works with its new key, and the lost one opens no connection."""
    lost = keep(secured.folder.add(Role.VEHICLE, unique("car")), tmp_path / "lost")
    secured.folder.remove(lost.name)
    new = secured.folder.add(Role.VEHICLE, lost.name)
    assert "revoked" in str(refused(secured, lost, lost.name))
    assert error_of(secured.address(new), lost.name) is None


@pytest.mark.broker
def test_a_link_that_is_open_when_its_certificate_is_revoked(secured: Any, unique: Unique) -> None:
    """When its connection ends it is refused once and ends for good, instead of dialling for ever."""
    login = secured.folder.add(Role.VEHICLE, unique("car"))
    states: list[bool] = []
    link = PahoLink(secured.address(login), client_id=login.name, on_connection=states.append)
    link.open(PATIENCE)
    secured.folder.remove(login.name)
    refused(secured, login, unique("probe"))
    link.cut()
    wait_until(lambda: link.failure is not None)
    failure = link.failure
    link.close()
    assert isinstance(failure, NotAuthorized)
    assert "revoked" in str(failure)
    assert states.count(True) == 1


@pytest.mark.broker
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_session_that_is_resumed(secured: Any, unique: Unique, version: ssl.TLSVersion) -> None:
    """TLS checks no certificate when it resumes a session; after a revocation the broker resumes none."""
    login = secured.folder.add(Role.VEHICLE, unique("car"))
    context = ssl.create_default_context(cafile=login.ca_file)
    context.load_cert_chain(login.cert_file, login.key_file)
    context.minimum_version = context.maximum_version = version
    _, session = shake_hands(context, secured.server.port, None)
    is_resumed, session = shake_hands(context, secured.server.port, session)
    assert is_resumed
    secured.folder.remove(login.name)
    assert isinstance(refused(secured, login, login.name), NotAuthorized)
    with pytest.raises(OSError, match=r"SSL|EOF|reset"):
        shake_hands(context, secured.server.port, session)


def shake_hands(
    context: ssl.SSLContext, port: int, session: ssl.SSLSession | None
) -> tuple[bool | None, ssl.SSLSession | None]:
    """Connect as MQTT does; returns whether the session was resumed, and one to resume."""
    with (
        socket.create_connection(("127.0.0.1", port), PATIENCE) as raw,
        context.wrap_socket(raw, server_hostname="localhost", session=session) as connection,
    ):
        connection.sendall(b"\x10\x11\x00\x04MQTT\x05\x02\x00\x0f\x00\x00\x04s~23")
        if connection.recv(1) != b"\x20":
            raise ssl.SSLEOFError("EOF")
        return connection.session_reused, connection.session
