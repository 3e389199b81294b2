"""Links over TLS: traffic both ways, files that are none, and the strict check that Python 3.13 brought.

Who gets in, with which certificate or password, is tried in `tests/broker/security/test_login.py`.
"""

from __future__ import annotations

import ssl
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from mqinfer.broker.address import BrokerAddress
from mqinfer.broker.link import Message
from mqinfer.broker.mosquitto.check import check_certificate
from mqinfer.broker.mosquitto.configuration import render
from mqinfer.broker.mosquitto.server import MosquittoServer
from mqinfer.broker.paho.link import PahoLink
from mqinfer.broker.tls import tls_error
from mqinfer.protocol.errors import BrokerUnreachable, ConfigError
from tests.broker.heard import PATIENCE
from tests.ports import free_port

pytestmark = pytest.mark.broker

Unique = Callable[[str], str]


def test_messages_over_tls(
    secured: Any, unique: Unique, closing: Callable[[PahoLink], PahoLink], roundtrip: Callable[..., Message]
) -> None:
    """With the private CA and a client certificate large and small messages go through."""
    link = closing(PahoLink(secured.address("witness"), client_id=unique("c")))
    link.open()
    for size in (0, 100, 3_000_000):
        assert roundtrip(link, unique("t"), bytes(size)).payload == bytes(size)


@pytest.fixture(scope="module")
def certificates(open_place: Path) -> Path:
    """A folder with two private CAs, of which one passes the strict check, and of each a certificate for 127.0.0.1."""
    folder = open_place / "certificates"
    folder.mkdir()

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    (folder / "extensions").write_text("subjectAltName=IP:127.0.0.1\nauthorityKeyIdentifier=keyid\n")
    for ca, usage in (("strict", ("-addext", "keyUsage=critical,keyCertSign,cRLSign")), ("lax", ())):
        subject = ("-days", "2", "-subj", f"/CN={ca}")
        openssl("req", "-x509", *key, "-keyout", f"{ca}.key", "-out", f"{ca}.pem", *subject, *usage)
        openssl("req", *key, "-keyout", f"{ca}-server.key", "-out", "server.csr", "-subj", f"/CN={ca}-server")
        signing = ("-CA", f"{ca}.pem", "-CAkey", f"{ca}.key", "-CAcreateserial", "-extfile", "extensions", "-days", "2")
        openssl("x509", "-req", "-in", "server.csr", "-out", f"{ca}-server.pem", *signing)
    for path in (folder, *folder.iterdir()):
        path.chmod(0o755)
    return folder


@pytest.mark.parametrize(
    ("ca", "fault"), [("strict", None), ("lax", "it does not pass: CA cert does not include key usage extension")]
)
def test_the_strict_check(certificates: Path, unique: Unique, ca: str, fault: str | None) -> None:
    """Python 3.13 refuses what fails it in words that name the cure; `broker check` tells in advance."""

    def configuration(port: int) -> str:
        files = f"certfile {certificates}/{ca}-server.pem\nkeyfile {certificates}/{ca}-server.key\n"
        return f"{render(port)}{files}"

    with MosquittoServer(configuration=configuration) as server:
        address = BrokerAddress.parse(f"mqtts://127.0.0.1:{server.port}", ca_file=certificates / f"{ca}.pem")
        found = check_certificate(address)
        assert found.result == (fault is not None, fault or "it passes")
        assert "docs/reference/security.md" in found.advice
        link = PahoLink(address, client_id=unique("c"))
        if fault is None or not ssl.create_default_context().verify_flags & ssl.VERIFY_X509_STRICT:
            link.open()
            link.close()
            return
        with pytest.raises(BrokerUnreachable, match=r"key usage extension\); make a new one that keeps to RFC 5280"):
            link.open()


def test_the_strict_check_of_our_own_certificates(secured: Any) -> None:
    """Those of `broker init` pass; without a broker it is unknown."""
    address = secured.address("car-1")
    assert check_certificate(address).result.worked is False
    assert check_certificate(replace(address, port=free_port())).result.worked is None


def test_the_cure_of_a_strict_check() -> None:
    """It is named for the strict check's codes alone, whatever this Python checks by itself."""
    for code, cure in ((92, "RFC 5280"), (20, "is the CA file right?")):
        error = ssl.SSLCertVerificationError(1, "certificate verify failed")
        error.verify_code, error.verify_message = code, "words"
        assert cure in str(tls_error(BrokerAddress.parse("mqtts://127.0.0.1"), error))


def test_traffic_both_ways_over_tls(secured: Any, unique: Unique, closing: Callable[[PahoLink], PahoLink]) -> None:
    """Several threads publish while the link's own thread reads: all arrives whole, over one connection."""
    topic, told, threads, each = unique("t"), list[bool](), 3, 200
    arrived: SimpleQueue[bytes] = SimpleQueue()
    link = closing(PahoLink(secured.address("witness"), client_id=unique("c"), on_connection=told.append))
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


def test_tls_files_that_are_none(tmp_path: Path) -> None:
    """A missing or broken certificate file is an error of the configuration and is named."""
    broken = tmp_path / "broken.pem"
    broken.write_text("no certificate")
    for path in (broken, tmp_path / "missing.pem"):
        with pytest.raises(ConfigError, match=path.name):
            PahoLink(BrokerAddress.parse("mqtts://127.0.0.1", ca_file=path), client_id="c")
