"""Links that log in: by password, over TLS with and without certificates, over websockets."""

from __future__ import annotations

import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from mqinfer.broker.address import BrokerAddress
from mqinfer.broker.connect import make_link
from mqinfer.broker.link import Message
from mqinfer.broker.mosquitto.check import check_certificate
from mqinfer.broker.mosquitto.configuration import render
from mqinfer.broker.mosquitto.server import MosquittoServer
from mqinfer.broker.paho.connecting import tls_error
from mqinfer.broker.paho.link import PahoLink
from mqinfer.protocol.errors import BrokerUnreachable, ConfigError, NotAuthorized
from tests.ports import free_port

pytestmark = pytest.mark.broker

PATIENCE = 60.0
Unique = Callable[[str], str]
Roundtrip = Callable[..., Message]


@pytest.fixture(scope="module")
def password_server(open_place: Path) -> Iterator[MosquittoServer]:
    """A Mosquitto that wants a password and refuses most subscriptions."""
    passwords = open_place / "passwords-of-edge"
    subprocess.run(
        ["mosquitto_passwd", "-b", "-c", str(passwords), "edge", "s3cret/ä"], check=True, capture_output=True
    )
    passwords.chmod(0o755)

    def configuration(port: int) -> str:
        text = render(port).replace("allow_anonymous true", "allow_anonymous false")
        return text + f"password_file {passwords}\n"

    with MosquittoServer(configuration=configuration) as server:
        yield server


def test_the_right_password(password_server: MosquittoServer, unique: Unique) -> None:
    """Name and password of the URL, percent-encoded, let the link in."""
    link = make_link(f"mqtt://edge:s3cret%2F%C3%A4@127.0.0.1:{password_server.port}", client_id=unique("c"))
    link.open()
    assert link.connected
    link.close()


@pytest.mark.parametrize("login", ["edge:wrong@", ""])
def test_the_wrong_password(password_server: MosquittoServer, unique: Unique, login: str) -> None:
    """A refused login ends the attempt at once, and the password is not repeated."""
    client_id = unique("c")
    link = make_link(f"mqtt://{login}127.0.0.1:{password_server.port}", client_id=client_id)
    with pytest.raises(NotAuthorized) as caught:
        link.open(PATIENCE)
    assert "wrong" not in str(caught.value)
    assert password_server.log().count(client_id) <= 1, "it tried again"


def test_websockets(unique: Unique, closing: Callable[[PahoLink], PahoLink], roundtrip: Roundtrip) -> None:
    """The listener for browsers takes links too."""
    websockets_port = free_port()
    with MosquittoServer(configuration=lambda port: render(port, websockets_port=websockets_port)):
        address = BrokerAddress.parse(f"ws://127.0.0.1:{websockets_port}/mqtt")
        link = closing(PahoLink(address, client_id=unique("c")))
        link.open()
        assert roundtrip(link, unique("t"), b"z" * 50_000).payload == b"z" * 50_000


@pytest.fixture(scope="module")
def certificates(open_place: Path) -> Path:
    """A folder with a private CA, a certificate for 127.0.0.1, one for a client, and another CA."""
    folder = open_place / "certificates"
    folder.mkdir()

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    usage = ("-addext", "keyUsage=critical,keyCertSign,cRLSign")  # the strict check of Python 3.13 wants it
    for ca, more in (("ca", usage), ("other", usage), ("lax", ())):
        subject = ("-days", "2", "-subj", f"/CN={ca}")
        openssl("req", "-x509", *key, "-keyout", f"{ca}.key", "-out", f"{ca}.pem", *subject, *more)
    host = "subjectAltName=IP:127.0.0.1"
    for name, ca, extension in (
        ("server", "ca", host),
        ("client", "ca", "extendedKeyUsage=clientAuth"),
        ("lax-server", "lax", host),
    ):
        (folder / "extensions").write_text(f"{extension}\nauthorityKeyIdentifier=keyid\n")
        openssl("req", *key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        signing = ("-CA", f"{ca}.pem", "-CAkey", f"{ca}.key", "-CAcreateserial", "-extfile", "extensions", "-days", "2")
        openssl("x509", "-req", "-in", f"{name}.csr", "-out", f"{name}.pem", *signing)
    for path in (folder, *folder.iterdir()):
        path.chmod(0o755)
    return folder


@pytest.fixture(scope="module")
def tls_server(certificates: Path) -> Iterator[MosquittoServer]:
    """A Mosquitto that speaks TLS and wants a client certificate."""

    def configuration(port: int) -> str:
        tls = f"cafile {certificates}/ca.pem\ncertfile {certificates}/server.pem\nkeyfile {certificates}/server.key\n"
        return render(port) + tls + "require_certificate true\n"

    with MosquittoServer(configuration=configuration) as server:
        yield server


def tls_address(server: MosquittoServer, folder: Path, ca: str = "ca.pem", client: str | None = None) -> BrokerAddress:
    """The address of a TLS broker."""
    url = f"mqtts://127.0.0.1:{server.port}"
    if client is None:
        return BrokerAddress.parse(url, ca_file=folder / ca)
    files = folder / f"{client}.pem", folder / f"{client}.key"
    return BrokerAddress.parse(url, ca_file=folder / ca, cert_file=files[0], key_file=files[1])


def test_tls(
    tls_server: MosquittoServer,
    certificates: Path,
    unique: Unique,
    closing: Callable[[PahoLink], PahoLink],
    roundtrip: Roundtrip,
) -> None:
    """With the private CA and a client certificate large and small messages go through."""
    address = tls_address(tls_server, certificates, client="client")
    link = closing(PahoLink(address, client_id=unique("c")))
    link.open()
    for size in (0, 100, 3_000_000):
        assert roundtrip(link, unique("t"), bytes(size)).payload == bytes(size)


def test_a_certificate_that_fails_the_strict_check(certificates: Path, unique: Unique) -> None:
    """Python 3.13 refuses it in words that name the cure; earlier ones take it, and `broker check` tells in advance."""

    def configuration(port: int) -> str:
        files = f"certfile {certificates}/lax-server.pem\nkeyfile {certificates}/lax-server.key\n"
        return f"{render(port)}{files}"

    with MosquittoServer(configuration=configuration) as server:
        address = tls_address(server, certificates, "lax.pem")
        found = check_certificate(address)
        assert found.result == (True, "it does not pass: CA cert does not include key usage extension")
        assert "docs/reference/security.md" in found.advice
        link = PahoLink(address, client_id=unique("c"))
        if not ssl.create_default_context().verify_flags & ssl.VERIFY_X509_STRICT:
            link.open()
            link.close()
            return
        with pytest.raises(BrokerUnreachable, match=r"key usage extension\); make a new one that keeps to RFC 5280"):
            link.open()


def test_certificates_that_pass_the_strict_check(tls_server: MosquittoServer, certificates: Path, secured: Any) -> None:
    """Those of `broker init` do, and others as docs/reference/security.md says; without a broker it is unknown."""
    address = tls_address(tls_server, certificates, client="client")
    assert check_certificate(address).result.worked is False
    assert check_certificate(secured.address("car-1")).result.worked is False
    assert check_certificate(replace(address, port=free_port())).result.worked is None


def test_the_cure_of_a_strict_check() -> None:
    """It is named for the strict check's codes alone, whatever this Python checks by itself."""
    for code, cure in ((92, "RFC 5280"), (20, "is the CA file right?")):
        error = ssl.SSLCertVerificationError(1, "certificate verify failed")
        error.verify_code, error.verify_message = code, "words"
        assert cure in str(tls_error(BrokerAddress.parse("mqtts://127.0.0.1"), error))


def test_traffic_both_ways_over_tls(
    tls_server: MosquittoServer, certificates: Path, unique: Unique, closing: Callable[[PahoLink], PahoLink]
) -> None:
    """Several threads publish while the link's own thread reads: all arrives whole, over one connection."""
    topic, told, threads, each = unique("t"), list[bool](), 3, 200
    arrived: SimpleQueue[bytes] = SimpleQueue()
    link = closing(
        PahoLink(
            tls_address(tls_server, certificates, client="client"), client_id=unique("c"), on_connection=told.append
        )
    )
    link.open()
    link.subscribe(topic, lambda message: arrived.put(bytes(message.payload)))

    def payload(number: int) -> bytes:
        return b"%d " % number + bytes(number % 7 * 20_000)

    def publish(first: int) -> None:
        for number in range(first, threads * each, threads):
            link.publish(Message(topic, payload(number)))
            time.sleep(0.001)  # so that the link's thread falls asleep

    publishers = [threading.Thread(target=publish, args=(first,)) for first in range(threads)]
    for thread in publishers:
        thread.start()
    for thread in publishers:
        thread.join()
    got = {arrived.get(timeout=PATIENCE) for _ in range(threads * each)}
    assert got == {payload(number) for number in range(threads * each)}
    assert told == [True]


def test_tls_with_an_unknown_ca(tls_server: MosquittoServer, certificates: Path, unique: Unique) -> None:
    """A certificate of another CA is not trusted, and the error says so."""
    link = PahoLink(tls_address(tls_server, certificates, "other.pem"), client_id=unique("c"))
    with pytest.raises(BrokerUnreachable, match="not trusted"):
        link.open(PATIENCE)


def test_tls_without_a_client_certificate(tls_server: MosquittoServer, certificates: Path, unique: Unique) -> None:
    """A broker that wants a certificate and gets none hangs up with an alert; the error says what it wants."""
    link = PahoLink(tls_address(tls_server, certificates), client_id=unique("c"))
    with pytest.raises(NotAuthorized, match=r"wants a client certificate.*--cert-file"):
        link.open(PATIENCE)


def test_tls_files_that_are_none(tmp_path: Path) -> None:
    """A missing or broken certificate file is an error of the configuration and is named."""
    broken = tmp_path / "broken.pem"
    broken.write_text("no certificate")
    for path in (broken, tmp_path / "missing.pem"):
        with pytest.raises(ConfigError, match=path.name):
            PahoLink(BrokerAddress.parse("mqtts://127.0.0.1", ca_file=path), client_id="c")
